# SPDX-License-Identifier: Apache-2.0
"""Check whether network cards can reach the memory of GPUs (GPUDirect RDMA), pair by pair.

There are two methods: DMA-BUF, which the GPU's driver exports and the RDMA subsystem imports, and a module of the
GPU's vendor that registers with an RDMA subsystem that supports it (``ib_register_peer_memory_client``).
"""

import dataclasses
import itertools
from collections.abc import Iterator

from containerhost import vendors
from containerhost.devices.findings import Finding, note
from containerhost.devices.model import Device, Kind
from containerhost.inventory import pci_topology
from containerhost.inventory.pci_topology import Way
from containerhost.operator.doctor.hostdata import HostData
from containerhost.vendors.base import PeerAccess

NAME = "gpudirect"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Describe a GPU, a network card, and how the card reaches the GPU's memory.

    :ivar method: ``dma-buf``, ``peer-memory``; None: the card cannot reach the GPU's memory
    """

    gpu: str
    function: str
    way: Way
    method: str | None


def pairs(data: HostData) -> tuple[Pair, ...]:
    """Return every pair of a whole GPU and an RDMA card."""
    gpus = {device.id: device for device in data.inventory.devices if device.kind is Kind.GPU}
    functions = {device.id for device in pci_topology.cards(data.inventory) if device.rdma}
    access = {name: method(peer_access(data, device)) for name, device in gpus.items()}
    return tuple(Pair(each.gpu, each.function, each.way, access[each.gpu])
                 for each in pci_topology.connections(data.inventory, data.host) if each.function in functions)


def check(data: HostData) -> Iterator[Finding]:
    gpus = {device.id: device for device in data.inventory.devices}
    unreachable: dict[str, list[str]] = {}
    for gpu, mine in itertools.groupby(pairs(data), lambda pair: pair.gpu):
        access, ways = peer_access(data, gpus[gpu]), [pair.way for pair in mine]
        if access is not None and method(access) is None:
            unreachable.setdefault(access.remedy, []).append(gpu)
        elif access is not None and all(way is Way.SYS for way in ways):
            yield note(NAME, gpu, "every RDMA card is on another NUMA node, so GPUDirect RDMA with it is slow",
                       "move the GPU or a card to a slot of the other's processor")
    for remedy, names in unreachable.items():
        yield note(NAME, ", ".join(names), "no network card can reach this memory by GPUDirect RDMA: neither DMA-BUF "
                   "nor a module for peer memory is there", remedy)


def method(access: PeerAccess | None) -> str | None:
    if access is None:
        return None
    return "dma-buf" if access.dma_buf else "peer-memory" if access.peer_memory else None


def peer_access(data: HostData, device: Device) -> PeerAccess | None:
    """Return how others reach the GPU's memory; None if its vendor does not report it."""
    return vendors.of(device)(data.host).peer_access()
