# SPDX-License-Identifier: Apache-2.0
"""Return what is removed with a VM, and what is unsupported and why, by its LCM_STATE. Pure."""

from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h) in which the VM leaves its host with its state: stop; migrate; undeploy.
LEAVING = frozenset({5, 7, 29})
RESTORING = 21  # … in which a suspended VM starts again
# … in which the core forces its end and removes its disks (onevm recover --delete or --recreate).
CLEANUP = frozenset({15, 23})
# … in which its disks, unless persistent, are discarded: a first boot that failed; terminate.
LAST = frozenset({2, 12}) | CLEANUP


def leaves(vm: Vm) -> bool:
    return vm.lcm_state in LEAVING


def keeps_root(vm: Vm) -> bool:
    """Return whether the content of a VM's root is needed after its end."""
    return vm.lcm_state not in LAST or (vm.is_persistent and vm.lcm_state not in CLEANUP)


UNSUPPORTED: dict[str, str] = {}  # all actions are supported
