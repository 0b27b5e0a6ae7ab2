# SPDX-License-Identifier: Apache-2.0
"""Determine the PCI connection between two devices, in the terms of GPUs' tools.

GPUDirect RDMA is fast between a GPU and a network function behind the same PCIe switch (``PIX``, ``PXB``), works
over one host bridge (``PHB``) or NUMA node (``NODE``), and is slow across sockets (``SYS``). The cloud chooses
devices; this reports the alternatives.
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Sequence

from containerhost.devices import pci
from containerhost.devices.model import Device, Kind, Role
from containerhost.inventory.scan import Inventory
from containerhost.linux.sysfs import Host

_NODES = "/sys/devices/system/node"


class Way(enum.StrEnum):
    """Name the levels of proximity, nearest first.

    ``PIX``: at most one PCIe bridge or switch; ``PXB``: several; ``PHB``: a host bridge; ``NODE``: the link between
    host bridges of one NUMA node; ``SYS``: that between NUMA nodes.
    """

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


ORDER = tuple(Way)


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """Describe the connection between a GPU and a network function by PCIe and NUMA nodes."""

    gpu: str
    function: str
    way: Way


def connections(inventory: Inventory, host: Host) -> tuple[Connection, ...]:
    """Return the connection of each GPU with each network function. Slices are where their GPU is."""
    gpus = [device for device in inventory.devices if device.kind is Kind.GPU]
    functions = [device for device in inventory.devices if device.kind is Kind.NET]
    places = {device.id: pci.directory(host, device.address) for device in (*gpus, *functions)}
    one_node = sum(name.startswith("node") and name[4:].isdigit() for name in host.names(_NODES)) < 2
    return tuple(Connection(gpu.id, function.id, way(places[gpu.id], places[function.id],
                                                     one_node or near(gpu, function)))
                 for gpu in gpus for function in functions)


def nearest(found: Iterable[Connection], function: str) -> tuple[str, ...]:
    """Return the ids of the GPUs that are nearest to a network function."""
    mine = [connection for connection in found if connection.function == function]
    best = min((ORDER.index(connection.way) for connection in mine), default=0)
    return tuple(connection.gpu for connection in mine if ORDER.index(connection.way) == best)


def cards(inventory: Inventory) -> tuple[Device, ...]:
    """Return one network function of each card: VFs are as near as their physical function."""
    return tuple(device for device in inventory.devices if device.kind is Kind.NET and device.role is not Role.VF)


def common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return how many leading components two paths share."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def near(one: Device, other: Device) -> bool:
    return one.numa_node is not None and one.numa_node == other.numa_node


def way(one: str, other: str, one_node: bool) -> Way:
    """Return the connection between two devices.

    :param one, other: directories in /sys/devices: host bridge, bridges on the way, function
    """
    left, right = (path.split("/")[3:] for path in (one, other))
    shared = common(left[:-1], right[:-1])
    if shared == 0:
        return Way.NODE if one_node else Way.SYS
    if shared == 1:
        return Way.PHB  # both paths share only the host bridge
    # Below the shared part, each path has at most the port of the switch.
    return Way.PIX if max(len(left), len(right)) - shared <= 2 else Way.PXB
