# SPDX-License-Identifier: Apache-2.0
"""Create and configure network links by iproute2: pairs of virtual interfaces. Needs CAP_NET_ADMIN.

A program takes some milliseconds; a library for netlink takes longer to load than the rest of an OpenNebula action.
Only :mod:`containerhost.privileged` calls this; it has checked every argument.
"""

import array
import fcntl
import json
import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from containerhost.errors import HostActionFailed
from containerhost.linux.process.namespaces import within
from containerhost.linux.run import check

LOG = logging.getLogger(__name__)

# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
TIMEOUT = 30  # s
REQUEST_SIZE = 512  # bytes of names
HOME = "/proc/thread-self/ns/net"
NAMES = "/proc/thread-self/net/dev"


def make_veth(host_end: str, inner_end: str, mac: str, mtu: int | None, mark: str, switched: bool) -> None:
    """Create a pair of interfaces: ``host_end`` up and marked, ``inner_end`` down with the container's MAC.

    :param mtu: bytes; None is the kernel's default
    :param switched: a switch handles the frames; the host's own IP stack must not, or the tenant could reach the
        host
    """
    asked = f"make interfaces {host_end} and {inner_end}"
    size = ["mtu", str(mtu)] if mtu else []
    for name in (host_end, inner_end):
        free_name(name)
    ip(asked, "link", "add", "name", host_end, *size, "type", "veth", "peer", "name", inner_end, "address", mac, *size)
    if switched:
        disable_ipv6(host_end)
    # The kernel accepts an alias only for an existing link.
    ip(asked, "link", "set", "dev", host_end, "alias", mark, *(("arp", "off") if switched else ()), "up")


def remove_veth(name: str) -> None:
    """Remove a pair by either end. Idempotent.

    :raises HostActionFailed: the interface is not part of a pair
    """
    remove(name, "veth", "one of a pair")


def make_shaper(name: str) -> None:
    """Create an interface that forwards frames redirected to it (the kernel's ifb), up. Idempotent."""
    asked = f"make interface {name}"
    if not exists(name):
        ip(asked, "link", "add", "name", name, "type", "ifb")
        disable_ipv6(name)
    ip(asked, "link", "set", "dev", name, "up")


def remove_shaper(name: str) -> None:
    """Remove a shaping interface.

    :raises HostActionFailed: the interface is of another type
    """
    remove(name, "ifb", "one that shapes")


def remove(name: str, kind: str, what: str) -> None:
    asked = f"remove interface {name}"
    try:
        present = shown(asked, "-details", "address", "show", "dev", name).get("linkinfo", {}).get("info_kind")
        if present != kind:
            raise HostActionFailed(f"interface {name} is {present or 'hardware'}, not {what}: it is not changed")
        ip(asked, "link", "delete", "dev", name)
    except HostActionFailed:
        if exists(name):
            raise


def set_up(name: str, up: bool) -> None:
    state = "up" if up else "down"
    ip(f"set interface {name} {state}", "link", "set", "dev", name, state)


def rename(name: str, new: str) -> None:
    """Rename an interface, which goes down, as the kernel requires for renaming."""
    asked = f"rename interface {name} to {new}"
    remove_altnames(name)
    ip(asked, "link", "set", "dev", name, "down")
    ip(asked, "link", "set", "dev", name, "name", new)


def remove_altnames(name: str) -> None:
    """Remove an interface's alternative names, which a tenant may have chosen; udev adds its own again.

    A name that the host uses for another interface would prevent moving or renaming this one.

    Idempotent: does nothing if there is no such interface. A name that cannot be removed is logged, and is harmless
    by itself.
    """
    if not exists(name):
        return
    asked = f"remove the alternative names of interface {name}"
    try:
        (found,) = json.loads(ip(asked, "-json", "address", "show", "dev", name), strict=False)
    except ValueError as error:
        LOG.warning("Cannot %s: %s", asked, error)
        return
    except HostActionFailed:
        if exists(name):
            raise
        return  # it has just left
    for chunk in chunks(found.get("altnames", ())):
        for others in (chunk, *((each,) for each in chunk)):
            try:
                ip(asked, "link", "property", "del", "dev", name, *(word for other in others for word in
                                                                    ("altname", other)))
            except HostActionFailed as error:
                LOG.warning("%s", error)
                continue
            if others is chunk:
                break


def free_name(name: str) -> None:
    """Remove an alternative name from the interface that has it; an interface's own name stays.

    An interface returning from a container has the names that its tenant gave it, which prevent creating an
    interface of that name."""
    if exists(name):
        return
    try:
        owner = socket.if_indextoname(socket.if_nametoindex(name))
    except OSError:
        return  # no interface has it
    LOG.warning("Interface %s has the alternative name %s, which another interface needs: the name is "
                "removed", owner, name)
    ip(f"take the name {name} from interface {owner}", "link", "property", "del", "dev", owner, "altname", name)


def chunks(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Divide names into groups that fit into one request of iproute2, of 1024 bytes."""
    group, size = list[str](), 0
    for name in names:
        needed = len(name.encode("utf-8", "surrogateescape")) + 8
        if group and size + needed > REQUEST_SIZE:
            yield tuple(group)
            group, size = [], 0
        group.append(name)
        size += needed
    if group:
        yield tuple(group)


def link_down_and_flush(name: str) -> None:
    """Set an interface down and remove its addresses."""
    asked = f"set interface {name} down and take its addresses"
    ip(asked, "link", "set", "dev", name, "down")
    ip(asked, "address", "flush", "dev", name)


def enslave(name: str, bridge: str) -> None:
    """Make an interface a port of a bridge."""
    ip(f"make interface {name} a port of bridge {bridge}", "link", "set", "dev", name, "master", bridge)


def compute_checksums(name: str) -> None:
    """Disable checksum offload on this interface, so that senders compute checksums, as for real hardware.

    A switch in user space forwards frames as it reads them, and the receiver drops incomplete checksums."""
    value = array.array("I", [ETHTOOL_STXCSUM, 0])
    request = struct.pack("16sP16x", name.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, SIOCETHTOOL, request)
        except OSError as error:
            raise HostActionFailed(f"checksum offload of {name} cannot be turned off: {error.strerror}") from error


def move_in(name: str, namespace: str, new: str) -> None:
    """Move an interface into another network namespace under a new name, down."""
    with open(namespace, "rb") as there:
        move(name, new, there.fileno(), f"move interface {name} to {namespace}")


def fetch(name: str, namespace: str, new: str) -> None:
    """Move an interface out of another network namespace into this one."""
    with open(HOME, "rb") as home:
        within(namespace, lambda: move(name, new, home.fileno(), f"fetch {name} from {namespace}"))


def names_in(namespace: str) -> tuple[str, ...]:
    """Return the names of the interfaces in a network namespace."""
    found: list[str] = []
    within(namespace, lambda: found.extend(names()))
    return tuple(found)


def move(name: str, new: str, there: int, asked: str) -> None:
    """Move an interface to the namespace of a descriptor."""
    if not exists(name):
        raise HostActionFailed(f"there is no interface {name} on this host")
    remove_altnames(name)
    # The move takes the interface down, and then the kernel renames it (rtnetlink.c, do_setlink).
    ip(asked, "link", "set", "dev", name, "name", new, "netns", f"/proc/self/fd/{there}", pass_fds=[there])


def disable_ipv6(name: str) -> None:
    """Disable IPv6 on a link before it is up, when it would get a link-local address."""
    path = f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6"
    if os.path.exists(path):
        with open(path, "w", encoding="ascii") as setting:
            setting.write("1")


def exists(name: str) -> bool:
    return name in names()


def names() -> tuple[str, ...]:
    """Return the names of the interfaces in the calling thread's network namespace, from /proc/net/dev.

    The C library's list (if_nameindex(3)) omits one whose alternative names do not fit into a page."""
    with open(NAMES, encoding="utf-8", errors="surrogateescape") as table:
        return tuple(line.partition(":")[0].strip() for line in table.read().split("\n")[2:-1])


def shown(asked: str, *words: str) -> dict[str, Any]:
    """Return what ``ip`` shows of one interface.

    :raises HostActionFailed: it fails, or shows nothing
    """
    try:
        (found,) = json.loads(ip(asked, "-json", *words))
    except ValueError as error:
        raise HostActionFailed(f"cannot {asked}: `ip {' '.join(words)}` shows nothing: {error}") from error
    return dict(found)


def ip(asked: str, *words: str, pass_fds: Sequence[int] = ()) -> str:
    """Run ``ip``, in the network namespace of the calling thread.

    :param asked: its purpose, for the error
    :returns: what it prints
    :raises HostActionFailed: it fails; the message includes its output
    """
    # Alternative names that a tenant set may be arbitrary bytes.
    return check(["ip", *words], TIMEOUT, f"cannot {asked}", pass_fds=pass_fds, errors="surrogateescape")
