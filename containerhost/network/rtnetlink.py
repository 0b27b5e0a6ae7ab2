"""The kernel's links, addresses and routes by rtnetlink(7), with the standard library alone: loading a library for it
takes longer than a container's start.

Acts in the calling thread's network namespace. Needs CAP_NET_ADMIN for what changes something.
"""

import os
import socket
import struct
from collections.abc import Iterator

from containerhost.errors import HostActionFailed

# linux/netlink.h
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
ERROR, DONE = 2, 3
TYPE_MASK = 0x3FFF
HEADER = struct.Struct("=LHHLL")  # length, type, flags, number, sender
ATTRIBUTE = struct.Struct("=HH")  # length, type
# linux/rtnetlink.h
NEW_LINK, DELETE_LINK, GET_LINK = 16, 17, 18
NEW_ADDRESS, DELETE_ADDRESS, GET_ADDRESSES = 20, 21, 22
NEW_ROUTE, DELETE_ROUTE = 24, 25
LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, which of them
ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, length of the prefix, flags, scope, index
ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, lengths, tos, table, protocol, scope, type, flags
MAIN_TABLE, STATIC, UNICAST, ANY_SCOPE = 254, 4, 1, 255

LIMIT = 30  # s
CHUNK = 1 << 18  # bytes; a link with many functions is long


def ask(asked: str, kind: int, flags: int, body: bytes, but_not: int | None = None) -> tuple[bytes, ...]:
    """:param asked: in words
    :param but_not: the kernel's error that means that others have done what is asked
    :returns: the bodies of its answers
    :raises HostActionFailed: with the kernel's words
    """
    request = HEADER.pack(HEADER.size + len(body), kind, REQUEST | ACK | flags, 1, 0) + body
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(LIMIT)
            kernel.send(request)
            return tuple(answers(kernel))
    except OSError as error:
        if error.errno is not None and error.errno == but_not:
            return ()
        raise HostActionFailed(f"cannot {asked}: {error.strerror or error}") from error


def answers(kernel: socket.socket) -> Iterator[bytes]:
    """:raises OSError: it refuses"""
    while True:
        data = kernel.recv(CHUNK)
        while data:
            length, kind, _, _, _ = HEADER.unpack_from(data)
            body, data = data[HEADER.size:length], data[aligned(length):]
            if kind == DONE:
                return
            if kind == ERROR:
                (code,) = struct.unpack_from("=i", body)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return
            yield body


def aligned(length: int) -> int:
    return (length + 3) & ~3


def attribute(kind: int, content: bytes) -> bytes:
    length = ATTRIBUTE.size + len(content)
    return ATTRIBUTE.pack(length, kind) + content + bytes(aligned(length) - length)


def text(kind: int, content: str) -> bytes:
    return attribute(kind, content.encode() + b"\0")


def number(kind: int, content: int) -> bytes:
    return attribute(kind, struct.pack("=I", content))


def attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(data)
        found[kind & TYPE_MASK] = data[ATTRIBUTE.size:length]
        data = data[max(aligned(length), ATTRIBUTE.size):]
    return found


def link(*parts: bytes, index: int = 0, flags: int = 0, which: int = 0) -> bytes:
    """:param parts: attributes
    :param which: of the flags is to be as ``flags`` has it
    """
    return LINK.pack(socket.AF_UNSPEC, 0, index, flags, which) + b"".join(parts)
