"""The kernel's network links by netlink: pairs of virtual interfaces and what is set on them. Needs CAP_NET_ADMIN.

Only :mod:`containerhost.privileged` calls this; it has checked every argument.
"""

import array
import errno
import fcntl
import os
import socket
import struct

from containerhost.errors import HostActionFailed
from containerhost.network import rtnetlink
from containerhost.network.rtnetlink import CREATE, EXCLUSIVE, attribute, link, number, text
from containerhost.process.namespaces import within

# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
# linux/if.h
IFF_UP, IFF_NOARP = 0x1, 0x80
# linux/if_link.h, linux/veth.h
NAME_OF, MAC, MTU, MASTER, INFO, ALIAS, NAMESPACE = 3, 1, 4, 10, 18, 20, 28
INFO_KIND, INFO_DATA, PEER = 1, 2, 1
HOME = "/proc/thread-self/ns/net"


def make_veth(host_end: str, inner_end: str, mac: str, mtu: int | None, mark: str, switched: bool) -> None:
    """A pair of interfaces: ``host_end`` up and marked, ``inner_end`` down with the container's MAC.

    :param mtu: bytes; None is the kernel's default
    :param switched: a switch takes the frames, and the host's own IP stack must not: the tenant would reach the host
    """
    asked = f"make interfaces {host_end} and {inner_end}"
    size = number(MTU, mtu) if mtu else b""
    peer = link(text(NAME_OF, inner_end), attribute(MAC, bytes.fromhex(mac.replace(":", ""))), size)
    make(asked, host_end, "veth", size, attribute(INFO_DATA, attribute(PEER, peer)))
    if switched:
        disable_ipv6(host_end)
    flags = IFF_UP | IFF_NOARP if switched else IFF_UP
    # The kernel takes an alias only for a link that is there.
    change(asked, host_end, text(ALIAS, mark), flags=flags, which=flags)


def remove_veth(name: str) -> None:
    """Remove a pair by either end; done already when it is not there.

    :raises HostActionFailed: the interface is none of a pair
    """
    remove(name, "veth", "one of a pair")


def make_shaper(name: str) -> None:
    """An interface that passes on what is redirected to it (the kernel's ifb), up; done already when it is there."""
    asked = f"make interface {name}"
    if not is_here(name):
        make(asked, name, "ifb")
        disable_ipv6(name)
    change(asked, name, flags=IFF_UP, which=IFF_UP)


def remove_shaper(name: str) -> None:
    """:raises HostActionFailed: the interface is another one"""
    remove(name, "ifb", "one that shapes")


def remove(name: str, kind: str, what: str) -> None:
    try:
        found = link(index=socket.if_nametoindex(name))
    except OSError:
        return
    asked = f"remove interface {name}"
    for told in rtnetlink.ask(asked, rtnetlink.GET_LINK, 0, found, errno.ENODEV):
        present = kind_of(told)
        if present != kind:
            raise HostActionFailed(f"interface {name} is {present or 'hardware'}, not {what}: it is left alone")
        rtnetlink.ask(asked, rtnetlink.DELETE_LINK, 0, found, errno.ENODEV)


def kind_of(told: bytes) -> str:
    """Of virtual links: what the kernel calls their kind."""
    info = rtnetlink.attributes(rtnetlink.attributes(told[rtnetlink.LINK.size:]).get(INFO, b""))
    return info.get(INFO_KIND, b"").rstrip(b"\0").decode()


def set_up(name: str, up: bool) -> None:
    change(f"set interface {name} {'up' if up else 'down'}", name, flags=IFF_UP if up else 0, which=IFF_UP)


def rename(name: str, new: str) -> None:
    """The kernel renames only interfaces that are down."""
    asked, link_index = f"rename interface {name} to {new}", index(name)
    set_down(asked, link_index)
    change(asked, link_index, text(NAME_OF, new))


def quieten(name: str) -> None:
    """Leave an interface down and without addresses."""
    asked, link_index = f"set interface {name} down and take its addresses", index(name)
    set_down(asked, link_index)
    for told in rtnetlink.ask(asked, rtnetlink.GET_ADDRESSES, rtnetlink.DUMP, rtnetlink.ADDRESS.pack(0, 0, 0, 0, 0)):
        if rtnetlink.ADDRESS.unpack_from(told)[-1] == link_index:
            rtnetlink.ask(asked, rtnetlink.DELETE_ADDRESS, 0, told, errno.EADDRNOTAVAIL)  # some go with others


def set_down(asked: str, link_index: int) -> None:
    change(asked, link_index, which=IFF_UP)


def enslave(name: str, bridge: str) -> None:
    """Make an interface a port of a bridge."""
    change(f"make interface {name} a port of bridge {bridge}", name, number(MASTER, index(bridge)))


def make(asked: str, name: str, kind: str, *more: bytes) -> None:
    """:param more: attributes: those of its kind last"""
    *common, own = more or (b"",)
    info = attribute(INFO, text(INFO_KIND, kind) + own)
    rtnetlink.ask(asked, rtnetlink.NEW_LINK, CREATE | EXCLUSIVE, link(text(NAME_OF, name), *common, info))


def change(asked: str, name: str | int, *parts: bytes, flags: int = 0, which: int = 0) -> None:
    """:param name: or index"""
    found = index(name) if isinstance(name, str) else name
    rtnetlink.ask(asked, rtnetlink.NEW_LINK, 0, link(*parts, index=found, flags=flags, which=which))


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
    """:param there: a descriptor of the other namespace"""
    found = index(name)
    set_down(asked, found)  # the kernel renames only interfaces that are down
    change(asked, found, text(NAME_OF, new), number(NAMESPACE, there))


def disable_ipv6(name: str) -> None:
    """Before the link is up: it would get a link-local address."""
    path = f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6"
    if os.path.exists(path):
        with open(path, "w", encoding="ascii") as setting:
            setting.write("1")


def is_here(name: str) -> bool:
    return name in {found for _, found in socket.if_nameindex()}


def index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise HostActionFailed(f"there is no interface {name} on this host") from error
