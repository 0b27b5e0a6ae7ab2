# SPDX-License-Identifier: Apache-2.0
"""Return what is unsupported, and why, by OpenNebula's state of the VM (LCM_STATE). Pure.

A container's root can move with its VM as an image, but not its memory.
"""

from onedriver.errors import NotSupported
from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h).
SHUTDOWN = 12  # the VM ends; what a persistent image is to keep is saved
WITH_MEMORY = {5: "stopped (onevm stop)", 7: "migrated with its memory"}
CLEANUP = frozenset({15, 23})  # the core forces its end and removes its disks (onevm recover --delete or --recreate)
LEAVING = frozenset({7, 29})  # a shut-down VM goes to another host, or is undeployed

UNSUPPORTED: dict[str, str] = {}  # all actions are supported
RESUMED = frozenset({19, 20, 21})  # a VM that was unknown, off or suspended was to run, and a later step failed


def of_taking_memory_along(vm: Vm) -> None:
    what = WITH_MEMORY.get(vm.lcm_state)
    if what:
        raise NotSupported(f"VM {vm.id} cannot be {what}: the memory of a container cannot follow it; undeploy it, or "
                           "migrate it powered off (onevm undeploy, onevm migrate --poff)")


def resumed(vm: Vm) -> bool:
    """Return whether the VM returns to its state before the start, so that its container is still needed."""
    return vm.lcm_state in RESUMED


def keeps(vm: Vm, persistent: bool) -> bool:
    """Return whether the VM's data is needed after its container."""
    return vm.lcm_state in LEAVING or (persistent and vm.lcm_state == SHUTDOWN)
