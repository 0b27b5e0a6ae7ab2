# SPDX-License-Identifier: Apache-2.0
"""Read a host and build its map."""

from collections.abc import Mapping

from containerhost.allocation.store import Allocation
from containerhost.devices import pci
from containerhost.devices.model import Kind
from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from containerhost.linux.process.pins import pins
from containerhost.linux.sysfs import Host
from containerhost.operator.drawing.hostmap import HostData, HostMap, hostmap
from containerhost.operator.reports import choices


def read_map(host: Host, records: Mapping[str, Allocation]) -> HostMap:
    """Return the map of a host."""
    inventory = scan(host)
    return hostmap(HostData(
        inventory=inventory, topology=topology.read(host), records=records, pins=pins(host),
        links=choices.links(device.id for device in inventory.devices if device.kind is Kind.GPU) if host.live else {},
        directories={device.address: pci.directory(host, device.address) for device in inventory.devices}))
