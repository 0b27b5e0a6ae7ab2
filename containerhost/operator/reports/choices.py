# SPDX-License-Identifier: Apache-2.0
"""Report which free devices of a host to choose together, and how to request them from a cloud."""

from collections.abc import Iterable, Mapping
from typing import Any

from containerhost import vendors
from containerhost.inventory.devicechoice import Candidate, Choice, Links
from containerhost.inventory.scan import Inventory


def links(gpus: Iterable[str]) -> Links:
    """Return the direct links between GPUs of this host, as their vendors' libraries report."""
    known = set(gpus)
    return {pair: count for vendor in vendors.load() for pair, count in vendor.links().items() if pair <= known}


def trait(candidate: Candidate) -> str:
    """Return a Placement trait that names the bridge above the device."""
    return f"CUSTOM_PCIE_{candidate.switch[-1].upper().translate(str.maketrans(':.', '__'))}"


def rows(choice: Choice, inventory: Inventory) -> dict[str, Any]:
    """Return the choice as JSON values, with how to request it from each cloud."""
    devices = [inventory.get(each.id) for each in choice.devices]
    return {
        "devices": [{"id": each.id, "path": list(each.path), "numa_node": each.numa_node} for each in choice.devices],
        "nearness": choice.nearness.name.lower(), "links": choice.links, "reason": choice.reason,
        "opennebula": [f'PCI=[SHORT_ADDRESS="{device.address.partition(":")[2]}"]' for device in devices],
        "device_spec": [{"address": device.address, "traits": trait(each)}
                        for device, each in zip(devices, choice.devices, strict=True)]}


def text(found: Mapping[str, Any]) -> str:
    lines = [f"{each['id']}  {'/'.join(each['path'])}" for each in found["devices"]]
    spec = [f'device_spec = {{"address": "{entry["address"]}", "traits": "{entry["traits"]}"}}'
            for entry in found["device_spec"]]
    return "\n".join([*lines, f"reason: {found['reason']}", "", "OpenNebula, in the template:", *found["opennebula"],
                      "", "nova.conf, [pci], for aliases with the same traits:", *spec])
