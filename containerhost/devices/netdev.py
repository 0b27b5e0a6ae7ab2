# SPDX-License-Identifier: Apache-2.0
"""Find the network interfaces of a PCI function, and whether the host itself needs them.

Sources: Documentation/ABI/testing/sysfs-class-net; /proc/net/route, ipv6_route and if_inet6 of the reader's namespace.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping

from containerhost.devices.model import LinkLayer
from containerhost.linux.network import stacked
from containerhost.linux.sysfs import Host

# Bytes of a hardware address (if_ether.h, if_infiniband.h).
_LINK_LAYERS = {6: LinkLayer.ETHERNET, 20: LinkLayer.INFINIBAND}
_CLASS = "/sys/class/net"
_IFF_UP = 0x1
_ARPHRD_ETHER = "1"
_SCOPE_LINK = "20"
# Of IPv6 routes (linux/ipv6_route.h, linux/route.h): the kernel's own for an address; unreachable.
_RTF_LOCAL, _RTF_REJECT = 0x80000000, 0x200
_LINK_LOCAL_OR_MULTICAST = re.compile(r"fe[89ab]|ff")
_UPPER = "upper_"
_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?P<kind>vf|sf)[0-9]+")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){14})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Netdev:
    """Describe a network interface of a PCI function, from its directory in sysfs.

    :ivar mac: hardware address: 6 bytes, 20 on InfiniBand
    :ivar up: the host has brought it up; its port may be down all the same
    """

    name: str
    directory: str
    mac: str | None
    up: bool

    @property
    def link_layer(self) -> LinkLayer | None:
        return _LINK_LAYERS[self.mac.count(":") + 1] if self.mac else None


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Hold the network interfaces of a PCI function, and what the host uses them for.

    :ivar netdevs: the function's interfaces in this network namespace, one for each port, in the order of its ports
    :ivar uses: reads the host's uses of these interfaces, or of interfaces stacked on them
    """

    netdevs: tuple[Netdev, ...] = ()
    away: bool = False
    uses: Callable[[], tuple[str, ...]] = tuple

    @property
    def netdev(self) -> Netdev | None:
        return self.netdevs[0] if self.netdevs else None


class Netdevs:
    """Find the interfaces of each function, reading routes, addresses and links of the host once."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def of(self, function: str) -> Found:
        """Find the interfaces of a function, which are in its directory or in that of the virtio device below it."""
        found = self._in(f"{function}/net")
        if found is None:
            nested = (self._in(f"{function}/{name}/net") for name in self._host.names(function)
                      if name.startswith("virtio"))
            found = next((interface for interface in nested if interface), None)
        return found or Found()

    def _in(self, directory: str) -> Found | None:
        """Return the interfaces in a directory of sysfs; None if the directory is missing."""
        names = self._host.names(directory)
        if not names:
            # Sysfs shows only interfaces of the own namespace: an empty directory means that the interface is in
            # another one.
            return Found(away=True) if self._host.is_directory(directory) else None
        represented = {name: match["kind"] for name in names if (match := _REPRESENTOR.fullmatch(
            self._host.text(f"{directory}/{name}/phys_port_name") or ""))}
        own = [name for name in names if name not in represented and not self._is_child(f"{directory}/{name}")]
        own = sorted(own or names[:1], key=lambda name: (self._host.number(f"{directory}/{name}/dev_port") or 0, name))
        return Found(
            netdevs=tuple(self._read(directory, name) for name in own),
            uses=lambda: (
                *(f"{name} represents a subfunction of it" for name, kind in represented.items() if kind == "sf"),
                *(use for name in names for use in self._uses(f"{directory}/{name}", name))))

    def _is_child(self, attributes: str) -> bool:
        """Return whether an interface is stacked on another: IPoIB lists its children in their parent's directory."""
        return self._host.text(f"{attributes}/iflink") not in (None, self._host.text(f"{attributes}/ifindex"))

    def _read(self, directory: str, name: str) -> Netdev:
        attributes = f"{directory}/{name}"
        mac = (self._host.text(f"{attributes}/address") or "").lower()
        return Netdev(
            name=name,
            directory=attributes,
            mac=mac if _MAC.fullmatch(mac) else None,
            up=_hexadecimal(self._host.text(f"{attributes}/flags")) & _IFF_UP != 0,
        )

    def _uses(self, attributes: str, name: str) -> tuple[str, ...]:
        master = self._host.link(f"{attributes}/master")
        uses = [f"{name} is a port of {master}"] if master else []
        uses += [f"{upper} stands on {name}" for upper in (
            *(upper for upper in self._above(attributes, name) if upper != master),
            *self._elsewhere.get(self._host.number(f"{attributes}/ifindex") or 0, ()))]
        if (name, True) in self._routes:
            uses.append(f"{name} carries the default route")
        elif name in self._addressed:
            uses.append(f"{name} has addresses")
        return tuple(uses)

    def _above(self, attributes: str, name: str) -> list[str]:
        """Return the interfaces stacked on one: VLAN, macvlan, ipvlan, bond, bridge, VRF, IPoIB child, tunnel.

        The kernel links most of them to it; the others refer to it by index."""
        linked = {entry.removeprefix(_UPPER) for entry in self._host.names(attributes) if entry.startswith(_UPPER)}
        numbered = self._by_lower.get(self._host.text(f"{attributes}/ifindex") or "", ())
        return sorted(linked | {other for other in numbered if other != name and self._is_above(other, name)})

    def _is_above(self, other: str, name: str) -> bool:
        """Return whether ``other``, whose iflink is the number of ``name``, is stacked on it.

        A veth's may be a number of another network namespace; the kernel links all stacked Ethernet interfaces with
        their lower ones."""
        return (self._host.text(f"{_CLASS}/{other}/type") != _ARPHRD_ETHER
                or self._host.exists(f"{_CLASS}/{other}/lower_{name}"))

    @functools.cached_property
    def _elsewhere(self) -> Mapping[int, tuple[str, ...]]:
        """Return interfaces of other network namespaces stacked on this one's, by number; needs root."""
        if not self._host.live:
            return {}
        if os.geteuid() != 0:
            return self._host.stacked() if self._host.stacked else {}
        return stacked.elsewhere()

    @functools.cached_property
    def _by_lower(self) -> dict[str, tuple[str, ...]]:
        """Return the interfaces of this network namespace by their iflink."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self._host.names(_CLASS):
            lower = self._host.text(f"{_CLASS}/{name}/iflink")
            if lower:
                found[lower] = (*found.get(lower, ()), name)
        return found

    @functools.cached_property
    def _routes(self) -> tuple[tuple[str, bool], ...]:
        """Return each route's interface and whether it is a default route; not IPv6's automatic routes."""
        rows = (line.split() for line in self._host.lines("/proc/net/route")[1:])
        found = [(row[0], row[1] == "00000000") for row in rows if len(row) > 1]
        # Destination, length of its prefix, source and its length, next hop, metric, two counters, flags, interface.
        rows = (line.split() for line in self._host.lines("/proc/net/ipv6_route"))
        found += [(row[9], row[1] == "00") for row in rows
                  if len(row) > 9 and not _LINK_LOCAL_OR_MULTICAST.match(row[0])
                  and not _hexadecimal(row[8]) & (_RTF_LOCAL | _RTF_REJECT)]
        return tuple(found)

    @functools.cached_property
    def _addressed(self) -> frozenset[str]:
        """Return the interfaces with a route of their own or an IPv6 address beyond the link-local one."""
        rows = (line.split() for line in self._host.lines("/proc/net/if_inet6"))
        wide = (row[5] for row in rows if len(row) > 5 and row[3] != _SCOPE_LINK)
        return frozenset(name for name, _ in self._routes) | frozenset(wide)


def _hexadecimal(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
