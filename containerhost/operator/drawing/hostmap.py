# SPDX-License-Identifier: Apache-2.0
"""Arrange a host for drawing: NUMA nodes, cores, devices by PCIe switch. Pure."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation
from containerhost.devices.model import PARTS, Device, Kind, Role
from containerhost.inventory.devicechoice import Links
from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import NumaNode, Topology


class Status(enum.StrEnum):
    """Name the consumer of a device on the map, or why it cannot be allocated.

    ``host``: the host itself uses it. ``cleaning``: it is being cleaned after its release.
    """

    FREE = "free"
    HELD = "held"
    HOST = "host"
    CLEANING = "cleaning"
    BLOCKED = "blocked"
    SICK = "sick"


@dataclasses.dataclass(frozen=True)
class Part:
    """Describe a slice, a share or a virtual function."""

    id: str
    label: str
    status: Status
    owner: str | None


@dataclasses.dataclass(frozen=True)
class Card:
    """Describe a GPU or a network card.

    :ivar about: descriptions, most important first
    :ivar links: other GPUs it is linked to besides PCIe, with the number of links
    """

    id: str
    kind: Kind
    title: str
    about: tuple[str, ...]
    status: Status
    owner: str | None
    trouble: tuple[str, ...]
    parts: tuple[Part, ...]
    links: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """Group cards with the same path to the processor.

    :ivar switch: address of the upstream port of their PCIe switch; None for those right below the host bridge
    :ivar bridge: the host bridge: domain and bus
    """

    switch: str | None
    bridge: str
    cards: tuple[Card, ...]


@dataclasses.dataclass(frozen=True)
class Core:
    """Describe a hardware core and the containers that are pinned to it."""

    threads: tuple[tuple[int, str | None], ...]


@dataclasses.dataclass(frozen=True)
class Node:
    """Describe a NUMA node as it is drawn: its cores, and its cards by PCIe switch.

    :ivar id: None for devices whose node the host does not report
    :ivar memory: bytes
    """

    id: int | None
    socket: int | None
    memory: int
    cores: tuple[Core, ...]
    groups: tuple[Group, ...]


@dataclasses.dataclass(frozen=True)
class HostMap:
    title: str
    nodes: tuple[Node, ...]

    @property
    def owners(self) -> tuple[str, ...]:
        """Return all containers that have a device or cores, sorted."""
        return tuple(sorted({owner for node in self.nodes for owner in _owners(node)}))


@dataclasses.dataclass(frozen=True)
class HostData:
    """Hold the data to draw.

    :ivar records: allocations by device id; None if they cannot be read
    :ivar pins: the CPUs that containers are pinned to, by container
    :ivar links: pairs of GPUs that are linked besides PCIe, with the number of links
    :ivar directories: directory of each PCI function in sysfs, by address
    """

    inventory: Inventory
    topology: Topology
    records: Mapping[str, Allocation]
    pins: Mapping[str, frozenset[int]]
    links: Links
    directories: Mapping[str, str]


def hostmap(data: HostData) -> HostMap:
    cpu = data.topology.cpu
    cores = sum(len(node.siblings) for node in data.topology.nodes)
    title = (f"{cpu.model or 'unknown processor'}: {_count(cpu.sockets, 'socket')}, {_count(cores, 'core')}, "
             f"{_count(len(data.topology.cpus), 'thread')}")
    nodes = [_node(data, node) for node in data.topology.nodes]
    known = {node.id for node in data.topology.nodes}
    lost = _groups(data, [device for device in data.inventory.devices if device.numa_node not in known])
    if lost:
        nodes.append(Node(None, None, 0, (), lost))
    return HostMap(title, tuple(nodes))


def _node(data: HostData, node: NumaNode) -> Node:
    pinned = {cpu: container for container, cpus in sorted(data.pins.items()) for cpu in cpus}
    cores = tuple(Core(tuple((cpu, pinned.get(cpu)) for cpu in sorted(core))) for core in node.siblings)
    here = [device for device in data.inventory.devices if device.numa_node == node.id]
    return Node(node.id, node.socket, node.memory, cores, _groups(data, here))


def _groups(data: HostData, devices: Sequence[Device]) -> tuple[Group, ...]:
    """Group whole cards by switch; virtual functions and parts are drawn in their cards."""
    ids = {device.id for device in devices}
    found: dict[tuple[str, str | None], list[Card]] = {}
    for device in devices:
        if device.kind not in PARTS and not (device.role is Role.VF and device.parent in ids):
            found.setdefault(way_up(data.directories.get(device.address, "")), []).append(_card(data, device))
    groups = [Group(switch, bridge, tuple(sorted(cards, key=lambda card: (card.kind is not Kind.GPU, card.id))))
              for (bridge, switch), cards in found.items()]
    return tuple(sorted(groups, key=lambda group: (group.switch is None, group.cards[0].id)))


def way_up(directory: str) -> tuple[str, str | None]:
    """Return the host bridge of a function, and the upstream port of the switch directly above it.

    :param directory: in sysfs: host bridge, root port, and for each switch its upstream and downstream port
    """
    parts = directory.split("/")[3:]
    bridges = parts[1:-1]
    return parts[0].removeprefix("pci") if parts else "", bridges[-2] if len(bridges) >= 3 else None


def _card(data: HostData, device: Device) -> Card:
    status, owner = _state(data, device)
    record = data.records.get(device.id)
    trouble = (*((f"blocked: {record.blocked}",) if record and record.blocked else ()), *device.health)
    parts = tuple(_part(data, part) for part in data.inventory.devices
                  if part.parent == device.id and (part.kind in PARTS or part.role is Role.VF))
    links = sorted((peer, count) for pair, count in data.links.items() if device.id in pair
                   for peer in pair - {device.id})
    return Card(device.id, device.kind, _title(device), tuple(_about(device)), status, owner, trouble, parts,
                tuple(links))


def _part(data: HostData, device: Device) -> Part:
    status, owner = _state(data, device)
    label = f"VF {device.vf_index}" if device.role is Role.VF else device.id.partition("/")[2]
    if device.slice and device.slice.profile:
        label = f"{label} {device.slice.profile}"
    return Part(device.id, label, status, owner)


def _state(data: HostData, device: Device) -> tuple[Status, str | None]:
    record = data.records.get(device.id)
    owner = record.consumer.container if record else None
    if record and record.blocked:
        return Status.BLOCKED, owner
    if not device.sound:
        return Status.SICK, owner
    if record:
        return (Status.CLEANING if record.state is State.CLEANING else Status.HELD), owner
    if not device.healthy:
        return Status.SICK, None
    return (Status.HOST if device.host_use else Status.FREE), None


def _title(device: Device) -> str:
    if device.kind is not Kind.NET:
        return device.model or f"{device.vendor_id}:{device.product_id}"
    name = device.netdev or ("interface elsewhere" if device.netdev_away else "no interface")
    return f"{name} {device.link_layer or ''}".strip()


def _about(device: Device) -> Iterable[str]:
    yield device.address
    if device.memory:
        yield f"{device.memory / (1 << 30):.0f} GiB"
    if device.rdma:
        yield device.rdma.ibdev
        if device.rdma.port_state:
            yield device.rdma.port_state


def _owners(node: Node) -> Iterable[str]:
    cards = [card for group in node.groups for card in group.cards]
    yield from (owner for core in node.cores for _, owner in core.threads if owner)
    held: list[Card | Part] = [*cards, *(part for card in cards for part in card.parts)]
    yield from (one.owner for one in held if one.owner and one.status is Status.HELD)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
