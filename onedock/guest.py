# SPDX-License-Identifier: Apache-2.0
"""Provide a container's context, name servers and disks besides the root from the host."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.engines.docker.volumes import Volumes
from containerhost.engines.spec import Mount
from containerhost.errors import DeviceInUse
from containerhost.linux.files import atomic_write
from containerhost.linux.poll import wait_while
from containerhost.linux.storage import loops
from onedock import addresses, translate
from onedock.rootowner import LEFT, MOVING
from onedriver.errors import BadInput, DriverError
from onedriver.node import context, datastores
from onedriver.node.context import Contexts
from onedriver.node.names import name
from onedriver.vm import Disk, Vm

LOOP_TIMEOUT = 10.0  # s; the kernel detaches a loop device a moment after its last user


def has_left(state: Path, vm_id: int) -> bool:
    """Return whether a VM has no container because this driver removed it, or never started one.

    :param state: the driver's directory
    """
    home = Contexts(state).home(name(vm_id))
    return not home.exists() or (home / LEFT).exists() or not any(home.iterdir())


def require_left(state: Path, vm_id: int) -> None:
    """Refuse a VM whose container is missing: Docker's data may be missing, or Docker was replaced.

    :param state: the driver's directory
    :raises DriverError: the container was not removed by this driver, so its data may still be needed
    """
    if not has_left(state, vm_id):
        raise DriverError(f"Docker has no container {name(vm_id)}, though this driver did not remove it: is the "
                          "right data root of Docker mounted? Nothing is changed. Delete or recreate "
                          "the VM (onevm recover --delete, --recreate) if its data may be lost")


class Guests:
    """Write the contexts and name servers of containers, and mount their disks besides the root.

    :param state: the driver's directory
    :param datastores: OpenNebula's
    :param root: returns the host's user and group ids of the containers' root
    """

    def __init__(self, state: Path, datastores: Path, root: Callable[[], tuple[int, int]]) -> None:
        self._state = state
        self._contexts = Contexts(state)
        self._datastores = datastores
        self._root = root

    def require_possible(self, vm: Vm) -> None:
        """Raise BadInput or NotSupported on a context that cannot be provided."""
        context.require_possible(vm.context)
        addresses.resolv_conf(vm.context)

    def write(self, vm: Vm) -> None:
        """Write the context and the name servers, which the container sees immediately."""
        root = self._root()
        self._contexts.write(name(vm.id), vm.context, root, shared=True)
        # In place: the container sees this very file.
        file = self._resolv(vm.id)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w", encoding="ascii") as target:
            target.write(addresses.resolv_conf(vm.context))
            os.fchown(target.fileno(), *root)

    def provide(self, vm: Vm) -> None:
        """Mount exactly the disks of a VM that is not running."""
        volumes = self._volumes(vm.id)
        volumes.prepare()
        wanted = translate.volumes(vm)
        for number in sorted(volumes.mounted() - {disk.id for disk in wanted}):
            volumes.unmount(number)
        for disk in wanted:
            self.mount(vm, disk)

    def mount(self, vm: Vm, disk: Disk) -> None:
        with datastores.opened(self._file(vm, disk), write=not disk.read_only) as file:
            self._volumes(vm.id).mount(disk.id, file.path, read_only=disk.read_only, root=self._root())

    def unmount(self, vm: Vm, disk: Disk) -> None:
        """Unmount a disk; raise DeviceInUse if the container uses it."""
        self._volumes(vm.id).unmount(disk.id)

    def unmount_all(self, vm_id: int) -> None:
        """Unmount all disks of a stopped container; raise DeviceInUse if a program on the host uses one."""
        volumes = self._volumes(vm_id)
        for number in sorted(volumes.mounted()):
            volumes.unmount(number)

    def has(self, vm_id: int, disk_id: int) -> bool:
        return disk_id in self._volumes(vm_id).mounted()

    def frozen(self, vm_id: int, disk_id: int, timeout: float) -> AbstractContextManager[None]:
        """Freeze a disk within the block, for at most ``timeout`` seconds."""
        return self._volumes(vm_id).frozen(disk_id, timeout)

    @staticmethod
    def require_unused(file: Path) -> None:
        """Raise DeviceInUse if a loop device is attached to a disk's file."""
        if node := wait_while(lambda: loops.existing(file), LOOP_TIMEOUT):
            raise DeviceInUse(f"{file} is attached to {node}, though the VM's container does not have it: find its "
                              "user (findmnt, losetup) and end that")

    def grow(self, vm: Vm, disk: Disk, size: int) -> None:
        """Grow a mounted disk to ``size`` bytes."""
        with datastores.opened(self._file(vm, disk), write=True) as file:
            before = file.path.stat().st_size
            if size < before:
                raise BadInput(f"disk {disk.id} has {before >> 20} MiB and cannot become smaller")
            self._volumes(vm.id).grow(disk.id, file.path, size)

    def mounts(self, vm_id: int) -> tuple[Mount, ...]:
        return translate.mounts(str(self._contexts.directory(name(vm_id))), str(self._resolv(vm_id)),
                                str(self._volumes(vm_id).directory))

    def mark_left(self, vm_id: int) -> None:
        """Record that the VM's container is removed, or not started yet: it has no data that its disk lacks."""
        home = self._contexts.home(name(vm_id))
        home.mkdir(parents=True, exist_ok=True)
        (home / LEFT).touch()

    def begin(self, vm_id: int) -> None:
        """Record that the VM's container is about to run, and thus to write data that its disk lacks."""
        (self._contexts.home(name(vm_id)) / LEFT).unlink(missing_ok=True)

    def begin_move(self, vm_id: int, file: Path) -> None:
        """Record that the VM's root disk is moving to or from this node in a live migration."""
        home = self._contexts.home(name(vm_id))
        home.mkdir(parents=True, exist_ok=True)
        atomic_write(home / MOVING, str(file).encode())

    def moving(self, vm_id: int) -> Path | None:
        """Return the root disk of :meth:`begin_move`; None outside of a live migration."""
        try:
            return Path((self._contexts.home(name(vm_id)) / MOVING).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def end_move(self, vm_id: int) -> None:
        (self._contexts.home(name(vm_id)) / MOVING).unlink(missing_ok=True)

    def remove(self, vm_id: int) -> None:
        """Remove the files of a container that has ended, without removing disks."""
        self._volumes(vm_id).remove()
        self._contexts.clear(name(vm_id), but=LEFT)
        self._contexts.remove(name(vm_id))

    def _file(self, vm: Vm, disk: Disk) -> Path:
        file = self._datastores / str(vm.system_ds) / str(vm.id) / f"disk.{disk.id}"
        if not file.is_file():
            raise DriverError(f"disk {disk.id} of VM {vm.id} is missing: {file}")
        return file

    def _volumes(self, vm_id: int) -> Volumes:
        return Volumes(self._state / name(vm_id) / "media")

    def _resolv(self, vm_id: int) -> Path:
        return self._state / name(vm_id) / "resolv.conf"
