# SPDX-License-Identifier: Apache-2.0
"""Grow disks, and their file systems to the size of the disks.

An unused ext file system is grown by its own tools (e2fsprogs), which check it first; a mounted one by the kernel.
xfs grows only while it is mounted (`xfs_growfs`). A file system in a partition is grown through a loop device of
that part: in a file, the tools would truncate what follows it.

On the disk: ext4's super block is at 1024, with the number of blocks at 4 and 336 of it, their size at 24, its magic
number at 56 and the feature that gives them 64 bits at 96 (the kernel's documentation, filesystems/ext4, "Super
Block"). That of xfs begins with its magic number, the size of a block and their number (xfs_format.h, struct xfs_dsb).
"""

import contextlib
import os
import struct
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.linux.lock import acquire, try_lock
from containerhost.linux.run import CHECK_MEMORY, check, confined, missing, system_path
from containerhost.linux.storage import loops, mountedfs

SUPER_BLOCK = 1024
EXT_MAGIC = b"\x53\xef"
WIDE = 0x80  # INCOMPAT_64BIT
XFS = struct.Struct(">4sIQ")
XFS_MAGIC = b"XFSB"
XFS_TOOL = "xfs_growfs"
WORTH = 1 << 20  # bytes; less free space at the end is ignored
CHECKED = (0, 1, 2)  # exit statuses of e2fsck: no errors, or corrected ones


def lengthen(file: Path, size: int) -> bool:
    """Lengthen a file to ``size`` bytes if it is shorter."""
    if file.stat().st_size >= size:
        return False
    os.truncate(file, size)
    return True


@contextlib.contextmanager
def lengthened(file: Path, size: int, directory: Path | None = None) -> Iterator[None]:
    """Lengthen the file of a disk; if the block fails, truncate it again unless its file system has grown or may.

    :param directory: where the disk is mounted; None for an unused ext file system
    """
    old, blocks = file.stat().st_size, _blocks(file, directory)
    longer = lengthen(file, size)
    try:
        yield
    except BaseException:
        if longer and _is_idle(file) and _blocks(file, directory) == blocks:
            os.truncate(file, old)
            if directory:
                mountedfs.measure(directory)
        raise


def _blocks(file: Path, directory: Path | None) -> int | None:
    """Return the size of a disk's file system; None if it is no longer mounted."""
    if directory is None:
        return ext_size(file)
    return os.statvfs(directory).f_blocks if os.path.ismount(directory) else None


def _is_idle(disk: Path) -> bool:
    """Return whether no program of :func:`fill` or :func:`fill_mounted` is working on a disk."""
    with closing(_opened(disk)) as fd:
        return try_lock(fd)


def _opened(disk: Path) -> int:
    """Open a disk for locking: on NFS this requires write access, which a mounted device may refuse."""
    return os.open(disk, (os.O_RDWR if disk.is_file() else os.O_RDONLY) | os.O_CLOEXEC)


def fill(disk: Path, timeout: int, start: int = 0, size: int = 0, locks: Sequence[int] = ()) -> bool:
    """Grow an ext file system of an unused disk to the size of the disk, or of its partition.

    :param timeout: seconds each of the two steps may take
    :param start, size: bytes; the partition's, 0 for the whole disk
    :param locks: further file descriptors for the programs that work on it
    :returns: whether it was smaller; False for another file system
    :raises HostActionFailed: it is damaged, cannot grow, or another process works on it
    """
    if super_block(disk, start)[56:58] != EXT_MAGIC:
        return False
    with alone(disk, timeout) as lock:
        if 0 <= (size or length(disk)) - ext_size(disk, start) < WORTH:
            return False
        with loops.over(disk, start, size, read_only=False) if start else contextlib.nullcontext(disk) as node:
            for words, problem, accepted in ((["e2fsck", "-f", "-p"], "cannot be checked", CHECKED),
                                             (["resize2fs"], "cannot grow", (0,))):
                _run([*confined(timeout, memory=CHECK_MEMORY), *words, str(node)], timeout, disk, problem,
                     [lock, *locks], accepted)
    return True


def fill_mounted(directory: Path, disk: Path, timeout: int) -> None:
    """Grow a mounted file system that fills its disk, which has become larger.

    :param timeout: seconds that its tool may take, and to wait for another process
    :raises HostActionFailed: the kernel refuses, there is no tool for it, or another process works on it
    """
    with alone(disk, timeout) as lock:
        if is_xfs(disk):
            _grow_xfs(directory, disk, timeout, lock)
        else:
            mountedfs.enlarge(directory, length(disk) // block_size(super_block(disk)), lock)


def fill_xfs(directory: Path, disk: Path, timeout: int) -> None:
    """Grow an xfs that has just been mounted, which it requires; without its tool it stays unchanged.

    :raises HostActionFailed: as :func:`fill_mounted`
    """
    with disk.open("rb") as file:
        magic, block, blocks = XFS.unpack(file.read(XFS.size).ljust(XFS.size, b"\0"))
        size = file.seek(0, os.SEEK_END)
    if magic == XFS_MAGIC and block * blocks < size and not missing([XFS_TOOL]):
        with alone(disk, timeout) as lock:
            _grow_xfs(directory, disk, timeout, lock)


def _grow_xfs(directory: Path, disk: Path, timeout: int, lock: int) -> None:
    mountedfs.measure(directory)
    _run([XFS_TOOL, "-d", str(directory)], timeout, disk, "cannot grow", [lock])


def _run(command: Sequence[str], timeout: int, disk: Path, problem: str, locks: Sequence[int],
         accepted: Container[int] = (0,)) -> None:
    check(command, timeout, f"the file system of disk {disk} {problem}", accepted, pass_fds=locks,
          env=os.environ | {"PATH": system_path()})


@contextlib.contextmanager
def alone(disk: Path, timeout: int) -> Iterator[int]:
    """Exclude other processes that grow the file system of a disk.

    :param timeout: seconds to wait for another process
    :returns: an fd; a program that inherits it holds the lock until it ends, even if this process is killed
    :raises HostActionFailed: another process did not finish
    """
    with closing(_opened(disk)) as fd:
        acquire(fd, timeout, disk, lambda _: HostActionFailed(
            f"a program that an earlier action left still works on disk {disk} after {timeout} s: wait for its end "
            f"(fuser {disk})"))
        yield fd


def length(disk: Path) -> int:
    """Return the bytes of a file or block device."""
    with disk.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def ext_size(disk: Path, start: int = 0) -> int:
    """Return the bytes of an ext file system.

    :param start: its offset on the disk
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
    """Return the 1024 bytes of an ext file system's super block, with zeros beyond the disk's end."""
    with disk.open("rb") as file:
        file.seek(start + SUPER_BLOCK)
        return file.read(1024).ljust(1024, b"\0")


def is_xfs(disk: Path) -> bool:
    with disk.open("rb") as file:
        return file.read(len(XFS_MAGIC)) == XFS_MAGIC
