"""A VM's volatile disks: file systems of LXD's storage pool that live as long as the VM has them."""

from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.spec import PoolDisk
from lxdone import translate
from onedriver.vm import Disk, Vm


class Disks:
    """:param disks: the pool that root disks are in too
    """

    def __init__(self, disks: PoolDisks) -> None:
        self._disks = disks

    def parts(self, vm: Vm) -> tuple[PoolDisk, ...]:
        """What the container has of them, whether they are there yet or not."""
        return tuple(self.part(vm.id, disk) for disk in translate.volatile(vm))

    def part(self, vm_id: int, disk: Disk) -> PoolDisk:
        return translate.pool_disk(vm_id, disk, self._disks.pool)

    def provide(self, vm: Vm) -> tuple[PoolDisk, ...]:
        """Make those that are missing and enlarge those that are to be larger; the others keep size and content."""
        for disk in translate.volatile(vm):
            self.make(vm.id, disk)
        return self.parts(vm)

    def make(self, vm_id: int, disk: Disk) -> bool:
        """:returns: whether it was not there before"""
        volume = self.part(vm_id, disk).volume
        before = any(present.name == volume for present in self._disks.all())
        self._disks.ensure(volume, translate.volatile_size(vm_id, disk), {translate.LABEL: str(vm_id)})
        return not before

    def delete(self, vm_id: int, disk: Disk) -> None:
        self._disks.delete(self.part(vm_id, disk).volume)

    def delete_others(self, vm: Vm) -> None:
        """Those that were detached while no script was called. One that a container still has stays."""
        wanted = {part.volume for part in self.parts(vm)}
        self._delete(vm.id, wanted)

    def delete_all(self, vm_id: int) -> None:
        self._delete(vm_id, set())

    def _delete(self, vm_id: int, but: set[str]) -> None:
        for disk in self._disks.all():
            if disk.labels.get(translate.LABEL) == str(vm_id) and disk.name not in but and not disk.used:
                self._disks.delete(disk.name)
