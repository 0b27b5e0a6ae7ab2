# SPDX-License-Identifier: Apache-2.0
"""Grow disks, and the file systems in them to the size of their disks.

An ext file system that nothing uses is grown by its own tools (e2fsprogs), which also check it first; one that is
mounted, by the kernel. xfs grows only while it is mounted (`xfs_growfs`). What is in a partition is grown through a
loop device of that part alone: in a file, the tools would cut off what follows it. The last partition of a disk can
become larger (`sfdisk`).

On the disk: ext4's super block is at 1024, with the number of blocks at 4 and 336 of it, their size at 24 and the
feature that gives them 64 bits at 96 (the kernel's documentation, filesystems/ext4, "Super Block").
"""

import contextlib
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux.files import closing
from containerhost.linux.lock import acquire
from containerhost.linux.run import CHECK_MEMORY, confined
from containerhost.linux.storage import loops, mountedfs
from lxdone.disk.diskformat import Format
from lxdone.disk.filesystems import FileSystem, length, partitions
from onedriver.errors import DriverError, NotSupported
from onedriver.node.programs import run

SUPER_BLOCK = 1024
WIDE = 0x80  # INCOMPAT_64BIT
WORTH = 1 << 20  # bytes; less room than that at the end is left alone
CHECKED = (0, 1, 2)  # statuses of e2fsck: nothing was wrong, or is any more
PRIMARY = 4  # partitions of an MBR
EMPTY_PIECE = 4 << 20  # bytes looked at


def lengthen(file: Path, size: int) -> bool:
    """Let a file be of ``size`` bytes if it is shorter.

    :returns: whether it was
    """
    if file.stat().st_size >= size:
        return False
    os.truncate(file, size)
    return True


@contextlib.contextmanager
def lengthened(file: Path, size: int, directory: Path) -> Iterator[None]:
    """Lengthen the file of a mounted disk; if the block fails, cut it again, unless the file system has grown.

    :param directory: where the disk is mounted
    """
    old, blocks = file.stat().st_size, os.statvfs(directory).f_blocks
    longer = lengthen(file, size)
    try:
        yield
    except BaseException:
        if longer and os.path.ismount(directory) and os.statvfs(directory).f_blocks == blocks:
            os.truncate(file, old)
            mountedfs.measure(directory)
        raise


def fill(disk: Path, found: FileSystem, timeout: int) -> bool:
    """Let an ext file system of a disk that nothing uses be as large as the disk, or the partition that it is in.

    :param timeout: seconds each of the two steps may take
    :returns: whether it was smaller
    :raises DriverError: it is damaged, cannot grow, or another process works on it
    """
    if found.format is not Format.EXT:
        return False
    with alone(disk, timeout) as lock:
        if found.size - ext_size(disk, found.start) < WORTH:
            return False
        with loops.over(disk, found.start, found.size, read_only=False) if found.start else \
                contextlib.nullcontext(disk) as node:
            may = confined(timeout, memory=CHECK_MEMORY)
            run([*may, "e2fsck", "-f", "-p", str(node)], timeout, f"the file system of disk {disk} cannot be checked",
                CHECKED, pass_fds=[lock])
            run([*may, "resize2fs", str(node)], timeout, f"the file system of disk {disk} cannot grow", pass_fds=[lock])
    return True


@contextlib.contextmanager
def alone(disk: Path, timeout: int) -> Iterator[int]:
    """Keep others from growing the file system of a disk.

    :param timeout: seconds to wait for another
    :returns: an fd; a program that inherits it keeps others waiting until it ends, also where this process is killed
    :raises DriverError: another did not end
    """
    with closing(os.open(disk, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        acquire(fd, timeout, disk, lambda _: DriverError(
            f"a program that an earlier action left still works on disk {disk} after {timeout} s: wait for its end "
            f"(fuser {disk})"))
        yield fd


def stretch(disk: Path, start: int, timeout: int) -> None:
    """Let the last partition of a disk that nothing uses reach to the disk's end.

    :param start: the partition's
    :raises NotSupported: it cannot
    """
    reason = unstretchable(disk, start)
    if reason:
        raise NotSupported(f"disk {disk} {reason}")
    part = next(part for part in partitions(disk) if part.start == start)
    command = [*confined(timeout), "sfdisk", "--quiet", "--no-reread", "--no-tell-kernel"]
    problem = f"partition {part.number} of disk {disk} cannot grow"
    if part.scheme == "gpt":  # whose second table is at the end of the disk
        run([*command, "--relocate", "gpt-bak-std", str(disk)], timeout, problem)
    run([*command, "-N", str(part.number), str(disk)], timeout, problem, input=", +\n")
    now = next((now for now in partitions(disk) if now.number == part.number), part)
    if now.start != start or now.size < part.size:
        raise DriverError(f"{problem}: sfdisk made {part} of it {now}")


def too_small(disk: Path, start: int, size: int) -> str | None:
    """Return why the file system of a partition cannot grow with its disk; None if it can, or need not.

    :param size: bytes that the disk is to have
    """
    end = max(part.start + part.size for part in partitions(disk))
    return unstretchable(disk, start) if max(size, length(disk)) - end > 2 * WORTH else None


def unstretchable(disk: Path, start: int) -> str | None:
    """Return why a partition cannot reach to the end of its disk; None where it can."""
    found = partitions(disk)
    part = next(part for part in found if part.start == start)
    if part != max(found, key=lambda one: one.start):
        return f"has a partition after partition {part.number}, which cannot grow therefore"
    if part.scheme == "dos" and part.number > PRIMARY:
        return f"has its partition {part.number} within another, where it does not grow"
    if shutil.which("sfdisk") is None:
        return f"has a partition {part.number} that this node has no sfdisk to enlarge with: install fdisk"
    return None


def fill_mounted(directory: Path, found: FileSystem, disk: Path, timeout: int) -> None:
    """Grow a file system that is mounted at ``directory`` and fills its disk, which has become larger.

    :raises HostActionFailed: the kernel does not do it
    :raises NotSupported: there is no tool for it
    """
    if found.format is Format.EXT:
        mountedfs.enlarge(directory, found.size // block_size(super_block(disk)))
        return
    if shutil.which("xfs_growfs") is None:
        raise NotSupported(f"disk {disk} has an xfs file system, but this node has no xfs_growfs to enlarge it with: "
                           "install xfsprogs")
    mountedfs.measure(directory)
    run(["xfs_growfs", "-d", str(directory)], timeout, f"the file system of disk {disk} cannot grow")


def make_ext(disk: Path, timeout: int, *more: str) -> None:
    """Make the whole disk an ext4 file system.

    :param more: options of mke2fs
    """
    run(["mke2fs", "-q", "-F", "-t", "ext4", *more, str(disk)], timeout, f"disk {disk} cannot get a file system")


def ext_size(disk: Path, start: int = 0) -> int:
    """Return the bytes of an ext file system.

    :param start: where on the disk it is
    """
    block = super_block(disk, start)
    low, = struct.unpack_from("<I", block, 4)
    features, = struct.unpack_from("<I", block, 96)
    high, = struct.unpack_from("<I", block, 336) if features & WIDE else (0,)
    return (high << 32 | low) * block_size(block)


def block_size(block: bytes) -> int:
    shift, = struct.unpack_from("<I", block, 24)
    return 1024 << min(shift, 6)


def super_block(disk: Path, start: int = 0) -> bytes:
    with disk.open("rb") as file:
        file.seek(start + SUPER_BLOCK)
        return file.read(1024)


def is_empty(disk: Path) -> bool:
    """Return whether its beginning has nothing but zeros, as that of a disk which was just made."""
    with disk.open("rb") as file:
        return not file.read(EMPTY_PIECE).strip(b"\0")
