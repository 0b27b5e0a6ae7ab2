# SPDX-License-Identifier: Apache-2.0
"""Write monitor messages, which a probe's client sends to onemonitord or prints at its start. Pure.

A message is ``TYPE SUCCESS|FAILURE host-id epoch base64(zlib(text))`` and a line feed, in a UDP datagram, or over
TCP if it must not be lost (STATE_VM, EXEC_VM) or is too long. With keys the text is encrypted first.
"""

import base64
import dataclasses
import enum
import zlib
from collections.abc import Iterable
from xml.sax import saxutils

from onedriver.cipher import Encrypt

DATAGRAM_LIMIT = 65507  # bytes; the largest IPv4 datagram


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
    """Hold one monitor message of a host, its text neither compressed nor encrypted, its time in seconds since 1970."""

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
    """Split the message into datagrams, dividing lists of VMs between lines; other messages may exceed one."""
    data, lines = wire(message, encrypt), message.text.splitlines()
    if len(data) <= DATAGRAM_LIMIT or message.type != Type.MONITOR_VM or len(lines) < 2:
        return [data]
    halves = lines[:len(lines) // 2], lines[len(lines) // 2:]
    return [part for half in halves
            for part in datagrams(dataclasses.replace(message, text="\n".join(half)), encrypt)]


def answer(messages: Iterable[tuple[str, str]], time: int) -> str:
    """Return the output of the start of monitoring: the first round, by type."""
    parts = "".join(f"<{kind}>{base64.b64encode(text.encode()).decode()}</{kind}>" for kind, text in messages)
    return f"<MONITOR_MESSAGES>{parts}<TIMESTAMP>{saxutils.escape(str(time))}</TIMESTAMP></MONITOR_MESSAGES>"
