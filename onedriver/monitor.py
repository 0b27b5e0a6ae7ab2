# SPDX-License-Identifier: Apache-2.0
"""Write monitor messages: a probe's client sends them to onemonitord, and answers its start. Pure.

A message is ``TYPE SUCCESS|FAILURE host-id epoch base64(zlib(text))`` and a line's end, in a UDP datagram, or over TCP
where it may not be lost (STATE_VM, EXEC_VM) or is too long for one. With keys the text is encrypted first.
"""

import base64
import binascii
import dataclasses
import enum
import re
import zlib
from collections.abc import Iterable
from xml.sax import saxutils

from onedriver.cipher import Encrypt
from onedriver.errors import BadInput

DATAGRAM_LIMIT = 65507  # bytes of an IPv4 datagram
TEXT_LIMIT = 64 << 20  # bytes a message may unpack to
WIRE = re.compile(rb"(?P<type>[A-Z_]+) (?P<result>SUCCESS|FAILURE) (?P<host>-?[0-9]+) (?P<time>[0-9]+) "
                  rb"(?P<payload>[A-Za-z0-9+/=]*)\n?")


class Type(enum.StrEnum):
    SYSTEM_HOST = "SYSTEM_HOST"
    MONITOR_HOST = "MONITOR_HOST"
    BEACON_HOST = "BEACON_HOST"
    STATE_VM = "STATE_VM"
    MONITOR_VM = "MONITOR_VM"
    EXEC_VM = "EXEC_VM"
    SNAPSHOT_VM = "SNAPSHOT_VM"


@dataclasses.dataclass(frozen=True)
class Message:
    """Hold one monitor message of a host, with its text neither compressed nor encrypted.

    :ivar time: seconds since 1970
    """

    type: str
    success: bool
    host: int
    time: int
    text: str


def wire(message: Message, encrypt: Encrypt = bytes) -> bytes:
    payload = base64.b64encode(zlib.compress(encrypt(message.text.encode())))
    result = "SUCCESS" if message.success else "FAILURE"
    return f"{message.type} {result} {message.host} {message.time} ".encode() + payload + b"\n"


def datagrams(message: Message, encrypt: Encrypt = bytes) -> list[bytes]:
    """Split the message into datagrams, cutting lists of VMs between two lines; others may be longer than one."""
    data, lines = wire(message, encrypt), message.text.splitlines()
    if len(data) <= DATAGRAM_LIMIT or message.type != Type.MONITOR_VM or len(lines) < 2:
        return [data]
    halves = lines[:len(lines) // 2], lines[len(lines) // 2:]
    return [part for half in halves
            for part in datagrams(dataclasses.replace(message, text="\n".join(half)), encrypt)]


def read(data: bytes, decrypt: Encrypt = bytes) -> Message:
    """Read a message.

    :param decrypt: the other way than what the message was written with
    :raises BadInput: it is no message
    """
    match = WIRE.fullmatch(data)
    if match is None:
        raise BadInput(f"{data[:60]!r} is no monitor message")
    unpacker = zlib.decompressobj()
    try:
        text = decrypt(unpacker.decompress(base64.b64decode(match["payload"], validate=True), TEXT_LIMIT)).decode()
    except (zlib.error, binascii.Error, ValueError) as error:
        raise BadInput(f"a monitor message's text cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise BadInput("a monitor message is cut, or unpacks to more than any probe writes")
    return Message(match["type"].decode(), match["result"] == b"SUCCESS", int(match["host"]), int(match["time"]), text)


def answer(messages: Iterable[tuple[str, str]], time: int) -> str:
    """Return the output of monitoring's start: the first round, by type."""
    parts = "".join(f"<{kind}>{base64.b64encode(text.encode()).decode()}</{kind}>" for kind, text in messages)
    return f"<MONITOR_MESSAGES>{parts}<TIMESTAMP>{saxutils.escape(str(time))}</TIMESTAMP></MONITOR_MESSAGES>"
