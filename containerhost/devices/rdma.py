# SPDX-License-Identifier: Apache-2.0
"""Read the RDMA side of a PCI function: its InfiniBand device, GUIDs, port and character nodes.

Sources: Documentation/ABI/stable/sysfs-class-infiniband and Documentation/infiniband/user_{verbs,mad}.rst.
"""

import dataclasses
import functools
import re

from containerhost.devices import health
from containerhost.devices.model import CharNode, LinkLayer, NodeUse, Rdma
from containerhost.linux.sysfs import Host

_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_GID = re.compile(r"(?:[0-9a-f]{4}:){4}([0-9a-f]{4}(?::[0-9a-f]{4}){3})")
_VERBS = re.compile(r"uverbs[0-9]{1,4}")
_MAD = re.compile(r"(?:umad|issm)[0-9]{1,4}")
_NODES = "/dev/infiniband"
_NO_GUID = "0000:0000:0000:0000"
_LINK_LAYERS = {"InfiniBand": LinkLayer.INFINIBAND, "Ethernet": LinkLayer.ETHERNET}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Hold the RDMA side of one function; all empty if it has none.

    :ivar phys_state: of its port: ``linkup``, ``polling``, ``disabled``…
    """

    rdma: Rdma | None = None
    nodes: tuple[CharNode, ...] = ()
    health: tuple[str, ...] = ()
    phys_state: str | None = None


class RdmaDevices:
    """Find the RDMA side of each function, reading shared attributes once."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def of(self, directory: str) -> Found:
        """Return the function's first InfiniBand device, its first port that has a link, and all nodes of the function.
        """
        ibdevs = self._host.names(f"{directory}/infiniband")
        if not ibdevs:
            return self._away(directory)
        ibdev = f"{directory}/infiniband/{ibdevs[0]}"
        port = self._port(ibdev)
        guid = self._host.text(f"{ibdev}/node_guid") or ""
        verbs = self._nodes(f"{directory}/infiniband_verbs", _VERBS, NodeUse.OWN)
        # Verbs do not need these nodes, so a missing one is not a fault; it is just not granted.
        management = tuple(node for node in self._nodes(f"{directory}/infiniband_mad", _MAD, NodeUse.MANAGEMENT)
                           if node.path in self._made)
        return Found(
            rdma=Rdma(ibdevs[0], guid if _GUID.fullmatch(guid) else None, self._port_guid(port),
                      state_of(self._host.text(f"{port}/state"))),
            phys_state=state_of(self._host.text(f"{port}/phys_state")),
            nodes=verbs + (self._manager if verbs else ()) + management,
            health=(*health.of_nodes(self._host, verbs), *self._manager_health))

    def _away(self, directory: str) -> Found:
        """Return the InfiniBand device of a function in another network namespace, by its verbs node."""
        verbs = self._nodes(f"{directory}/infiniband_verbs", _VERBS, NodeUse.OWN)
        name = verbs[0].path.rpartition("/")[2] if verbs else ""
        ibdev = self._host.text(f"{directory}/infiniband_verbs/{name}/ibdev")
        if ibdev is None:
            return Found()
        return Found(Rdma(ibdev, None, None, None, away=True), verbs + self._manager,
                     (*health.of_nodes(self._host, verbs), *self._manager_health))

    def phys_state(self, directory: str) -> str | None:
        """Return the physical state of the port described by :meth:`of`."""
        return next((state_of(self._host.text(f"{self._port(f'{directory}/infiniband/{ibdev}')}/phys_state"))
                     for ibdev in self._host.names(f"{directory}/infiniband")), None)

    def _port(self, ibdev: str) -> str:
        """Return the directory of a device's first port that has a link; of port 1 where none has."""
        ports = [f"{ibdev}/ports/{name}" for name in self._host.names(f"{ibdev}/ports")]
        first = f"{ibdev}/ports/1"  # the kernel counts ports from 1
        if len(ports) < 2:
            return first
        return next((port for port in ports if state_of(self._host.text(f"{port}/phys_state")) == "linkup"), first)

    def link_layer(self, directory: str, ibdev: str) -> LinkLayer | None:
        return _LINK_LAYERS.get(self._host.text(f"{directory}/infiniband/{ibdev}/ports/1/link_layer") or "")

    def _port_guid(self, port: str) -> str | None:
        """Return the lower half of the port's first GID (InfiniBand Architecture Specification 4.1.1)."""
        match = _GID.fullmatch(self._host.text(f"{port}/gids/0") or "")
        return match[1] if match and match[1] != _NO_GUID else None

    def _nodes(self, directory: str, pattern: re.Pattern[str], use: NodeUse) -> tuple[CharNode, ...]:
        numbers = ((name, self._host.char_number(f"{directory}/{name}/dev"))
                   for name in self._host.names(directory) if pattern.fullmatch(name))
        return tuple(CharNode(f"{_NODES}/{name}", *number, use) for name, number in numbers if number)

    @functools.cached_property
    def _made(self) -> frozenset[str]:
        return frozenset(f"{_NODES}/{name}" for name in self._host.names(_NODES))

    @functools.cached_property
    def _manager(self) -> tuple[CharNode, ...]:
        """Return the node of rdma_cm, which every RDMA user shares; none without its module: verbs work without."""
        number = self._host.misc_number("rdma_cm")
        return (CharNode(f"{_NODES}/rdma_cm", *number, NodeUse.SHARED),) if number else ()

    @functools.cached_property
    def _manager_health(self) -> tuple[str, ...]:
        return tuple(health.of_nodes(self._host, self._manager))


def state_of(text: str | None) -> str | None:
    """Return the name in a state that the kernel writes as ``4: ACTIVE`` or ``5: LinkUp``."""
    return (text or "").rpartition(":")[2].strip().lower() or None
