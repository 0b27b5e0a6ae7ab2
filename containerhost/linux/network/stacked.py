# SPDX-License-Identifier: Apache-2.0
"""Find interfaces of other network namespaces stacked on interfaces of this one, such as Docker's macvlan networks.

Only namespaces that the host's root gave a name are entered (ip-netns(8), /run/docker/netns, container network
plug-ins): a tenant can make any number of others. Source: rtnetlink(7); if_link.h and net_namespace.h of linux/.
"""

import os
import re
import socket
import struct
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux.process.namespaces import within

_MOUNTS = "/proc/self/mountinfo"
_HOME = "/proc/thread-self/ns/net"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # escaped white space in a mount point, proc(5)
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_RTM_GETLINK, _RTM_GETNSID = 18, 90
_IFLA_IFNAME, _IFLA_LINK, _IFLA_LINK_NETNSID = 3, 5, 37
_NETNSA_NSID, _NETNSA_FD = 1, 3
_LARGEST = 1 << 17  # bytes; one message of a dump
_TIMEOUT = 5.0  # s


def elsewhere() -> dict[int, tuple[str, ...]]:
    """Describe the interfaces stacked on each interface of this namespace, by its number. Needs root."""
    found: dict[int, tuple[str, ...]] = {}
    home = os.open(_HOME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for path in _named(os.fstat(home).st_ino):
            links: list[tuple[str, int]] = []
            try:
                within(path, lambda links=links: links.extend(_links_to(home)))  # type: ignore[misc]
            except HostActionFailed:
                continue  # it ended meanwhile
            for name, lower in links:
                found[lower] = (*found.get(lower, ()), f"{name} in network namespace {path}")
    finally:
        os.close(home)
    return found


def _named(home: int) -> Iterator[str]:
    """Yield a mount point of each network namespace that has one, without this one."""
    seen = {f"net:[{home}]"}
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            fields, _, kind = line.partition(" - ")
            root, place = fields.split(" ")[3:5]
            if kind.startswith("nsfs ") and root.startswith("net:[") and root not in seen:
                seen.add(root)
                yield _ESCAPED.sub(lambda match: chr(int(match[1], 8)), place)


def _links_to(home: int) -> Iterator[tuple[str, int]]:
    """Yield the interfaces of the calling thread's namespace that are stacked on one of another, with its number.

    :param home: a descriptor of the other namespace
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as control:
        control.settimeout(_TIMEOUT)
        linked = [(attributes.get(_IFLA_IFNAME, b"?").rstrip(b"\0").decode("utf-8", "replace"),
                   _number(attributes.get(_IFLA_LINK)), _number(attributes[_IFLA_LINK_NETNSID]))
                  for attributes in _ask(control, _RTM_GETLINK, _DUMP, bytes(16), 16)
                  if _IFLA_LINK_NETNSID in attributes]
        if not linked:
            return
        # After the dump: the kernel assigns the id of another namespace when it first reports a link to it.
        asked = struct.pack("=B3xHHI", socket.AF_UNSPEC, 8, _NETNSA_FD, home)
        ids = [_number(attributes.get(_NETNSA_NSID)) for attributes in _ask(control, _RTM_GETNSID, 0, asked, 4)]
        yield from ((name, lower) for name, lower, space in linked if lower and space in ids)


def _ask(control: socket.socket, kind: int, flags: int, body: bytes, header: int) -> Iterator[dict[int, bytes]]:
    """Send a request, and yield the attributes of each message of the answer.

    :param header: bytes before the attributes in a message of the answer
    """
    control.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, 1, 0) + body)
    while True:
        data = control.recv(_LARGEST)
        while len(data) >= 16:
            length, answer = struct.unpack_from("=IH", data)
            if answer in (_NLMSG_ERROR, _NLMSG_DONE):
                return
            yield dict(_attributes(data[16 + header:length]))
            data = data[-(-length // 4) * 4:]
        if not flags & _DUMP:
            return


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]  # without the flags for nesting and byte order
        data = data[-(-length // 4) * 4:]


def _number(data: bytes | None) -> int | None:
    return struct.unpack("=i", data)[0] if data is not None and len(data) == 4 else None
