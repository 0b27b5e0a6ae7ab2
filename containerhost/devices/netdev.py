"""The network interface of a PCI function, and whether the host itself needs it.

Sources: Documentation/ABI/testing/sysfs-class-net; /proc/net/route and /proc/net/if_inet6 of the reader's namespace.
"""

import dataclasses
import functools
import re

from containerhost.devices.model import LinkLayer
from containerhost.devices.pci import FOLDER
from containerhost.sysfs import Host

# if_arp.h: ARPHRD_ETHER and ARPHRD_INFINIBAND.
_LINK_LAYERS = {1: LinkLayer.ETHERNET, 32: LinkLayer.INFINIBAND}
_IFF_UP = 0x1
_SCOPE_LINK = "20"
_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:vf|sf)[0-9]+")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){14})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Netdev:
    """:ivar mac: hardware address: 6 bytes, 20 on InfiniBand
    :ivar up: the host has brought it up
    :ivar uses: what the host does with it beyond that, in words
    """

    name: str
    link_layer: LinkLayer | None
    mac: str | None
    up: bool
    uses: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """:ivar away: the function has an interface, in another network namespace"""

    netdev: Netdev | None
    away: bool


class Netdevs:
    """Finds the interface of each function; the host's addresses are read once."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def of(self, address: str) -> Found:
        for folder in self._folders(address):
            names = self._host.names(folder)
            if names:
                return Found(self._read(folder, self._uplink(folder, names)), away=False)
            # The kernel shows each namespace its own interfaces only; a folder without any is that of one elsewhere.
            if self._host.is_folder(folder):
                return Found(None, away=True)
        return Found(None, away=False)

    def _folders(self, address: str) -> tuple[str, ...]:
        """Where a driver may hang its interfaces: at the function, or at the virtio device in it."""
        function = f"{FOLDER}/{address}"
        plain = f"{function}/net"
        if self._host.is_folder(plain):
            return (plain,)
        return tuple(f"{function}/{name}/net" for name in self._host.names(function) if name.startswith("virtio"))

    def _uplink(self, folder: str, names: tuple[str, ...]) -> str:
        """The function's own interface: a switchdev PF also carries one representor for each VF."""
        if len(names) == 1:
            return names[0]
        return next((name for name in names
                     if not _REPRESENTOR.fullmatch(self._host.text(f"{folder}/{name}/phys_port_name") or "")), names[0])

    def _read(self, folder: str, name: str) -> Netdev:
        attributes = f"{folder}/{name}"
        mac = (self._host.text(f"{attributes}/address") or "").lower()
        return Netdev(
            name=name,
            link_layer=_LINK_LAYERS.get(self._host.number(f"{attributes}/type") or 0),
            mac=mac if _MAC.fullmatch(mac) else None,
            up=_flags(self._host.text(f"{attributes}/flags")) & _IFF_UP != 0,
            uses=self._uses(attributes, name),
        )

    def _uses(self, attributes: str, name: str) -> tuple[str, ...]:
        uses = []
        master = self._host.link(f"{attributes}/master")
        if master:
            uses.append(f"{name} is a port of {master}")
        if name in self._default_routes:
            uses.append(f"{name} carries the default route")
        elif name in self._addressed:
            uses.append(f"{name} has addresses")
        return tuple(uses)

    @functools.cached_property
    def _routes(self) -> tuple[tuple[str, str], ...]:
        """Interface and destination (hexadecimal) of every IPv4 route."""
        rows = (line.split() for line in self._host.lines("/proc/net/route")[1:])
        return tuple((row[0], row[1]) for row in rows if len(row) > 1)

    @functools.cached_property
    def _default_routes(self) -> frozenset[str]:
        return frozenset(name for name, destination in self._routes if destination == "00000000")

    @functools.cached_property
    def _addressed(self) -> frozenset[str]:
        """Interfaces with a route of their own or an IPv6 address that is more than the automatic link-local one."""
        rows = (line.split() for line in self._host.lines("/proc/net/if_inet6"))
        wide = (row[5] for row in rows if len(row) > 5 and row[3] != _SCOPE_LINK)
        return frozenset(name for name, _ in self._routes) | frozenset(wide)


def _flags(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
