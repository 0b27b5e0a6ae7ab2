# SPDX-License-Identifier: Apache-2.0
"""Find the network interface of a PCI function, and whether the host itself needs it.

Sources: Documentation/ABI/testing/sysfs-class-net; /proc/net/route and /proc/net/if_inet6 of the reader's namespace.
"""

import dataclasses
import functools
import re

from containerhost.devices.model import LinkLayer
from containerhost.sysfs import Host

# Bytes of a hardware address (if_ether.h, if_infiniband.h).
_LINK_LAYERS = {6: LinkLayer.ETHERNET, 20: LinkLayer.INFINIBAND}
_IFF_UP = 0x1
_SCOPE_LINK = "20"
_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:vf|sf)[0-9]+")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){14})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Netdev:
    """:ivar directory: its directory below /sys
    :ivar mac: hardware address: 6 bytes, 20 on InfiniBand
    :ivar uses: what the host does with it, in words
    """

    name: str
    directory: str
    mac: str | None
    uses: tuple[str, ...]

    @property
    def link_layer(self) -> LinkLayer | None:
        return _LINK_LAYERS[self.mac.count(":") + 1] if self.mac else None


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """:ivar away: the function has an interface, in another network namespace"""

    netdev: Netdev | None
    away: bool


class Netdevs:
    """Finds the interface of each function; the host's addresses are read once."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def of(self, function: str) -> Found:
        """Find the interface of a function, which is at the function or at the virtio device in it.

        :param function: its directory in sysfs (:func:`containerhost.devices.pci.directory`)
        """
        found = self._in(f"{function}/net")
        if found is None:
            nested = (self._in(f"{function}/{name}/net") for name in self._host.names(function)
                      if name.startswith("virtio"))
            found = next((interface for interface in nested if interface), None)
        return found or Found(None, away=False)

    def _in(self, directory: str) -> Found | None:
        """Return the interface in a directory of sysfs; None where the driver made no such directory."""
        names = self._host.names(directory)
        if names:
            return Found(self._read(directory, self._uplink(directory, names)), away=False)
        # The kernel shows each namespace its own interfaces only; a directory without any is that of one elsewhere.
        return Found(None, away=True) if self._host.is_directory(directory) else None

    def _uplink(self, directory: str, names: tuple[str, ...]) -> str:
        """Return the function's own interface: a switchdev PF also has one representor for each VF."""
        if len(names) == 1:
            return names[0]
        return next((name for name in names
                     if not _REPRESENTOR.fullmatch(self._host.text(f"{directory}/{name}/phys_port_name") or "")),
                    names[0])

    def _read(self, directory: str, name: str) -> Netdev:
        attributes = f"{directory}/{name}"
        mac = (self._host.text(f"{attributes}/address") or "").lower()
        return Netdev(
            name=name,
            directory=attributes,
            mac=mac if _MAC.fullmatch(mac) else None,
            uses=self._uses(attributes, name),
        )

    def is_up(self, netdev: Netdev) -> bool:
        """Return whether the host has brought it up; its port may be down all the same."""
        return _flags(self._host.text(f"{netdev.directory}/flags")) & _IFF_UP != 0

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
        """Return the interface and destination (hexadecimal) of every IPv4 route."""
        rows = (line.split() for line in self._host.lines("/proc/net/route")[1:])
        return tuple((row[0], row[1]) for row in rows if len(row) > 1)

    @functools.cached_property
    def _default_routes(self) -> frozenset[str]:
        return frozenset(name for name, destination in self._routes if destination == "00000000")

    @functools.cached_property
    def _addressed(self) -> frozenset[str]:
        """Return the interfaces with a route of their own or an IPv6 address that is more than the automatic link-local
        one."""
        rows = (line.split() for line in self._host.lines("/proc/net/if_inet6"))
        wide = (row[5] for row in rows if len(row) > 5 and row[3] != _SCOPE_LINK)
        return frozenset(name for name, _ in self._routes) | frozenset(wide)


def _flags(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
