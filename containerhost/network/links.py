# SPDX-License-Identifier: Apache-2.0
"""The kernel's network links by netlink: pairs of virtual interfaces and what is set on them. Needs CAP_NET_ADMIN.

Only :mod:`containerhost.privileged` calls this; it has checked every argument.
"""

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from containerhost.errors import HostActionFailed
from containerhost.linux.run import check
from containerhost.process.namespaces import within

if TYPE_CHECKING:
    from pyroute2 import IPRoute

# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
# linux/if.h
IFF_UP, IFF_NOARP = 0x1, 0x80
LIMIT = 30  # s
HOME = "/proc/thread-self/ns/net"


def make_veth(host_end: str, inner_end: str, mac: str, mtu: int | None, mark: str, switched: bool) -> None:
    """A pair of interfaces: ``host_end`` up and marked, ``inner_end`` down with the container's MAC.

    :param mtu: bytes; None is the kernel's default
    :param switched: a switch takes the frames, and the host's own IP stack must not: the tenant would reach the host
    """
    size = {"mtu": mtu} if mtu else {}
    flags = IFF_UP | IFF_NOARP if switched else IFF_UP
    with netlink(f"make interfaces {host_end} and {inner_end}") as ip:
        ip.link("add", kind="veth", ifname=host_end, **size, peer={"ifname": inner_end, "address": mac, **size})
        if switched:
            disable_ipv6(host_end)
        # The kernel takes an alias only for a link that is there.
        ip.link("set", index=index(ip, host_end), ifalias=mark, flags=flags, change=flags)


def remove_veth(name: str) -> None:
    """Remove a pair by either end; done already when it is not there.

    :raises HostActionFailed: the interface is none of a pair
    """
    remove(name, "veth", "one of a pair")


def make_shaper(name: str) -> None:
    """An interface that passes on what is redirected to it (the kernel's ifb), up; done already when it is there."""
    with netlink(f"make interface {name}") as ip:
        if not ip.link_lookup(ifname=name):
            ip.link("add", kind="ifb", ifname=name)
            disable_ipv6(name)
        ip.link("set", index=index(ip, name), state="up")


def remove_shaper(name: str) -> None:
    """:raises HostActionFailed: the interface is another one"""
    remove(name, "ifb", "one that shapes")


def remove(name: str, kind: str, what: str) -> None:
    with netlink(f"remove interface {name}", but_not=errno.ENODEV) as ip:
        found = ip.link_lookup(ifname=name)
        if not found:
            return
        present = ip.get_links(found[0])[0].get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
        if present != kind:
            raise HostActionFailed(f"interface {name} is {present or 'hardware'}, not {what}: it is left alone")
        ip.link("del", index=found[0])


def set_up(name: str, up: bool) -> None:
    with netlink(f"set interface {name} {'up' if up else 'down'}") as ip:
        ip.link("set", index=index(ip, name), state="up" if up else "down")


def rename(name: str, new: str) -> None:
    """The kernel renames only interfaces that are down."""
    with netlink(f"rename interface {name} to {new}") as ip:
        link = index(ip, name)
        ip.link("set", index=link, flags=0, change=IFF_UP)
        ip.link("set", index=link, ifname=new)


def quieten(name: str) -> None:
    """Leave an interface down and without addresses."""
    with netlink(f"set interface {name} down and take its addresses") as ip:
        link = index(ip, name)
        ip.link("set", index=link, flags=0, change=IFF_UP)
        ip.flush_addr(index=link)


def enslave(name: str, bridge: str) -> None:
    """Make an interface a port of a bridge."""
    with netlink(f"make interface {name} a port of bridge {bridge}") as ip:
        ip.link("set", index=index(ip, name), master=index(ip, bridge))


def compute_checksums(name: str) -> None:
    """Let whoever sends by this interface compute checksums itself, as for real hardware: a switch in user space
    passes frames on as it reads them, and half-made checksums have the receiver drop them."""
    value = array.array("I", [ETHTOOL_STXCSUM, 0])
    request = struct.pack("16sP16x", name.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, SIOCETHTOOL, request)
        except OSError as error:
            raise HostActionFailed(f"checksum offload of {name} cannot be turned off: {error.strerror}") from error


def lend(name: str, namespace: str, new: str) -> None:
    """Move an interface into another network namespace, where it is down and has another name.

    :param namespace: the namespace's file
    """
    with open(namespace, "rb") as there:
        move(name, new, there.fileno(), f"move interface {name} to {namespace}")


def fetch(name: str, namespace: str, new: str) -> None:
    """Move an interface out of another network namespace into this one."""
    with open(HOME, "rb") as home:
        within(namespace, lambda: move(name, new, home.fileno(), f"fetch {name} from {namespace}"))


def names_in(namespace: str) -> tuple[str, ...]:
    """Names of the interfaces in a network namespace."""
    found: list[str] = []
    within(namespace, lambda: found.extend(name for _, name in socket.if_nameindex()))
    return tuple(found)


def move(name: str, new: str, there: int, asked: str) -> None:
    """By iproute2: a container's start waits for this, and a library for netlink takes longer to load than all of it.

    :param there: a descriptor of the other namespace
    """
    if name not in {found for _, found in socket.if_nameindex()}:
        raise HostActionFailed(f"there is no interface {name} on this host")
    # Moving it takes it down, and the kernel renames it afterwards (rtnetlink.c, do_setlink).
    words = ["ip", "link", "set", "dev", name, "name", new, "netns", f"/proc/self/fd/{there}"]
    check(words, LIMIT, f"cannot {asked}", pass_fds=[there])


def load() -> None:
    """The library for netlink, for who has the time now."""
    import pyroute2  # noqa: F401, PLC0415


def disable_ipv6(name: str) -> None:
    """Before the link is up: it would get a link-local address."""
    path = f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6"
    if os.path.exists(path):
        with open(path, "w", encoding="ascii") as setting:
            setting.write("1")


def index(ip: "IPRoute", name: str) -> int:
    found = ip.link_lookup(ifname=name)
    if not found:
        raise HostActionFailed(f"there is no interface {name} on this host")
    return found[0]


@contextlib.contextmanager
def netlink(asked: str, but_not: int | None = None) -> Iterator["IPRoute"]:
    """:param but_not: the kernel's error that means that others have done what is asked
    :raises HostActionFailed: with the kernel's words
    """
    # Half the start of a small program like OpenNebula's actions, most of which change no link.
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415
    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as error:
        if error.code != but_not:
            raise HostActionFailed(f"cannot {asked}: {os.strerror(error.code)}") from error
    except OSError as error:
        raise HostActionFailed(f"cannot {asked}: {error.strerror or error}") from error
