# SPDX-License-Identifier: Apache-2.0
"""Plan the changes that give each card its wanted number of virtual functions. Pure.

The kernel changes the number of a card's functions only from 0 (Documentation/PCI/pci-iov-howto.rst), so every
change of another number first removes all functions of the card, and is refused while one of them is in use.
"""

import dataclasses
from collections.abc import Collection, Mapping

from containerhost.devices.health.basics import reserves
from containerhost.devices.model import Device, Kind, Role
from containerhost.errors import DeviceHeld, SpecError
from containerhost.inventory.scan import Inventory


@dataclasses.dataclass(frozen=True)
class Change:
    """Describe a card's change to its wanted number of virtual functions; equal numbers change nothing."""

    address: str
    before: int
    after: int

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.address}: {self.after} virtual functions, as wanted: nothing to do"
        return f"{self.address}: {self.after} virtual functions instead of {self.before}"


def plan(inventory: Inventory, counts: Mapping[str, int], held: Collection[str]) -> tuple[Change, ...]:
    """Return the change of each card of the file, in order.

    :param held: ids of the devices that containers have
    :raises DeviceNotFound: this host has no such card
    :raises SpecError: the device can have no virtual functions, or not that many
    :raises DeviceHeld: functions to remove are in use
    """
    return tuple(_change(inventory, address, count, held) for address, count in counts.items())


def functions_of(inventory: Inventory, address: str) -> tuple[Device, ...]:
    return tuple(device for device in inventory.devices if device.parent == address and device.role is Role.VF)


def in_use(function: Device, held: Collection[str]) -> str | None:
    """Describe who uses a virtual function; None if it is unused."""
    if function.id in held:
        return "a container has it"
    if function.netdev_away or (function.rdma and function.rdma.away):
        return "its interface is in another network namespace"
    if function.host_use:
        return f"the host uses it: {'; '.join(function.host_use)}"
    if function.driver and reserves(function.driver):
        return f"{function.driver} keeps it for a virtual machine"
    return None


def _change(inventory: Inventory, address: str, count: int, held: Collection[str]) -> Change:
    card = inventory.get(address)
    if card.kind is not Kind.NET or card.role is not Role.PF:
        raise SpecError(f"device {address} cannot have virtual functions: it is not a physical function of a network "
                        "card with SR-IOV; enable it in the card's firmware if the card has it")
    if count > card.total_vfs:
        raise SpecError(f"card {address} can have {card.total_vfs} virtual functions, not {count}; its firmware sets "
                        "the maximum")
    there = functions_of(inventory, address)
    if there and count != len(there):
        used = [f"{function.id} ({use})" for function in there if (use := in_use(function, held))]
        if used:
            raise DeviceHeld(f"card {address} has {len(there)} virtual functions and needs {count}, for which the "
                             f"kernel removes all first, but some are in use: {', '.join(used)}. Free them, or "
                             f"leave {len(there)} in the file")
    return Change(address, len(there), count)
