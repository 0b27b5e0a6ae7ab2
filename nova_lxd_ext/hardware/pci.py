# SPDX-License-Identifier: Apache-2.0
"""Translate the inventory for nova's PCI tracker (``pci_passthrough_devices``, nova/objects/pci_device.py). Pure."""

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nova.objects.fields import PciDeviceType

from containerhost.allocation.store import Allocation
from containerhost.devices.model import PARTS, Device, Role, divided
from containerhost.inventory.scan import Inventory

DRIVER: Final = "nova"

TYPES: Final = {
    Role.PF: PciDeviceType.SRIOV_PF,
    Role.VF: PciDeviceType.SRIOV_VF,
    Role.PLAIN: PciDeviceType.STANDARD,
}


class Reason(enum.StrEnum):
    """Name the reason why a function of this host is unavailable to nova's servers, as a trait in Placement."""

    SICK = "CUSTOM_DEVICE_SICK"
    TAINTED = "CUSTOM_DEVICE_TAINTED"
    UNCLEAN = "CUSTOM_DEVICE_UNCLEAN"
    ELSEWHERE = "CUSTOM_DEVICE_USED_ELSEWHERE"


#: A function, as nova would be told of it, and why it is not.
Reserved = tuple[Device, dict[str, Any], Reason]


def passthrough(inventory: Inventory, records: Mapping[str, Allocation],
                one_time_use: Callable[[Mapping[str, Any]], bool] = lambda entry: False) -> list[dict[str, Any]]:
    """Return the whole PCI functions that nova may allocate, including those its servers hold.

    A GPU that is divided into slices, or shared, is not available as a whole.

    :param one_time_use: whether an entry is a device whose reservation would be lost if it were not reported
    """
    return [entry for _, entry, reason in _whole(inventory, records) if reason is None or one_time_use(entry)]


def reserved(inventory: Inventory, records: Mapping[str, Allocation]) -> list[Reserved]:
    """Return all other whole PCI functions of the host, and those reported only as one-time-use devices."""
    return [(device, entry, reason) for device, entry, reason in _whole(inventory, records) if reason is not None]


def _whole(inventory: Inventory, records: Mapping[str, Allocation],
           ) -> Iterator[tuple[Device, dict[str, Any], Reason | None]]:
    cut = {device.parent for device in inventory.devices if device.kind in PARTS} | divided(records)
    for device in inventory.devices:
        if device.kind not in PARTS and device.id not in cut:
            yield device, _entry(device), _why_reserved(device, records.get(device.id))


def _why_reserved(device: Device, record: Allocation | None) -> Reason | None:
    """Return why a device is reserved; None if a server holds it, which stays reported in any state.

    Its interface is in the container, it may have failed since, and nova would only warn that it cannot remove it. A
    device that was not cleaned belongs to no server."""
    if record is not None and record.blocked is not None:
        return Reason.UNCLEAN
    if record is not None:
        return None if record.consumer.driver == DRIVER else Reason.ELSEWHERE
    if not device.healthy:
        return Reason.TAINTED if device.sound and device.taint else Reason.SICK
    return Reason.ELSEWHERE if device.host_use or device.netdev_away else None


def _entry(device: Device) -> dict[str, Any]:
    return {
        "dev_id": "pci_" + device.address.replace(":", "_").replace(".", "_"),
        "address": device.address,
        "vendor_id": device.vendor_id,
        "product_id": device.product_id,
        "label": f"label_{device.vendor_id}_{device.product_id}",
        "numa_node": device.numa_node,
        "dev_type": TYPES[device.role],
        "parent_addr": device.parent,
    }
