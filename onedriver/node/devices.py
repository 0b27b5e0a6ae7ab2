"""The PCI devices the core chose for a VM, as requests for possession. Pure, apart from the inventory it is given.

The core can hand out a device twice, or none where one was asked for: what has no address, or one that this host does
not have, or names another device than was asked for, is refused.
"""

from collections.abc import Iterable

from containerhost.devices.model import Device, Kind, LinkLayer
from containerhost.devices.scan import Inventory
from containerhost.grants import GrantOptions
from containerhost.possession import Request
from onedriver.errors import BadInput, NotSupported
from onedriver.node.options import DeviceOptions
from onedriver.pciaddress import slice_product
from onedriver.vm import Pci


def requests(pcis: Iterable[Pci], inventory: Inventory, options: DeviceOptions) -> tuple[Request, ...]:
    """:raises DeviceNotFound: an address is not of this host
    :raises BadInput: an address is missing, or belongs to another kind of device than was asked for
    """
    return tuple(request(pci, inventory, options) for pci in pcis)


def request(pci: Pci, inventory: Inventory, options: DeviceOptions) -> Request:
    device = inventory.get(pci.chosen().device_id)
    require_same(pci, device)
    if device.kind is not Kind.NET:
        return Request(device.id, GrantOptions(gpu_capabilities=frozenset(options.gpu_capabilities)))
    if pci.vlan_id:
        raise NotSupported(f"network function {device.id} is to be in VLAN {pci.vlan_id}; this driver does not set "
                           "VLANs of functions")
    return Request(device.id, GrantOptions(
        netdev_name=interface(pci, device), management_nodes=options.management_nodes, memlock=options.memlock,
        node_guid=pci.node_guid, port_guid=pci.port_guid))


def require_same(pci: Pci, device: Device) -> None:
    for key, asked, found in (("VENDOR", pci.vendor, device.vendor_id), ("DEVICE", pci.device, product(device)),
                              ("CLASS", pci.class_code, device.class_code[:4])):
        if asked is not None and asked != found:
            raise BadInput(f"the VM was given device {device.id} for {key} {asked}, but on this host it is {found}: "
                           "the host's PCI devices in OpenNebula are out of date")
    if pci.uuid and device.uuid and pci.uuid.lower() != device.uuid.lower():
        raise BadInput(f"the VM was given {pci.uuid} at {device.id}, where this host has {device.uuid} now")


def product(device: Device) -> str:
    return slice_product(device.slice.profile) if device.slice else device.product_id


def interface(pci: Pci, device: Device) -> str:
    """By NIC_ID where OpenNebula sees a NIC, else by PCI_ID: a device keeps its name whichever others come and go."""
    prefix = "ib" if device.link_layer is LinkLayer.INFINIBAND else "eth"
    return f"{prefix}{pci.nic_id}" if pci.nic_id is not None else f"{prefix}p{pci.id or 0}"
