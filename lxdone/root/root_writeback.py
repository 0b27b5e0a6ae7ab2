# SPDX-License-Identifier: Apache-2.0
"""Write roots back into their disks whenever their containers are not running.

OpenNebula moves, copies and ends a VM that is off without calling a script, using the VM's disk in its datastore. So
the container's data is written to that disk at every power-off, suspension and move, before the action ends.

The disk keeps its format if the image is persistent, or an LXD image; otherwise it becomes a new file system of its
size. A new file replaces the old one atomically; a Ceph image has a snapshot meanwhile.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from lxdone.disk import diskformat, filesystems, partitions, qcow2, stamps
from lxdone.disk.diskformat import Format
from lxdone.root import root_files, root_packing, root_state
from lxdone.root.root_files import RootFile
from lxdone.root.root_packing import PackedRoot
from lxdone.root.root_state import RootState
from onedriver.errors import DriverError, NotSupported
from onedriver.node import datastores, room, validation
from onedriver.vm import Vm

if TYPE_CHECKING:
    from containerhost.engines.capabilities import Exports

# LXD's compression for each format, by its magic number.
COMPRESSIONS = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"))
UNPACKED = "none"
KEPT = frozenset({Format.TARBALL, Format.PARTITIONED}) | diskformat.FILE_SYSTEMS  # formats that can be written


class RootWriteback:
    """Track which roots are newer than their disks, and write them back while their containers are not running.

    :param exports: returns the exports that pack with the named program
    :param datastores: OpenNebula's
    :param timeout: seconds that each of the long steps may take
    """

    def __init__(self, exports: "Callable[[str], Exports]", datastores: Path, timeout: int) -> None:
        self._exports = exports
        self._datastores = datastores
        self._timeout = timeout

    # State of a root.

    def require_possible(self, vm: Vm, file: Path, disk: Path) -> None:
        """Refuse a root that could not be written back.

        :param disk: where its content is
        :raises NotSupported: changes could not be saved
        """
        found = diskformat.of(filesystems.head(disk))
        wanted = vm.root
        if wanted.save and found not in KEPT | {Format.QCOW2}:
            raise NotSupported(f"disk {file} is a persistent image of format {found.value}, which cannot be written; "
                               "make the image non-persistent, or a file system")
        if wanted.save and wanted.type == "RBD" and found in (Format.TARBALL, Format.QCOW2):
            raise NotSupported(f"disk {wanted.id} is a persistent image of Ceph with a {found.value} in it, which "
                               "cannot be written there; convert it to a file system, or make it non-persistent")
        if wanted.save and found is Format.PARTITIONED:
            reason = partitions.too_small(disk, filesystems.find(disk).start, wanted.size or 0)
            if reason:
                raise NotSupported(f"disk {file} is a persistent image that {reason}: the VM's changes could not be "
                                   "saved; give the disk the image's own size")

    @staticmethod
    def announce(home: Path, vm: Vm, file: Path) -> None:
        """Record the disk from which a container is about to be created, replacing an earlier container's record.

        It identifies the remains of a killed boot after OpenNebula deleted the VM.

        :raises DriverError: the disk cannot be read
        """
        wanted, root = root_files.of(vm, file), vm.root
        if wanted.image is None:
            root_files.stamp(wanted)
        home.mkdir(parents=True, exist_ok=True)
        before = root_state.read(home)
        if before and before.unsaved:
            root_state.unmark(before)
        root_state.write(home, RootState(str(file), root.size or 0, root.save, wanted.image, wanted.user, stamp="",
                                         unsaved=False, store=stamps.store_of(file.parent)))

    def begin(self, home: Path, vm: Vm, file: Path) -> None:
        """Record in the VM's directory that the container is about to run, and its root becomes newer than the disk."""
        before, wanted = root_state.read(home), root_files.of(vm, file)
        same = before is not None and before.unsaved and before.file == str(file)
        record = RootState(str(file), vm.root.size or 0, vm.root.save, wanted.image, wanted.user,
                           before.stamp if same and before else root_files.stamp(wanted),
                           before.coming if same and before else None, store=stamps.store_of(file.parent))
        root_state.write(home, record)
        root_state.mark(record)

    # Root of a VM in a live migration. Its container is stopped meanwhile.

    @staticmethod
    def offer(home: Path, node: str) -> None:
        """Offer the root to another node, until :meth:`withdraw`."""
        record = root_state.read(home)
        if record is None or not record.unsaved:
            raise DriverError(f"{home / root_state.FILE} does not assign the root to this node")
        root_state.write(home, dataclasses.replace(record, peer=node))
        root_state.offer(record, node)

    @staticmethod
    def withdraw(home: Path) -> bool:
        """Withdraw the offer of the root. Idempotent.

        :returns: whether it belongs to this node; otherwise another one has taken it
        """
        record = root_state.read(home)
        if record is None or record.peer is None:
            return True
        root_state.retract(record)
        record = root_state.read(home)
        if record is None or not record.unsaved:
            return False
        root_state.write(home, dataclasses.replace(record, peer=None))
        return True

    @staticmethod
    def take(home: Path, vm: Vm, file: Path, node: str) -> None:
        """Take the root that another node offers.

        :raises DriverError: it is no longer offered
        """
        wanted = root_files.of(vm, file)
        # The record comes first: with the mark, the root belongs to this node.
        record = RootState(str(file), vm.root.size or 0, vm.root.save, wanted.image, wanted.user,
                           root_files.stamp(wanted), store=stamps.store_of(file.parent), peer=node)
        root_state.write(home, record)
        root_state.take(record)

    @staticmethod
    def give_back(home: Path, node: str) -> None:
        """Return a taken root to its node. The container's changes on this node are lost."""
        record = root_state.read(home)
        if record and record.unsaved:
            root_state.write(home, dataclasses.replace(record, peer=node))
            root_state.mark(record, node)

    @staticmethod
    def reopen(home: Path) -> None:
        """Record that a suspended container may write again."""
        record = root_state.read(home)
        if record and not record.unsaved:
            root_state.write(home, dataclasses.replace(record, unsaved=True))
            root_state.mark(record)

    @staticmethod
    def enlarge(home: Path, size: int) -> None:
        """Record that the disk must have ``size`` bytes when it is next written."""
        record = root_state.read(home)
        if record:
            root_state.write(home, dataclasses.replace(record, size=size))

    @staticmethod
    def end(home: Path) -> None:
        """Record that the container and its root were removed."""
        record = root_state.read(home)
        if record and record.unsaved:
            root_state.unmark(record)
        (home / root_state.FILE).unlink(missing_ok=True)

    @staticmethod
    def is_over(home: Path) -> bool:
        """Return whether OpenNebula has ended or moved the VM, and its disk is complete."""
        record = root_state.read(home)
        return record is not None and root_state.is_over(record)

    @staticmethod
    def is_ended(home: Path) -> bool:
        """Return whether OpenNebula has ended or moved the VM, even if its disk is incomplete."""
        record = root_state.read(home)
        return record is not None and root_state.is_ended(record)

    @staticmethod
    def is_begun(home: Path) -> bool:
        """Return whether the container was started here and not removed by this driver, or raise DriverError."""
        record = root_state.read(home)
        return record is not None and bool(record.stamp)

    @staticmethod
    def is_unsaved(home: Path) -> bool:
        record = root_state.read(home)
        return record is not None and record.unsaved

    def is_current(self, home: Path, vm: Vm, file: Path) -> bool:
        """Return whether the disk still has the root's source; raise DriverError if both were written."""
        self.withdraw(home)  # a live migration may have been interrupted
        record = root_state.read(home)
        if record is None:
            return True
        if record.unsaved:
            self._require_same(record)
            return True
        if root_state.elsewhere(file.parent, record):
            return False
        return record.is_of(root_files.stamp(root_files.of(vm, file)))

    def require_whole(self, home: Path, vm: Vm, file: Path) -> None:
        """Raise DriverError if the disk lacks data of the VM, before a container is created from it."""
        self.require_here(home, vm.id, file)
        record = root_state.read(home)
        validation.of_a_new_container(vm, kept=record is None or not record.unsaved)

    @staticmethod
    def require_here(home: Path, vm_id: int, file: Path) -> None:
        """Raise DriverError if another node's container has data of the VM that its disk lacks."""
        node = root_state.elsewhere(file.parent, root_state.read(home))
        if node:
            raise DriverError(f"VM {vm_id} has data that its disk lacks: the data is in its container on node {node}, "
                              "where it runs, or did not stop cleanly; migrate it there (onevm migrate) and resume it. "
                              f"To use the last state of its disk, remove {file.parent / root_state.RUNNING}")

    # Write-back.

    def save(self, name: str, home: Path) -> None:
        """Write the root into its disk. Idempotent.

        :param name: a container that is stopped or frozen
        :raises DriverError, EngineError: the disk is unchanged, and this can be repeated
        """
        self.withdraw(home)  # a live migration may have been interrupted
        record = root_state.read(home)
        if record is None or not record.unsaved:
            return
        root = RootFile(Path(record.file), record.image, record.user)
        root_files.restore(root)
        self._require_same(record)
        with root_files.opened(root) as disk:
            first = filesystems.head(disk)
        stamps: list[str] = []

        def announce(stamp: str) -> None:
            stamps.append(stamp)
            root_state.write(home, dataclasses.replace(record, coming=stamp))

        with self._packed(name, first, record, home) as packed:
            self._replace(root, record, diskformat.of(first), packed, announce)
        root_state.unmark(record)
        root_state.write(home, dataclasses.replace(record, unsaved=False, stamp=stamps[-1], coming=None))

    def _replace(self, root: RootFile, record: RootState, found: Format, packed: PackedRoot,
                 announce: Callable[[str], None]) -> None:
        """Replace the disk's content by the packed root; ``announce`` gets the new stamp first."""
        def ready(new: Path) -> None:
            announce(stamps.stamp(new))

        if root.image:
            with root_files.replaced(root) as device:
                packed.fill(device, None, new=not record.persistent)
                announce(root_files.digest(device))
        elif found is Format.QCOW2:
            with self._filled(root.file, record, packed) as raw:
                qcow2.from_raw(raw, root.file, self._datastores, self._timeout, ready)
        else:
            with datastores.opened(root.file) as disk, datastores.replaced(root.file, ready) as unfinished:
                self._fill(disk.path, unfinished, record, found, packed)

    @contextlib.contextmanager
    def _filled(self, file: Path, record: RootState, packed: PackedRoot) -> Iterator[Path]:
        """Yield a raw copy of a qcow2 disk that contains the packed root."""
        raw = packed.home / "saved.raw"
        try:
            with datastores.opened(file) as disk:
                qcow2.to_raw(disk.path, qcow2.Origin(self._datastores, seen=True), raw, self._timeout)
            packed.fill(raw, record.size, new=not record.persistent)
            yield raw
        finally:
            raw.unlink(missing_ok=True)

    def _fill(self, disk: Path, new: Path, record: RootState, found: Format, packed: PackedRoot) -> None:
        """Fill a new, empty file of the disk's format with the packed root."""
        if found is not Format.TARBALL and record.persistent:
            room.duplicate(disk, new, self._timeout, f"disk {disk}")  # its blocks are about to be overwritten
        else:
            room.require(new, packed.size)
        if found is Format.TARBALL:
            packed.write(new)
            return
        if not record.persistent:
            os.truncate(new, disk.stat().st_size)
        packed.fill(new, record.size, new=not record.persistent)

    def copy(self, name: str, home: Path, target: Path) -> None:
        """Write a container's current root into a new file in the format of its disk, which is unchanged.

        :param name: a container that may run: LXD takes a snapshot of it
        :param target: a file of the VM's directory in the datastore
        :raises NotSupported: the disk is an image of Ceph
        :raises DriverError, EngineError: it cannot be copied; there is no such file
        """
        record = root_state.read(home)
        if record is None:
            raise DriverError(f"no record on this node names the disk of the root of container {name}")
        if record.image:
            raise NotSupported(f"the root of container {name} is an image of Ceph, and cannot be copied while the VM "
                               "runs: power it off first (onevm poweroff)")
        file = Path(record.file)
        with datastores.opened(file) as disk, datastores.created(target) as new:
            first = filesystems.head(disk.path)
            found = diskformat.of(first)
            with self._packed(name, first, record, home) as packed:
                if found is Format.QCOW2:
                    with self._filled(file, record, packed) as raw:
                        qcow2.write(raw, new, self._timeout)
                else:
                    self._fill(disk.path, new, record, found, packed)

    def discard(self, name: str) -> None:
        """Remove the remains of a killed command from LXD's image store for a deleted container."""
        self._exports(UNPACKED).discard("", name)

    def _packed(self, name: str, first: bytes, record: RootState, home: Path) -> AbstractContextManager[PackedRoot]:
        """Pack a container's root with the program that its disk is packed with."""
        return root_packing.packed(self._exports(compression(first, record)), name, home, self._timeout)

    @staticmethod
    def _require_same(record: RootState) -> None:
        if not record.is_of(root_files.stamp(RootFile(Path(record.file), record.image, record.user))):
            raise DriverError(f"disk {record.image or record.file} was changed after the container was created from "
                              "it, by OpenNebula or another node, and the container has changes too: nothing is "
                              "overwritten. Save the needed data of the container, then delete the container and "
                              "start the VM from its disk")


def compression(first: bytes, record: RootState) -> str:
    """Return the program that packs the root, by the first bytes of the present disk."""
    if not record.persistent:
        return UNPACKED
    return next((program for magic, program in COMPRESSIONS if first.startswith(magic)), UNPACKED)
