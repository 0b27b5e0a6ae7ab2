"""A VM's disks beside its root: volatile ones are file systems of LXD's pool, images are mounted on the host."""

from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.spec import FolderDisk, PoolDisk
from lxdone import translate
from lxdone.images import Images
from onedriver.vm import Disk, Vm


class Disks:
    """:param disks: the pool that root disks are in too
    """

    def __init__(self, disks: PoolDisks, images: Images) -> None:
        self._disks = disks
        self._images = images

    def parts(self, vm: Vm) -> tuple[PoolDisk | FolderDisk, ...]:
        """What the container has of them, whether they are there yet or not."""
        return tuple(self.part(vm.id, disk) for disk in (*translate.volatile(vm), *translate.images(vm)))

    def part(self, vm_id: int, disk: Disk) -> PoolDisk | FolderDisk:
        if disk.type == translate.VOLATILE:
            return translate.pool_disk(vm_id, disk, self._disks.pool)
        return self._images.part(vm_id, disk)

    def provide(self, vm: Vm) -> tuple[PoolDisk | FolderDisk, ...]:
        """Make those that are missing and enlarge volatile ones that are to be larger; the others keep size and
        content. Images need the container, whose users they are for."""
        return (*self.provide_volatile(vm), *self.provide_images(vm))

    def provide_volatile(self, vm: Vm) -> tuple[PoolDisk | FolderDisk, ...]:
        return self._provided(vm, translate.volatile(vm))

    def provide_images(self, vm: Vm) -> tuple[PoolDisk | FolderDisk, ...]:
        return self._provided(vm, translate.images(vm))

    def _provided(self, vm: Vm, disks: tuple[Disk, ...]) -> tuple[PoolDisk | FolderDisk, ...]:
        for disk in disks:
            self.make(vm, disk)
        return tuple(self.part(vm.id, disk) for disk in disks)

    def make(self, vm: Vm, disk: Disk) -> bool:
        """:returns: whether it was not there before"""
        if disk.type != translate.VOLATILE:
            before = self._images.is_there(vm.id, disk)
            self._images.provide(vm, disk)
            return not before
        volume = translate.pool_disk(vm.id, disk, self._disks.pool).volume
        before = any(present.name == volume for present in self._disks.all())
        self._disks.ensure(volume, translate.volatile_size(vm.id, disk), {translate.LABEL: str(vm.id)})
        return not before

    def delete(self, vm_id: int, disk: Disk) -> None:
        """Of an image only what this driver made: its file has what was written."""
        if disk.type == translate.VOLATILE:
            self._disks.delete(translate.pool_disk(vm_id, disk, self._disks.pool).volume)
        else:
            self._images.release(vm_id, disk.id)

    def delete_others(self, vm: Vm) -> None:
        """Those that were detached while no script was called. One that a container still has stays."""
        self._delete(vm.id, {translate.pool_disk(vm.id, disk, self._disks.pool).volume
                             for disk in translate.volatile(vm)})
        for number in set(self._images.present(vm.id)) - {disk.id for disk in translate.images(vm)}:
            self._images.release(vm.id, number)

    def is_in_use(self, vm_id: int) -> bool:
        """Whether the node uses the file of an image."""
        return bool(self._images.present(vm_id))

    def release(self, vm_id: int) -> None:
        """The container stopped: OpenNebula may do with the images' files what it likes from now on."""
        for number in self._images.present(vm_id):
            self._images.release(vm_id, number)

    def delete_all(self, vm_id: int) -> None:
        self._delete(vm_id, set())
        self.release(vm_id)

    def _delete(self, vm_id: int, but: set[str]) -> None:
        for disk in self._disks.all():
            if disk.labels.get(translate.LABEL) == str(vm_id) and disk.name not in but and not disk.used:
                self._disks.delete(disk.name)
