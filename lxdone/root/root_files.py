# SPDX-License-Identifier: Apache-2.0
"""Open the disk of a VM's root: a file of a datastore, or a Ceph image, which is mapped meanwhile."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

from lxdone.disk import ceph, diskformat, filesystems, stamps
from lxdone.disk.diskformat import Format
from onedriver.node import datastores
from onedriver.vm import Vm


@dataclasses.dataclass(frozen=True)
class RootFile:
    """Identify the disk of a VM's root: a file of a datastore, or a Ceph RBD image.

    :ivar file: its path in the datastore of files, existing or not
    """

    file: Path
    image: str | None = None
    user: str | None = None


def of(vm: Vm, file: Path) -> RootFile:
    """Return the disk of a VM's root, given its path in the datastore of files."""
    disk = vm.root
    if disk.type != "RBD":
        return RootFile(file)
    return RootFile(file, ceph.image(vm.id, disk), disk.ceph.user if disk.ceph else None)


@contextlib.contextmanager
def opened(root: RootFile, *, read_only: bool = True) -> Iterator[Path]:
    """Yield the path of its content within the block."""
    if root.image is None:
        with datastores.opened(root.file) as disk:
            yield disk.path
        return
    ceph.disconnect(root.image)  # left by a killed command
    try:
        yield ceph.connect(root.image, root.user, read_only=read_only)
    finally:
        ceph.disconnect(root.image)


@contextlib.contextmanager
def replaced(root: RootFile) -> Iterator[Path]:
    """Yield the device of a Ceph image for writing; :func:`restore` it if the block fails."""
    if root.image is None:
        raise ValueError("a file is replaced by another file")
    ceph.keep(root.image, root.user)
    try:
        with opened(root, read_only=False) as disk:
            yield disk
    except BaseException:
        restore(root)
        raise
    ceph.forget(root.image, root.user)


def restore(root: RootFile) -> RootFile:
    """Undo an unfinished replacement."""
    if root.image and ceph.is_kept(root.image, root.user):
        ceph.disconnect(root.image)
        ceph.bring_back(root.image, root.user)
        ceph.forget(root.image, root.user)
    return root


def stamp(root: RootFile) -> str:
    """Return a value that identifies its current content."""
    with opened(root) as disk:
        return digest(disk) if root.image else stamps.stamp(disk)


def digest(disk: Path) -> str:
    """Return a digest of what every write changes: the beginning of the disk and of its file system, with times."""
    first = filesystems.head(disk)
    if diskformat.of(first) is Format.PARTITIONED:
        first += filesystems.head(disk, filesystems.find(disk).start)
    return hashlib.sha256(first).hexdigest()
