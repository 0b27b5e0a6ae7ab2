# SPDX-License-Identifier: Apache-2.0
"""Suggest processors and memory for each device, so that a host is used evenly. Pure."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from containerhost.devices.model import PARTS, Device, Kind, Role
from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import NumaNode, Topology
from containerhost.operator.suggest.offers import Offer, numa_nodes, offered, offers

HOST_SHARE = 8  # divisor of the memory: this share is left to the host
RDMA_SORTS = ("infiniband-vf", "roce-vf")
_MIB, _GIB = 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class Size:
    """Describe the resources of one container.

    :ivar memory: bytes, whole MiB
    :ivar near: all its resources fit on one NUMA node
    """

    devices: tuple[tuple[Offer, int], ...]
    cpus: int
    memory: int
    near: bool

    @property
    def name(self) -> str:
        return ".".join(f"{offer.name}.x{count}" for offer, count in self.devices)


def sizes(inventory: Inventory, topology: Topology) -> tuple[Size, ...]:
    """Return useful container sizes: one device of each offer; a GPU with an RDMA function; all GPUs of a NUMA node."""
    found = offers(inventory)
    return tuple(size for offer in found for size in _of(offer, found, inventory, topology))


def _of(offer: Offer, others: Sequence[Offer], inventory: Inventory, topology: Topology) -> Iterable[Size]:
    cpus, memory = share(offer, inventory, topology)
    near = None not in numa_nodes(offer.devices)
    yield Size(((offer, 1),), cpus, memory, near)
    if offer.sort != Kind.GPU:
        return
    count = min(collections.Counter(device.numa_node for device in offer.devices).values())  # on each node with one
    rdma = next((other for wanted in RDMA_SORTS for other in others
                 if other.sort == wanted and _beside(offer, other, 1)), None)
    if rdma:
        yield Size(((offer, 1), (rdma, 1)), cpus, memory, near)
    if count > 1 and near:
        functions = ((rdma, count),) if rdma and _beside(offer, rdma, count) else ()
        yield Size(((offer, count), *functions), cpus * count, memory * count, near)


def share(offer: Offer, inventory: Inventory, topology: Topology) -> tuple[int, int]:
    """Return the processors and bytes of memory for one device, on the node with the fewest.

    That is the capacity of its NUMA node, less the host's share of memory, divided by the devices of its kind there."""
    kind = offer.first.kind
    kinds = {Kind.NET} if kind is Kind.NET else {Kind.GPU, *PARTS}
    alike = [device for device in offered(inventory) if device.kind in kinds]
    shares = [_of_node(topology, node, alike) for node in numa_nodes(offer.devices)]
    return min(cpus for cpus, _ in shares), min(memory for _, memory in shares)


def _of_node(topology: Topology, node: int | None, alike: Iterable[Device]) -> tuple[int, int]:
    """Return one device's share of a node; without a node, of the whole host."""
    wanted: Sequence[NumaNode] = [each for each in topology.nodes if each.id == node] or topology.nodes
    count = max(1, sum(device.numa_node == node for device in alike))
    cpus = sum(len(each.cpus) for each in wanted) // count
    memory = sum(map(_small_pages, wanted)) * (HOST_SHARE - 1) // HOST_SHARE // count
    unit = _GIB if memory >= _GIB else _MIB
    return max(1, cpus), max(_MIB, memory // unit * unit)


def _small_pages(node: NumaNode) -> int:
    """Return the bytes of a node's memory outside huge pages, which need an explicit request."""
    return max(0, node.memory - sum(size * total for size, (total, _) in node.hugepages.items()))


def _beside(offer: Offer, other: Offer, count: int) -> bool:
    """Return whether each node with a device of the offer has that many of the other."""
    there = collections.Counter(device.numa_node for device in other.devices if device.role is Role.VF)
    return None not in numa_nodes(offer.devices) and all(there[node] >= count for node in numa_nodes(offer.devices))
