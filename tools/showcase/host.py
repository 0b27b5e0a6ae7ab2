# SPDX-License-Identifier: Apache-2.0
"""Show the host's own report: its devices, their consumers, its NUMA nodes, by the code that operators use."""

import dataclasses
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import CharNode, Device, NodeUse
from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator.drawing.hostmap import HostMap
from containerhost.operator.drawing.hostreader import read_map


@dataclasses.dataclass(frozen=True)
class HostView:
    """:ivar owners: device id -> name of the container that holds it
    :ivar cpus: NUMA node -> its CPUs
    """

    devices: dict[str, Device]
    owners: dict[str, str]
    cpus: dict[int, frozenset[int]]

    def held_by(self, container: str) -> list[Device]:
        return [self.devices[device] for device, owner in sorted(self.owners.items())
                if owner == container and device in self.devices]


def look(owners: Path) -> HostView:
    """:param owners: directory of the allocation records"""
    records = AllocationStore(owners).records()
    return HostView(
        devices={device.id: device for device in scan().devices},
        owners={record.device_id: record.consumer.container for record in records.values()},
        cpus={node.id: node.cpus for node in topology.read().nodes})


def drawn(owners: Path) -> HostMap:
    """:param owners: directory of the allocation records"""
    return read_map(Host(), AllocationStore(owners).records())


def tenant_nodes(device: Device) -> list[CharNode]:
    """Return the character nodes that only the container with this device may have."""
    return [node for node in device.nodes if node.use is NodeUse.OWN]
