# SPDX-License-Identifier: Apache-2.0
"""Define a device as plain frozen records, which all parts of the project exchange.

Nothing here reads a file or knows a cloud or an engine. Addresses are written as the kernel writes them
(``0000:3b:00.0``), identifiers as lower-case hexadecimal without a prefix (``10de``), GUIDs as sixteen
hexadecimal digits in groups of four (``b8ce:f603:0001:0000``, as in /sys/class/infiniband/*/node_guid).
"""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any


class Kind(enum.StrEnum):
    GPU = "gpu"
    GPU_SLICE = "gpu-slice"
    GPU_SHARE = "gpu-share"
    NET = "net"


#: What a GPU can be divided into: slices (MIG), or places for containers that share it.
PARTS = frozenset({Kind.GPU_SLICE, Kind.GPU_SHARE})
#: Those that are free only once no handle works any more. A share of a GPU isolates nothing anyway, and unbinding a
#: network function revokes its handles.
REVOKED = frozenset({Kind.GPU, Kind.GPU_SLICE})


class Role(enum.StrEnum):
    """Name the SR-IOV role of a PCI function; ``plain`` if it has none."""

    PF = "pf"
    VF = "vf"
    PLAIN = "plain"


class LinkLayer(enum.StrEnum):
    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"


class NodeUse(enum.StrEnum):
    """Classify a character node by which containers may have it.

    ``own`` belongs to one device; ``shared`` serves every holder of that kind of device (rdma_cm); ``management``
    reaches beyond the device (umad, issm: a fabric's subnet manager) and is granted only if the operator enables it.
    """

    OWN = "own"
    SHARED = "shared"
    MANAGEMENT = "management"


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class CharNode:
    path: str
    major: int
    minor: int
    use: NodeUse = NodeUse.OWN


@dataclasses.dataclass(frozen=True, slots=True)
class Rdma:
    """Describe the RDMA side of a network function (/sys/class/infiniband/<ibdev>).

    :ivar away: it is in a container's network namespace; only its name is known here
    """

    ibdev: str
    node_guid: str | None
    port_guid: str | None
    port_state: str | None
    away: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Identify one MIG compute instance: GPU instance ``gi``, compute instance ``ci``."""

    gi: int
    ci: int
    profile: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PciFunction:
    """Describe one entry of /sys/bus/pci/devices, before any vendor plug-in examines it.

    :ivar directory: where sysfs has it, links resolved: ``/sys/devices/pci0000:00/...``
    :ivar class_code: six digits: class, subclass, interface (``030200``)
    :ivar health: complaints that hold for any kind of device
    :ivar notes: observations that are not complaints
    """

    address: str
    directory: str
    vendor_id: str
    product_id: str
    class_code: str
    driver: str | None
    numa_node: int | None
    role: Role
    parent: str | None
    vf_index: int | None
    total_vfs: int
    num_vfs: int
    health: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Describe a device, or a part of one, that can be given to a container.

    :ivar id: unique on the host: the PCI address, or ``<address>/gi<N>/ci<N>`` for a slice, ``<address>/share<N>``
        for a share of a GPU
    :ivar numa_node: None if unknown (the kernel's -1)
    :ivar parent: the physical function of a VF, or the GPU of a slice or share, as an address
    :ivar netdev: the interface's name on the host; None if it is in a container or missing
    :ivar other_netdevs: for a function with several ports, the interfaces of all ports but the first
    :ivar netdev_away: its interface is in another network namespace, that of a container. The device is healthy
    :ivar nodes: every character node it comes with; a slice's include what it shares with its GPU
    :ivar health: one complaint per entry; empty if it is healthy
    :ivar outside: those of ``health`` whose cause is not the device itself, but a cable or a switch: no new consumer
        gets it; its present one may restart with it, and release it
    :ivar taint: the operator's reason for blocking new consumers; it is one of ``health``, and of ``outside``
    :ivar notes: observations; they do not affect the use of the device
    :ivar host_use: uses by the host itself, one per entry; empty if it is allocatable
    :ivar plugin: the vendor plug-in that describes and grants it
    """

    id: str
    address: str
    kind: Kind
    vendor_id: str
    product_id: str
    class_code: str
    plugin: str
    role: Role = Role.PLAIN
    driver: str | None = None
    numa_node: int | None = None
    model: str | None = None
    uuid: str | None = None
    parent: str | None = None
    vf_index: int | None = None
    total_vfs: int = 0
    netdev: str | None = None
    other_netdevs: tuple[str, ...] = ()
    netdev_away: bool = False
    link_layer: LinkLayer | None = None
    mac: str | None = None
    rdma: Rdma | None = None
    slice: Slice | None = None
    memory: int | None = None  # bytes, if the driver reports it
    nodes: tuple[CharNode, ...] = ()
    health: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    taint: str | None = None
    notes: tuple[str, ...] = ()
    host_use: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.health

    @property
    def netdevs(self) -> tuple[str, ...]:
        """Return the names of all its interfaces on the host, in the order of its ports."""
        return (self.netdev, *self.other_netdevs) if self.netdev else ()

    @property
    def sound(self) -> bool:
        """Return whether the device itself has no fault."""
        return all(complaint in self.outside for complaint in self.health)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready values, keys in the order of the fields."""
        values = {name: getattr(self, name) for name in _FIELDS}
        for name in ("rdma", "slice"):
            values[name] = dataclasses.asdict(values[name]) if values[name] else None
        values["nodes"] = [{"path": node.path, "major": node.major, "minor": node.minor, "use": node.use}
                           for node in self.nodes]
        return values


def divided(device_ids: Iterable[str]) -> set[str]:
    """Return the GPUs with allocated parts, even if the GPU was repartitioned since, or is undivided.

    Until these are released, no other consumer gets the whole GPU."""
    return {name.partition("/")[0] for name in device_ids if "/" in name}


# Cache the fields: for ten thousand devices, dataclasses.fields takes longer than reading them from sysfs.
_FIELDS = tuple(field.name for field in dataclasses.fields(Device))
