"""What is refused because of what OpenNebula is doing with the VM, and why. Pure.

A container's root follows its VM as an image; its memory cannot.
"""

import re

from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h).
SHUTDOWN = 12  # the VM ends; what a persistent image is to keep is saved
WITH_MEMORY = {5: "stopped (onevm stop)", 7: "migrated with its memory"}
LEAVING = frozenset({7, 29})  # a shut-down VM goes to another host, or is undeployed
STAYING = frozenset({6, 18})  # suspend, poweroff
# … in which a VM starts that ran before.
RESUMING = {19: "unknown", 20: "powered off", 21: "suspended", 22: "stopped", 32: "undeployed"}
SNAPSHOT_NUMBER = re.compile(r"[0-9]{1,9}")

UNSUPPORTED = {
    "migrate": "a running container cannot move to another host; migrate it powered off (onevm migrate --poff)",
    "exec": "commands are not run in containers by this driver",
    "exec_cancel": "commands are not run in containers by this driver",
}


def of_action(action: str) -> None:
    if action in UNSUPPORTED:
        raise NotSupported(UNSUPPORTED[action])


def of_taking_memory_along(vm: Vm) -> None:
    what = WITH_MEMORY.get(vm.lcm_state)
    if what:
        raise NotSupported(f"VM {vm.id} cannot be {what}: the memory of a container cannot follow it; undeploy it, or "
                           "migrate it powered off (onevm undeploy, onevm migrate --poff)")


def stays(vm: Vm) -> bool:
    return vm.lcm_state in STAYING


def keeps(vm: Vm, persistent: bool) -> bool:
    """Whether what the VM wrote is needed after its container."""
    return vm.lcm_state in LEAVING or (persistent and vm.lcm_state == SHUTDOWN)


def of_a_new_container(vm: Vm, kept: bool) -> None:
    """:param kept: its disk is what the VM wrote before
    :raises DriverError: it is not, so a new container would silently lose that
    """
    before = RESUMING.get(vm.lcm_state)
    if before and not kept:
        raise DriverError(f"VM {vm.id} was {before}, but its container, with what it wrote, is not on this host any "
                          "more; recreate it (onevm recover --recreate) if its content may be lost")


def of_shrinking(name: str, size: int, used: int) -> None:
    """:param size, used: bytes"""
    if used > size:
        raise DriverError(f"container {name} uses {used >> 20} MiB of memory, more than the {size >> 20} MiB it is to "
                          "have; nothing was changed")


def snapshot_number(text: str) -> int:
    if not SNAPSHOT_NUMBER.fullmatch(text):
        raise BadInput(f"{text[:60]!r} is no snapshot of this driver")
    return int(text)
