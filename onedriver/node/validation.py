# SPDX-License-Identifier: Apache-2.0
"""Validate the changes of a VM, the same with every engine. Pure."""

import re
from collections.abc import Mapping

from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h) in which a VM's container is to stay on its host: poweroff; suspend.
STAYING = frozenset({6, 18})
# … in which a VM starts that ran before.
BOOT_STOPPED = 22
RESUMING = {19: "unknown", 20: "powered off", 21: "suspended", BOOT_STOPPED: "stopped", 32: "undeployed",
            35: "migrated"}
SNAPSHOT_NUMBER = re.compile(r"[0-9]{1,9}")


def of_action(action: str, unsupported: Mapping[str, str]) -> None:
    """Refuse an action that is not supported.

    :param unsupported: why, by action
    """
    if action in unsupported:
        raise NotSupported(unsupported[action])


def stays(vm: Vm) -> bool:
    return vm.lcm_state in STAYING


def of_a_new_container(vm: Vm, kept: bool = False) -> None:
    """Refuse a new container where the VM's own would be needed.

    :param kept: its disk is what the VM wrote before
    :raises DriverError: it is not, so a new container would silently lose that
    """
    before = RESUMING.get(vm.lcm_state)
    if before and not kept:
        raise DriverError(f"VM {vm.id} was {before}, but its container, with what it wrote, is not on this host any "
                          "more; recreate it (onevm recover --recreate) if its content may be lost")


def of_shrinking(name: str, size: int, used: int) -> None:
    """Refuse to shrink memory below what is in use.

    :param size, used: bytes
    """
    if used > size:
        raise DriverError(f"container {name} uses {used >> 20} MiB of memory, more than the {size >> 20} MiB it is to "
                          "have; nothing was changed")


def snapshot_number(text: str) -> int:
    if not SNAPSHOT_NUMBER.fullmatch(text):
        raise BadInput(f"{text[:60]!r} is no snapshot of this driver")
    return int(text)
