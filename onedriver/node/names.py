# SPDX-License-Identifier: Apache-2.0
"""Name a VM on its node, for every engine."""

from onedriver.vm import Vm

LABEL = "one.vm"  # on each container of a VM: id of the VM
STIME = "one.stime"  # likewise: start time of the VM in OpenNebula, see onedriver.vm.Vm.stime
PREFIX = "one-"


def labels(vm: Vm) -> dict[str, str]:
    return {LABEL: str(vm.id)} | ({STIME: str(vm.stime)} if vm.stime else {})


def name(vm_id: int) -> str:
    """Return the container's name, which is also the deploy id."""
    return f"{PREFIX}{vm_id}"
