# SPDX-License-Identifier: Apache-2.0
"""Manage data and volatile disks: files with one file system, which the host can mount for a container."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from containerhost.linux.files import replacing
from containerhost.linux.run import missing, system_path
from containerhost.linux.storage import growth, loops
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node.context import remove
from onedriver.node.programs import run

MIB = 1 << 20
CHUNK = 1 << 20  # bytes
USUAL = "ext4"
#: Options for a file instead of a device; an ext file system does without a reserve for root.
MAKERS = {"ext2": ["-q", "-F", "-m", "0"], "ext3": ["-q", "-F", "-m", "0"], "ext4": ["-q", "-F", "-m", "0"],
          "xfs": ["-q", "-f"]}
FORMATS = (None, "raw", *MAKERS)
TOOL_TIMEOUT = 600  # s; a file system on a large disk takes its time


def require_format(what: str, format: str | None) -> None:
    if format is not None and format.lower() not in FORMATS:
        raise NotSupported(f"{what} cannot have the format {format[:40]!r}: containers get file systems, in plain "
                           "files (raw)")


def make(target: Path, size: int, file_system: str | None) -> None:
    """Create a disk.

    :param size: MiB
    :param file_system: one of :data:`MAKERS`; None is ext4
    """
    kind = (file_system or USUAL).lower()
    if kind not in MAKERS:
        raise NotSupported(f"{kind[:40]!r} is not a file system that this driver creates: {', '.join(MAKERS)}")
    if size < 1:
        raise BadInput(f"a disk must have a size of 1 MiB or more, not {size}")
    with replacing(target) as unfinished:
        with unfinished.open("xb") as file:
            file.truncate(size * MIB)
        tool([f"mkfs.{kind}", *MAKERS[kind], str(unfinished)], f"no {kind} could be made in {target}")


def require_growth(path: Path, size: int) -> None:
    """Raise BadInput if a disk is larger than ``size`` MiB."""
    before = path.stat().st_size
    if size * MIB < before:
        raise BadInput(f"{path} has {before // MIB} MiB and cannot become smaller")


def grow(path: Path, size: int, lock: Sequence[int] = ()) -> None:
    """Enlarge an unused disk, and its file system if that is ext; XFS grows when it is mounted.

    :param size: MiB
    :param lock: file descriptors that hold a lock on the disk, for the programs that work on it
    :raises DriverError, HostActionFailed: the disk is in use, damaged, or cannot grow: it is unchanged
    :raises NotSupported: it has an XFS, which this host has no tool for
    """
    require_growth(path, size)
    if node := loops.existing(path):
        raise DriverError(f"{path} is attached to {node}: a file system in use must not be checked or resized here")
    if growth.is_xfs(path) and (lacking := missing([growth.XFS_TOOL])):
        raise NotSupported(f"{path} has an XFS, which grows by another tool: {lacking[0]}")
    with growth.lengthened(path, size * MIB):
        growth.fill(path, TOOL_TIMEOUT, locks=lock)


def tool(words: Sequence[str], problem: str) -> None:
    """Run a file system tool, which may be outside the user's path; raise DriverError with ``problem`` if it fails."""
    run(words, TOOL_TIMEOUT, problem, env=os.environ | {"PATH": system_path()})


def copy(source: BinaryIO, target: Path) -> None:
    """Copy a file atomically, as a sparse one."""
    with replacing(target) as unfinished, unfinished.open("xb") as file:
        end = 0
        while data := source.read(CHUNK):
            if data.count(0) == len(data):
                file.seek(len(data), os.SEEK_CUR)
            else:
                file.write(data)
            end += len(data)
        file.truncate(end)


# Snapshots of a disk: whole files, in a directory beside it.


def snapshots(disk: Path) -> Path:
    return disk.with_name(f"{disk.name}.snap")


def put_in_place(new: Path, target: Path) -> None:
    """Replace a disk and its snapshots by others on the same file system.

    The data comes first: a killed process leaves the new data with the old snapshots. The replaced files are kept
    beside ``new`` for the caller to remove.
    """
    exchange(new, target)
    exchange(snapshots(new), snapshots(target))


def exchange(new: Path, target: Path) -> None:
    """Replace a file or a directory by another one; if there is none, remove it."""
    if target.is_dir():
        os.replace(target, new.with_name(f"{new.name}.replaced"))
    if new.exists():
        os.replace(new, target)


def snapshot(disk: Path, number: int) -> Path:
    """Return the file of a snapshot; raise BadInput if there is none of that number."""
    file = snapshots(disk) / str(number)
    if not file.is_file():
        raise BadInput(f"{disk} has no snapshot {number}")
    return file


def create_snapshot(disk: Path, number: int) -> None:
    snapshots(disk).mkdir(exist_ok=True)
    with disk.open("rb") as file:
        copy(file, snapshots(disk) / str(number))


def revert_to(disk: Path, number: int) -> None:
    with snapshot(disk, number).open("rb") as file:
        copy(file, disk)


def delete_snapshot(disk: Path, number: int) -> None:
    snapshot(disk, number).unlink()


def flatten(disk: Path, number: int) -> None:
    """Revert the disk to a snapshot, and remove all its snapshots."""
    os.replace(snapshot(disk, number), disk)
    remove(snapshots(disk))
