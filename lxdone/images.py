"""A VM's further disks that are images, each a folder on the host that the container sees.

A file system is mounted there; its block device never comes into the container. Of a qcow2 image a raw copy is mounted,
which is written back when the disk is released; of an ISO image the folder has copies of the files. What a disk was
made of stands in a record beside its folder, so that whatever was interrupted is found, repeated or taken back.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from containerhost import idmounts
from containerhost.idmounts import IdMap
from containerhost.rollback import Rollback
from containerhost.spec import FolderDisk
from lxdone import ceph, diskformat, filesystems, isofiles, newfile, qcow2, translate
from lxdone.diskformat import Format
from lxdone.filesystems import FileSystem
from onedriver.errors import DriverError, NotSupported
from onedriver.vm import Disk, Vm

FOLDER = "disks"
RECORD, COPY = ".json", ".raw"


@dataclasses.dataclass(frozen=True)
class Record:
    """:ivar file: the disk's, in a datastore
    :ivar copied: a raw copy of it is used
    :ivar ceph: the image of Ceph that it is
    """

    file: str
    copied: bool
    read_only: bool
    ceph: str | None = None


class Images:
    """:param state: the driver's folder
    :param datastores: OpenNebula's
    :param ids: tells a container's user ids
    :param timeout: seconds that each of the long steps may take
    """

    def __init__(self, state: Path, datastores: Path, ids: Callable[[str], IdMap | None], timeout: int) -> None:
        self._state = state / FOLDER
        self._datastores = datastores
        self._ids = ids
        self._timeout = timeout

    def part(self, vm_id: int, disk: Disk) -> FolderDisk:
        return translate.folder_disk(disk, str(self._folder(vm_id, disk.id)))

    def provide(self, vm: Vm, disk: Disk) -> None:
        """Let the disk's folder show its content, for the users of the VM's container; done already when it does.

        :raises BadInput, NotSupported: its file is missing, or nothing that a container could see
        """
        folder = self._folder(vm.id, disk.id)
        if self.is_there(vm.id, disk):
            return
        read_only = translate.is_read_only(disk)
        of_ceph = ceph.image(vm.id, disk) if disk.type == "RBD" else None
        with Rollback(f"disk {disk.id} of VM {vm.id}") as undo:
            undo.on_error("its folder", self.release, vm.id, disk.id)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if of_ceph:
                self._write(folder, Record("", copied=False, read_only=read_only, ceph=of_ceph))
            file = self._file(vm, disk, read_only)
            found = diskformat.of(filesystems.head(file))
            record = Record(str(file), found is Format.QCOW2, read_only, of_ceph)
            if found is Format.ISO:
                require_read_only(disk)
                isofiles.extract(file, folder, self._timeout)
            self._write(folder, record)
            if found is not Format.ISO:
                self._mount(file, record, folder, self._ids(translate.name(vm.id)))

    def is_there(self, vm_id: int, disk: Disk) -> bool:
        folder = self._folder(vm_id, disk.id)
        return os.path.ismount(folder) or (self._record(folder).exists() and any(folder.iterdir()))

    def _mount(self, file: Path, record: Record, folder: Path, ids: IdMap | None) -> None:
        source = file
        if record.copied:
            source = folder.with_suffix(COPY)
            if not source.exists():  # else it is what a node that crashed had not written back
                qcow2.to_raw(file, self._datastores, source, self._timeout)
        found = self._file_system(source, record)
        idmounts.mount(idmounts.FileSystem(source, found.format.value, found.start, 0 if found.start == 0 else
                                           found.size, record.read_only), folder, ids)

    @staticmethod
    def _file_system(source: Path, record: Record) -> FileSystem:
        found = diskformat.of(filesystems.head(source))
        if found is Format.SQUASHFS and record.read_only:
            return FileSystem(found, 0, 0)
        if found in diskformat.FILE_SYSTEMS | {Format.PARTITIONED}:
            return filesystems.find(source)
        raise NotSupported(f"disk {record.file} has no file system that a container could see: ext2, ext3, ext4 or "
                           "xfs, also in a partition or a qcow2 image; read-only also squashfs and ISO (an empty image "
                           "gets one by `oneimage create --fs ext4`)")

    def _file(self, vm: Vm, disk: Disk, read_only: bool) -> Path:
        """:raises NotSupported: what the transfer driver left there leads elsewhere"""
        if disk.type == "RBD":
            return ceph.connect(ceph.image(vm.id, disk), disk.ceph.user if disk.ceph else None, read_only=read_only)
        file = self._datastores / str(vm.system_ds) / str(vm.id) / f"disk.{disk.id}"
        if disk.type == "BLOCK" and file.is_block_device():
            return file.resolve()
        if not file.resolve().is_relative_to(self._datastores.resolve()):
            raise NotSupported(f"disk {file} is not in a datastore below {self._datastores}, but in {file.resolve()}")
        return file

    def release(self, vm_id: int, disk_id: int) -> None:
        """Take the disk from the host; its file has what was written to it. Done already when it is not there.

        :raises DeviceInUse: something in the container keeps it
        """
        folder = self._folder(vm_id, disk_id)
        idmounts.unmount(folder)
        copy, record = folder.with_suffix(COPY), self._read(folder)
        # A disk that was detached while the VM was off has no file any more.
        if record and record.copied and not record.read_only and copy.exists() and Path(record.file).exists():
            qcow2.from_raw(copy, Path(record.file), self._datastores, self._timeout)
        copy.unlink(missing_ok=True)
        if record and record.ceph:
            ceph.disconnect(record.ceph)
        if folder.exists():
            remove(folder)
        for beside in folder.parent.glob(f"{folder.name}.*"):
            beside.unlink()
        if folder.parent.exists() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()

    def present(self, vm_id: int) -> tuple[int, ...]:
        """Numbers of the disks that are on the host, or of which something is."""
        home = self._state / translate.name(vm_id)
        names = {entry.name.partition(".")[0] for entry in home.iterdir()} if home.exists() else set()
        return tuple(sorted(map(int, names)))

    def _folder(self, vm_id: int, disk_id: int) -> Path:
        return self._state / translate.name(vm_id) / str(disk_id)

    @staticmethod
    def _record(folder: Path) -> Path:
        return folder.with_suffix(RECORD)

    def _write(self, folder: Path, record: Record) -> None:
        with newfile.instead_of(self._record(folder)) as unfinished:
            unfinished.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")

    def _read(self, folder: Path) -> Record | None:
        file = self._record(folder)
        try:
            return Record(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
        except (ValueError, TypeError) as error:
            raise DriverError(f"{file} is no record of this driver ({error}): find out which disk {folder} shows, take "
                              "it away by hand and remove the file") from error


def require_read_only(disk: Disk) -> None:
    if not translate.is_read_only(disk):
        raise NotSupported(f"disk {disk.id} is an ISO image, which cannot be written: make it READONLY, or a CDROM")


def remove(folder: Path) -> None:
    """A folder in which nothing is mounted."""
    if os.path.ismount(folder):
        raise DriverError(f"{folder} is still mounted and stays")
    shutil.rmtree(folder)
