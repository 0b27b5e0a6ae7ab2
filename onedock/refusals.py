"""What is refused because of what OpenNebula is doing with the VM, and why. Pure.

A container's root follows its VM as an image; its memory cannot.
"""

from onedriver.errors import DriverError, NotSupported
from onedriver.node import changes
from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h).
SHUTDOWN = 12  # the VM ends; what a persistent image is to keep is saved
WITH_MEMORY = {5: "stopped (onevm stop)", 7: "migrated with its memory"}
LEAVING = frozenset({7, 29})  # a shut-down VM goes to another host, or is undeployed
STAYING = frozenset({6, 18})  # suspend, poweroff

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
    before = changes.RESUMING.get(vm.lcm_state)
    if before and not kept:
        raise DriverError(f"VM {vm.id} was {before}, but its container, with what it wrote, is not on this host any "
                          "more; recreate it (onevm recover --recreate) if its content may be lost")
