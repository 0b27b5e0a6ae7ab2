# SPDX-License-Identifier: Apache-2.0
"""Name a VM on its node, and find the part of an action, for every engine."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from containerhost.allocation.store import Consumer
from onedriver.errors import BadInput
from onedriver.node.names import name
from onedriver.vm import Disk, Nic, Pci

if TYPE_CHECKING:
    from onedriver.actions import Call

LOG = logging.getLogger(__name__)


def consumer(driver: str, engine: str, vm_id: int) -> Consumer:
    """Return the VM as a consumer of the allocation records."""
    return Consumer(driver=driver, engine=engine, container=name(vm_id), uuid=str(vm_id))


def own_name(call: "Call") -> str:
    """Return the name of the VM's container; raise BadInput if OpenNebula has another name for it."""
    own = name(call.vm_id)
    if call.deploy_id not in ("", "-", own):
        raise BadInput(f"VM {call.vm_id} has the deploy id {call.deploy_id[:60]!r}, but its container is {own}")
    return own


def complain(complaints: Sequence[str]) -> None:
    """Log that a device could not be cleaned. It stays blocked; ending the VM does not wait for its repair."""
    for complaint in complaints:
        LOG.error("A released device is blocked: %s", complaint)


def attached(call: "Call") -> Nic | Pci:
    """Return the NIC or device of attach_nic or detach_nic."""
    everything: tuple[Nic | Pci, ...] = (*call.vm.nics, *call.vm.pcis)
    marked = [part for part in everything if part.attach]
    if len(marked) != 1:
        raise BadInput(f"{call.action}: {len(marked)} NICs and PCI devices of VM {call.vm_id} are marked ATTACH, but "
                       "one was expected")
    return marked[0]


def attached_disk(call: "Call") -> Disk:
    """Return the disk of attach_disk or detach_disk."""
    marked = [disk for disk in call.vm.disks if disk.attach]
    if len(marked) != 1:
        raise BadInput(f"{call.action}: {len(marked)} disks of VM {call.vm_id} are marked ATTACH, but one was expected")
    return marked[0]
