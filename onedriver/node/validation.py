# SPDX-License-Identifier: Apache-2.0
"""Validate changes of a VM, for every engine. Pure."""

import re
from collections.abc import Mapping

from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node.names import name
from onedriver.vm import MIB, Disk, Nic, Vm

# LCM states (OpenNebula's VirtualMachine.h) in which the container stays on its host: poweroff; suspend.
STAYING = frozenset({6, 18})
# … in which a VM starts again.
BOOT_STOPPED = 22
RESUMING = {19: "unknown", 20: "powered off", 21: "suspended", BOOT_STOPPED: "stopped", 32: "undeployed",
            35: "migrated"}
SNAPSHOT_NUMBER = re.compile(r"[0-9]{1,9}")
SIZE = re.compile(r"[1-9][0-9]{0,8}")


def of_action(action: str, unsupported: Mapping[str, str]) -> None:
    """Refuse an action that is not supported, with the reason."""
    if action in unsupported:
        raise NotSupported(unsupported[action])


def stays(vm: Vm) -> bool:
    return vm.lcm_state in STAYING


def of_a_new_container(vm: Vm, kept: bool = False) -> None:
    """Refuse a new container if the VM's own one is required.

    :param kept: its disk has the VM's data
    :raises DriverError: it has not, so a new container would silently lose the data
    """
    before = RESUMING.get(vm.lcm_state)
    if before and not kept:
        raise DriverError(f"VM {vm.id} was {before}, but its container, with its data, is no longer on this host; "
                          "recreate it (onevm recover --recreate) if its content may be lost")


def of_shrinking(name: str, size: int, used: int) -> None:
    """Refuse to shrink memory below the used bytes."""
    if used > size:
        raise DriverError(f"container {name} uses {used >> 20} MiB of memory, more than the {size >> 20} MiB of its "
                          "new size; nothing was changed")


def bridge(vm_id: int, nic: Nic) -> str:
    """Return a NIC's bridge; raise BadInput without one, or if OpenNebula's drivers do not know the NIC's name."""
    own = f"{name(vm_id)}-{nic.id}"
    if nic.bridge is None:
        raise BadInput(f"NIC {nic.id} of VM {vm_id} has no BRIDGE to be plugged into")
    if nic.target != own:
        raise BadInput(f"NIC {nic.id} of VM {vm_id} must be named {nic.target} on the host, but is {own}")
    return nic.bridge


def disk_size(vm: Vm, disk_id: str, size: str) -> tuple[Disk, int]:
    """Return the disk to resize, and its bytes.

    :param size: MiB
    :raises BadInput: the VM has no such disk
    """
    found = next((disk for disk in vm.disks if str(disk.id) == disk_id), None)
    if found is None or not SIZE.fullmatch(size):
        raise BadInput(f"VM {vm.id} has no disk {disk_id[:60]!r} that could be of {size[:60]!r} MiB")
    return found, int(size) * MIB


def snapshot_number(text: str) -> int:
    if not SNAPSHOT_NUMBER.fullmatch(text):
        raise BadInput(f"{text[:60]!r} is not a snapshot of this driver")
    return int(text)
