# SPDX-License-Identifier: Apache-2.0
"""Mount a VM's disks besides its root, each at a directory on the host that the container mounts.

A file system is mounted there; its block device is never in the container. Of a qcow2 image a raw copy is mounted,
which is written back when the disk is released; of an ISO image the directory has copies of the files. A record
beside the directory has the disk's source, so that interrupted operations are found, repeated or undone.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.engines.spec import DirectoryDisk
from containerhost.errors import HostActionFailed
from containerhost.linux import records
from containerhost.linux.files import UNFINISHED, atomic_write
from containerhost.linux.storage import fsfreeze, growth, idmounts, loops, mountedfs
from containerhost.linux.storage.idmounts import IdMap
from containerhost.rollback import Rollback
from lxdone import translate
from lxdone.disk import blockdisks, ceph, diskformat, filesystems, qcow2, stamps
from lxdone.disk.diskformat import Format
from lxdone.disk.filesystems import FileSystem
from onedriver.errors import DriverError, NotSupported
from onedriver.node import datastores, room
from onedriver.vm import Disk, Vm

LOG = logging.getLogger(__name__)

DIRECTORY = "disks"
RECORD, COPY = ".json", ".raw"
VERSION = 2  # version of the records


@dataclasses.dataclass(frozen=True)
class Record:
    """Record the source of a mounted disk, so that any later process can write it back and release it.

    :ivar file: the disk's, in a datastore; of a block device its node
    :ivar copied: whether a raw copy of it is used
    :ivar ceph: the Ceph image of the disk
    :ivar held: stamp of the file of a held disk
    :ivar stamp: of the file from which the copy was made, or to which it was written; None if the file itself is
        mounted, and in records of earlier releases
    :ivar coming: stamp of the file that is about to replace it
    :ivar store: identity of the file's datastore; likewise
    """

    file: str
    copied: bool
    read_only: bool
    ceph: str | None = None
    held: str | None = None
    stamp: str | None = None
    store: str | None = None
    coming: str | None = None

    @property
    def is_device(self) -> bool:
        return self.ceph is not None or self.file.startswith("/dev/")


class Images:
    """Mount the disks of VMs besides their roots as directories of the host, write them back and release them.

    :param datastores: OpenNebula's
    :param ids: returns a container's user ids
    :param timeout: seconds that each of the long steps may take
    :param block_devices: patterns of the permitted nodes for disks of type BLOCK
    """

    def __init__(self, state: Path, datastores: Path, ids: Callable[[str], IdMap | None], timeout: int,
                 block_devices: Sequence[str] = ()) -> None:
        self._state = state / DIRECTORY
        self._datastores = datastores
        self._block_devices = block_devices
        self._ids = ids
        self._timeout = timeout

    def parts(self, vm: Vm) -> tuple[DirectoryDisk, ...]:
        """Return the container's parts for the disks, mounted or not."""
        return tuple(self.part(vm.id, disk) for disk in translate.further(vm))

    def part(self, vm_id: int, disk: Disk) -> DirectoryDisk:
        return translate.directory_disk(disk, str(self._directory(vm_id, disk.id)))

    def provide(self, vm: Vm) -> tuple[DirectoryDisk, ...]:
        """Mount all disks. They need the container, whose user ids they get."""
        for disk in translate.further(vm):
            self.make(vm, disk)
        return self.parts(vm)

    def make(self, vm: Vm, disk: Disk) -> bool:
        """Mount the disk's content at its directory with the container's user ids. Idempotent.

        :raises BadInput, NotSupported: its file is missing, or not mountable in a container
        """
        directory = self._directory(vm.id, disk.id)
        if self.is_there(vm.id, disk):
            return False
        read_only = translate.is_read_only(disk)
        of_ceph = ceph.image(vm.id, disk) if disk.type == "RBD" else None
        with Rollback(f"disk {disk.id} of VM {vm.id}") as undo:
            undo.on_error("its directory", self.release, vm.id, disk.id)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if of_ceph:
                self._write(directory, Record("", copied=False, read_only=read_only, ceph=of_ceph))
            record = Record(str(self._file(vm, disk, read_only)), copied=False, read_only=read_only, ceph=of_ceph)
            with opened(record, write=not read_only) as file:
                found = diskformat.of(filesystems.head(file))
                if found is Format.ISO:
                    from lxdone.disk import isofiles  # noqa: PLC0415  (few disks are ISO images)

                    if not read_only:
                        raise NotSupported(f"disk {disk.id} is an ISO image, which cannot be written: make it "
                                           "READONLY, or a CDROM")
                    isofiles.extract(file, directory, self._timeout)
                copied = found is Format.QCOW2
                store = None if record.is_device else stamps.store_of(Path(record.file).parent)
                stamp = self._base(directory, file) if copied or found is Format.ISO else None
                record = dataclasses.replace(record, copied=copied, stamp=stamp, store=store)
                self._write(directory, record)
                if found is not Format.ISO:
                    # else a crash left a copy that was not written back
                    if copied and not directory.with_suffix(COPY).exists():
                        origin = qcow2.Origin(self._datastores, disk.source, disk.size)
                        qcow2.to_raw(file, origin, directory.with_suffix(COPY), self._timeout)
                    self._mount(file, record, directory, self._ids(translate.name(vm.id)), translate.is_volatile(disk))
        return True

    def _base(self, directory: Path, file: Path) -> str | None:
        """Return the stamp of the file from which the disk's copy is, or will be, made."""
        before = self._read(directory)
        return before.stamp if before and directory.with_suffix(COPY).exists() else stamps.stamp(file)

    def is_there(self, vm_id: int, disk: Disk) -> bool:
        directory = self._directory(vm_id, disk.id)
        if os.path.ismount(directory):
            return True
        # A killed release may have left only the record.
        return self._record(directory).exists() and directory.is_dir() and any(directory.iterdir())

    def is_replaced(self, vm_id: int, disk_id: int) -> bool:
        """Return whether another disk has replaced it in the datastore; raise DriverError if that is uncertain."""
        directory = self._directory(vm_id, disk_id)
        record = self._read(directory)
        if record is None or record.is_device:
            return False
        if record.stamp is not None:
            return not self._is_same(record, record.stamp, record.coming)
        return os.path.ismount(directory) and not loops.belongs(idmounts.device_of(directory), Path(record.file))

    def _mount(self, file: Path, record: Record, directory: Path, ids: IdMap | None, volatile: bool) -> None:
        source = directory.with_suffix(COPY) if record.copied else file
        if volatile and filesystems.is_empty(source):
            filesystems.make_ext(source, self._timeout)
        found = self._file_system(source, record)
        if not record.read_only and loops.existing(source) is None:
            growth.fill(source, self._timeout, found.start, found.size)
        idmounts.mount(idmounts.FileSystem(source, found.format.value, found.start, 0 if found.start == 0 else
                                           found.size, record.read_only), directory, ids)
        if not record.read_only:
            growth.fill_xfs(directory, source, self._timeout)

    @staticmethod
    def _file_system(source: Path, record: Record) -> FileSystem:
        found = diskformat.of(filesystems.head(source))
        if found is Format.SQUASHFS and record.read_only:
            return FileSystem(found, 0, 0)
        if found in diskformat.FILE_SYSTEMS | {Format.PARTITIONED}:
            return filesystems.find(source)
        raise NotSupported(f"disk {record.file} has no file system that a container can mount: ext2, ext3, ext4 or "
                           "xfs, also in a partition or a qcow2 image; read-only also squashfs and ISO (an empty image "
                           "gets one by `oneimage create --fs ext4`)")

    def _file(self, vm: Vm, disk: Disk, read_only: bool) -> Path:
        """Return a disk's file or block device; raise DriverError on a device that this node does not permit."""
        if disk.type == "RBD":
            return ceph.connect(ceph.image(vm.id, disk), disk.ceph.user if disk.ceph else None, read_only=read_only)
        file = self._datastores / str(vm.system_ds) / str(vm.id) / f"disk.{disk.id}"
        return (disk.type == "BLOCK" and blockdisks.device(file, self._block_devices)) or file

    def release(self, vm_id: int, disk_id: int) -> None:
        """Release the disk on the host, writing changes to its file. Idempotent.

        :raises DeviceInUse: a process in the container uses it
        :raises DriverError: its file cannot be written; the changed copy stays
        """
        directory = self._directory(vm_id, disk_id)
        record = self._read(directory)
        if os.path.ismount(directory):
            if record and not record.read_only:
                mountedfs.thaw(directory)
            idmounts.unmount(directory)
        elif record and not record.read_only and not record.is_device:
            idmounts.require_unused(directory.with_suffix(COPY) if record.copied else Path(record.file))
        self._write_back(directory, record)
        self._remove(directory, record)

    def _write_back(self, directory: Path, record: Record | None) -> None:
        copy = directory.with_suffix(COPY)
        if record is None or not record.copied or record.read_only or not copy.exists():
            return
        file = Path(record.file)
        if is_gone(record):
            LOG.info("Disk %s was removed from its datastore: its unwritten changes are discarded", file)
            return
        if record.stamp and not self._is_same(record, record.stamp, record.coming):
            raise DriverError(f"nothing is overwritten: disk {file} was changed while the VM had it, and the VM's "
                              f"changes are in {copy}; save the needed data of both, then remove {copy}")

        def ready(new: Path) -> None:
            self._write(directory, dataclasses.replace(record, coming=stamps.stamp(new)))

        qcow2.from_raw(copy, file, self._datastores, self._timeout, ready)

    @staticmethod
    def _remove(directory: Path, record: Record | None) -> None:
        directory.with_suffix(COPY).unlink(missing_ok=True)
        if record and record.ceph:
            ceph.disconnect(record.ceph)
        if directory.exists():
            remove(directory)
        for beside in directory.parent.glob(f"{directory.name}.*"):
            beside.unlink()
        _remove_home(directory.parent)

    def release_all(self, vm_id: int) -> None:
        """Release the disks of a stopped container: afterwards OpenNebula may use their files."""
        for number in self.present(vm_id):
            self.release(vm_id, number)
        _remove_home(self._home(vm_id))

    def release_others(self, vm: Vm) -> None:
        """Release the disks that were detached without a script."""
        for number in set(self.present(vm.id)) - {disk.id for disk in translate.further(vm)}:
            self.release(vm.id, number)

    def abandon_all(self, vm_id: int) -> None:
        """Prevent any further write to their files, which others may already use."""
        for directory, _ in self._written(vm_id):
            mountedfs.abandon(directory)

    def recover_all(self, vm_id: int) -> None:
        """Write back the remaining copies of a VM without a container, unless their disks have changed."""
        for number in self.present(vm_id):
            directory = self._directory(vm_id, number)
            record = self._read(directory)
            if record and record.stamp and directory.with_suffix(COPY).exists() and self._is_same(
                    record, record.stamp, record.coming):
                self.release(vm_id, number)
        self.discard_all(vm_id)

    @staticmethod
    def _stamp(record: Record) -> str:
        with opened(record, write=False) as file:
            return stamps.stamp(file)

    def discard_all(self, vm_id: int) -> None:
        """Release all disks without writing back: unwritten changes are lost."""
        self.abandon_all(vm_id)
        for number in self.present(vm_id):
            directory = self._directory(vm_id, number)
            idmounts.unmount(directory)
            self._remove(directory, self._read(directory))
        _remove_home(self._home(vm_id))

    # The disks of a suspended VM stay mounted for its processes, though OpenNebula may copy, move or remove them.

    def hold_all(self, vm_id: int) -> None:
        """Write all changes to the disks' files, and block further writes. Idempotent."""
        for directory, record in self._written(vm_id):
            fsfreeze.freeze(directory)
            self._write_back(directory, record)
            stamp = "" if record.ceph else self._stamp(record)
            self._write(directory, dataclasses.replace(record, held=stamp, stamp=stamp if record.copied else None))

    def is_changed(self, vm_id: int) -> bool:
        """Return whether the file of a writable disk has changed since it was held, or since its copy was made."""
        return any(not self._is_same(record, stamp, record.coming) for _, record in self._writable(vm_id)
                   if (stamp := record.stamp if record.held is None else record.held))

    def is_unsaved(self, vm_id: int) -> bool:
        """Return whether the host may have unwritten changes: a writable disk is not held."""
        return any(record.held is None for _, record in self._writable(vm_id))

    def _is_same(self, record: Record, *stamps: str | None) -> bool:
        return (record.is_device or not is_gone(record)) and self._stamp(record) in stamps

    def let_go_all(self, vm_id: int) -> None:
        for directory, record in self._written(vm_id):
            mountedfs.thaw(directory)
            self._write(directory, dataclasses.replace(record, held=None))

    def _written(self, vm_id: int) -> Iterator[tuple[Path, Record]]:
        """Yield the mounted, writable disks."""
        return ((directory, record) for directory, record in self._writable(vm_id) if os.path.ismount(directory))

    def _writable(self, vm_id: int) -> Iterator[tuple[Path, Record]]:
        """Yield the writable disks that are mounted or have a copy."""
        for number in self.present(vm_id):
            directory = self._directory(vm_id, number)
            record = self._read(directory)
            if record and not record.read_only and (directory.with_suffix(COPY).exists() or os.path.ismount(directory)):
                yield directory, record

    def copy(self, vm_id: int, disk: Disk, file: Path, target: Path) -> None:
        """Copy a disk in its present state and format, blocking writes of the VM's container meanwhile.

        :param target: a file of the VM's directory there
        :raises NotSupported: it is not a file
        :raises DriverError, HostActionFailed: it cannot be copied; there is no such file
        """
        directory = self._directory(vm_id, disk.id)
        record = self._read(directory)
        if disk.type == "RBD" or (record and record.is_device):
            raise NotSupported(f"disk {disk.id} of VM {vm_id} is not a file, and cannot be copied while the VM "
                               "runs: power it off first (onevm poweroff)")
        with datastores.opened(file) as source, datastores.created(target) as new, self._frozen(directory, record):
            if record and record.copied:
                qcow2.write(directory.with_suffix(COPY), new, self._timeout)
            else:
                room.duplicate(source.path, new, self._timeout, f"disk {source.path}")

    def _frozen(self, directory: Path, record: Record | None) -> AbstractContextManager[None]:
        """Block writes to a disk within the block."""
        if record is None or record.read_only or not os.path.ismount(directory):
            return contextlib.nullcontext()
        return fsfreeze.frozen(directory, self._timeout)

    @contextlib.contextmanager
    def enlarged(self, vm_id: int, disk: Disk) -> Iterator[bool]:
        """Grow a mounted disk and its file system to the wanted size; undo the file's growth if the block fails.

        Yields False if the kernel cannot do that while the disk is in use; then the block must mount it again.

        :raises NotSupported: it can never grow
        """
        directory = self._directory(vm_id, disk.id)
        record = self._read(directory)
        if record is None or not os.path.ismount(directory):
            yield False
            return
        if record.read_only or record.is_device:
            raise NotSupported(f"disk {disk.id} of VM {vm_id} is {'read-only' if record.read_only else 'not a file'}, "
                               "and does not grow while the VM runs; power the VM off first")
        copy = contextlib.nullcontext(directory.with_suffix(COPY))
        with copy if record.copied else opened(record, write=True) as source:
            if self._file_system(source, record).start:
                raise NotSupported(f"disk {disk.id} of VM {vm_id} has partitions, which do not grow")
            with growth.lengthened(source, disk.size or 0, directory):
                yield self._fill_mounted(directory, source)

    def _fill_mounted(self, directory: Path, source: Path) -> bool:
        try:
            growth.fill_mounted(directory, source, self._timeout)
        except HostActionFailed as error:
            if growth.is_xfs(source):
                raise
            LOG.info("%s", error)
            return False
        return True

    def present(self, vm_id: int) -> tuple[int, ...]:
        """Return the ids of the disks that are completely or partly mounted on the host."""
        home = self._home(vm_id)
        names = {entry.name.partition(".")[0] for entry in home.iterdir()} if home.exists() else set()
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def _home(self, vm_id: int) -> Path:
        return self._state / translate.name(vm_id)

    def _directory(self, vm_id: int, disk_id: int) -> Path:
        return self._home(vm_id) / str(disk_id)

    @staticmethod
    def _record(directory: Path) -> Path:
        return directory.with_suffix(RECORD)

    def _write(self, directory: Path, record: Record) -> None:
        file = self._record(directory)
        atomic_write(file, records.replacing(file, dataclasses.asdict(record), VERSION).encode())

    def _read(self, directory: Path) -> Record | None:
        file = self._record(directory)
        try:
            return records.parsed(Record, file.read_text(encoding="utf-8")) if file.exists() else None
        except (ValueError, TypeError) as error:
            raise DriverError(f"{file} is not a record of this driver ({error}): find out which disk is "
                              f"mounted at {directory}, unmount it manually and remove the file") from error


@contextlib.contextmanager
def opened(record: Record, *, write: bool) -> Iterator[Path]:
    """Yield a path that opens the disk's file or device, within the block."""
    if record.is_device:
        yield Path(record.file)
        return
    with datastores.opened(Path(record.file), write=write) as disk:
        yield disk.path


def is_gone(record: Record) -> bool:
    """Return whether OpenNebula has removed a disk; raise DriverError if its datastore may be missing."""
    file = Path(record.file)
    return datastores.is_gone(file.parents[1], stamps.STORE, record.store, file.parent.name, file.name)


def _remove_home(home: Path) -> None:
    """Remove a VM's directory of disks if it has none, also after a removal that was killed."""
    if home.exists() and all(entry.name.startswith(UNFINISHED) for entry in home.iterdir()):
        shutil.rmtree(home)


def remove(directory: Path) -> None:
    """Remove a directory without mounts below it."""
    if os.path.ismount(directory):
        raise DriverError(f"{directory} is still mounted and stays")
    shutil.rmtree(directory)
