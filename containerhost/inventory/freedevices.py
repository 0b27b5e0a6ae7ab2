# SPDX-License-Identifier: Apache-2.0
"""Find the devices of a host that could be given to a container. Pure, apart from their paths in sysfs."""

from collections.abc import Mapping

from containerhost.devices import pci
from containerhost.devices.model import PARTS, Device, Kind, Role, divided
from containerhost.inventory.devicechoice import Candidate
from containerhost.inventory.scan import Inventory
from containerhost.linux.sysfs import Host

Ids = tuple[str, str]  # vendor and product ids


def candidates(inventory: Inventory, host: Host, records: Mapping[str, object], gpu: Ids | None = None,
               function: Ids | None = None) -> tuple[Candidate, ...]:
    """Return the free and healthy whole devices; for a network card with virtual functions, those."""
    cut = {device.parent for device in inventory.devices if device.kind in PARTS} | divided(records)
    found = []
    for device in inventory.devices:
        wanted = {Kind.GPU: gpu, Kind.NET: function}.get(device.kind)
        if is_free(device, records) and device.id not in cut and (
                wanted is None or wanted == (device.vendor_id, device.product_id)):
            path = tuple(pci.directory(host, device.address).split("/")[3:])
            found.append(Candidate(device.id, path, device.numa_node, device.kind is Kind.GPU))
    return tuple(found)


def is_free(device: Device, records: Mapping[str, object]) -> bool:
    return ((device.kind is Kind.GPU or (device.kind is Kind.NET and device.role is not Role.PF)) and device.healthy
            and not device.host_use and not device.netdev_away and device.id not in records)
