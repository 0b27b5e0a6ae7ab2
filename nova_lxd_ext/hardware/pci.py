"""The inventory in the words of nova's PCI tracker (``pci_passthrough_devices``, nova/objects/pci_device.py). Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nova.objects.fields import PciDeviceType

from containerhost.devices.model import PARTS, Device, Role
from containerhost.devices.scan import Inventory
from containerhost.owners import Record

DRIVER: Final = "nova"

TYPES: Final = {
    Role.PF: PciDeviceType.SRIOV_PF,
    Role.VF: PciDeviceType.SRIOV_VF,
    Role.PLAIN: PciDeviceType.STANDARD,
}


def passthrough(inventory: Inventory, records: Mapping[str, Record],
                one_time_use: Callable[[Mapping[str, Any]], bool] = lambda entry: False) -> list[dict[str, Any]]:
    """The whole PCI functions that nova may give to servers, those its servers hold included.

    A GPU that is cut into slices, or shared, is no use as a whole.

    :param records: who holds what, by device id
    :param one_time_use: whether an entry is a device whose reservation would be lost if it were not reported
    """
    cut = {device.parent for device in inventory.devices if device.kind in PARTS}
    whole = ((device, _entry(device)) for device in inventory.devices
             if device.kind not in PARTS and device.id not in cut)
    return [entry for device, entry in whole if _for_nova(device, records.get(device.id)) or one_time_use(entry)]


def _for_nova(device: Device, record: Record | None) -> bool:
    """A device that a server holds stays reported whatever it looks like now: its interface is in the container, it may
    have broken since. Nova would only warn that it cannot drop it. One that was not cleaned is nobody's.
    """
    if record is not None:
        return record.blocked is None and record.owner.driver == DRIVER
    return device.healthy and not device.host_use and not device.netdev_away


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
