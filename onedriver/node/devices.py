# SPDX-License-Identifier: Apache-2.0
"""Translate the PCI devices that the core chose for a VM to allocation requests. Pure, given the inventory.

The core may assign a device twice, or none for a request: requests without an address, with an address that this
host does not have, or with a mismatching device are refused.
"""

from collections.abc import Iterable

from containerhost.allocation.refusals import Request
from containerhost.devices import migprofile
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.inventory.scan import Inventory
from onedriver.errors import BadInput, NotSupported
from onedriver.node.options import NodeOptions
from onedriver.pciaddress import share_product
from onedriver.vm import Pci

KILOBYTES_PER_MEGABIT = 125
UNKNOWN_SLICE = "f000"
_SHORT = {"": "f", "+me": "e"}  # suffix -> first digit of a four-digit number


def requests(pcis: Iterable[Pci], inventory: Inventory, options: NodeOptions) -> tuple[Request, ...]:
    """Return the allocation requests for a VM's devices.

    :raises DeviceNotFound: an address is not on this host
    :raises BadInput: an address is missing, or belongs to another kind of device than requested
    """
    return tuple(request(pci, inventory, options) for pci in pcis)


def request(pci: Pci, inventory: Inventory, options: NodeOptions) -> Request:
    device = inventory.get(pci.chosen().device_id)
    require_same(pci, device)
    if device.kind is not Kind.NET:
        return Request(device.id, GrantOptions(gpu_capabilities=frozenset(options.gpu_capabilities)))
    switched = is_switched(pci, device)
    return Request(device.id, GrantOptions(
        netdev_name=interface(pci, device), management_nodes=options.management_nodes, memlock=options.memlock,
        node_guid=pci.node_guid, port_guid=pci.port_guid, mac=pci.mac if switched else None,
        vlan=(pci.vlan_id or 0) if switched else 0, spoof_check=pci.spoof_check if switched else None,
        trust=pci.trust if switched else None, max_tx_rate=rate(pci)))


def rate(pci: Pci) -> int | None:
    """Return a function's transmit limit in Mbit/s, rounded down; raise NotSupported if it is below 1."""
    if pci.sent is None:
        return None
    if pci.sent < KILOBYTES_PER_MEGABIT:
        raise NotSupported(f"PCI device {pci.id} has OUTBOUND_AVG_BW={pci.sent}, but a card limits its functions in "
                           f"Mbit/s: it must be at least {KILOBYTES_PER_MEGABIT} KB/s")
    return pci.sent // KILOBYTES_PER_MEGABIT


def is_switched(pci: Pci, device: Device) -> bool:
    """Return whether the card's switch enforces a MAC and a VLAN: the function is an Ethernet VF used as NIC.

    :raises NotSupported: the element requests enforcement that is not supported
    """
    if device.role is Role.VF and device.link_layer is LinkLayer.ETHERNET and pci.mac is not None:
        return True
    wanted = [f"{key}={value}" for key, value in (("VLAN_ID", pci.vlan_id), ("SPOOFCHK", pci.spoof_check),
                                                  ("TRUST", pci.trust)) if value]
    if wanted:
        raise NotSupported(f"network function {device.id} requests {', '.join(wanted)}, which requires a virtual "
                           "function of an Ethernet card that is a NIC with a MAC (TYPE=NIC)")
    return False


def require_same(pci: Pci, device: Device) -> None:
    for key, asked, found in (("VENDOR", pci.vendor, device.vendor_id), ("DEVICE", pci.device, product(device)),
                              ("CLASS", pci.class_code, device.class_code[:4])):
        if asked is not None and asked != found:
            raise BadInput(f"the VM was given device {device.id} for {key} {asked}, but on this host it is {found}: "
                           "the host's PCI devices in OpenNebula are out of date")
    if pci.uuid and device.uuid and pci.uuid.lower() != device.uuid.lower():
        raise BadInput(f"the VM was given {pci.uuid} at {device.id}, but this host has {device.uuid} there now")


def product(device: Device) -> str:
    if device.kind is Kind.GPU_SHARE:
        return share_product(device.product_id)
    return slice_product(device.slice.profile) if device.slice else device.product_id


def slice_product(profile: str | None) -> str:
    """Return the product number of a slice of this profile; UNKNOWN_SLICE for an unknown profile.

    The numbers are described in :mod:`onedriver.pciaddress`.
    """
    found = migprofile.parse(profile)
    if found is None:
        return UNKNOWN_SLICE
    if found.part is None and found.suffix in _SHORT and found.memory <= 0xFF:
        return f"{_SHORT[found.suffix]}{found.slices}{found.memory:02x}"
    return f"f{migprofile.SUFFIXES.index(found.suffix)}{found.part or 0}{found.slices}{found.memory:04x}"


def interface(pci: Pci, device: Device) -> str:
    """Name a device's interface by NIC_ID if it is a NIC for OpenNebula, otherwise by PCI_ID."""
    prefix = "ib" if device.link_layer is LinkLayer.INFINIBAND else "eth"
    return f"{prefix}{pci.nic_id}" if pci.nic_id is not None else f"{prefix}p{pci.id or 0}"
