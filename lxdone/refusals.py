"""What is refused because of what OpenNebula is doing with the VM, and why. Pure.

A container's root disk and memory are in LXD and cannot follow a VM to another host or datastore yet: an action that is
a part of such a move is refused at its first step, while everything is still as it was.
"""

from lxdone import translate
from onedriver.errors import NotSupported
from onedriver.vm import Vm

# LCM states (OpenNebula's VirtualMachine.h) in which the VM is to leave its host with what it has.
LEAVING = {5: "stopped (onevm stop)", 7: "migrated", 29: "undeployed"}
# … in which the core ends it by force and removes its disks (onevm recover --delete or --recreate).
CLEANUP = frozenset({15, 23})


def of_leaving(vm: Vm) -> None:
    what = LEAVING.get(vm.lcm_state)
    if what:
        raise NotSupported(f"VM {vm.id} cannot be {what}: the content of its root disk is in this host's LXD and would "
                           "not follow; power it off (onevm poweroff) or terminate it instead")


def of_suspending(vm: Vm) -> None:
    """:raises NotSupported: OpenNebula may end a suspended VM without telling this driver, and give its persistent
        images to another VM, while this container would still use them"""
    kept = [disk.id for disk in vm.disks if disk.save]
    if kept:
        raise NotSupported(f"VM {vm.id} cannot be suspended: disk {kept[0]} is a persistent image, which would stay in "
                           "use; power the VM off instead (onevm poweroff)")


def of_resizing(vm: Vm, disk_id: str) -> None:
    """:raises NotSupported: the disk is an image, whose file system would have to be enlarged too"""
    if disk_id in {str(disk.id) for disk in translate.images(vm)}:
        raise NotSupported(f"disk {disk_id} of VM {vm.id} is an image; while the VM runs, its root and its volatile "
                           "disks can grow")


def is_cleanup(vm: Vm) -> bool:
    return vm.lcm_state in CLEANUP


UNSUPPORTED = {
    "migrate": "a running container cannot move to another host, and its root disk is in this host's LXD; use onevm "
               "poweroff, or terminate and recreate it",
}
