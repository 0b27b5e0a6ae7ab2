# SPDX-License-Identifier: Apache-2.0
"""Copy disks within a datastore without using the space into which the disks of running VMs grow.

Such a disk is a sparse file behind a loop device. If its datastore is full, the kernel aborts the journal of its
file system, which becomes read-only, and the VM's recent writes are lost.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onedriver.errors import DriverError
from onedriver.node.programs import run

RESERVED: Final = 64 << 20  # bytes that stay free after a copy
BLOCK: Final = 512  # bytes; the unit of stat(2)
FICLONE: Final = 0x40049409  # <linux/fs.h>
#: ioctl_ficlone(2): the file system, or these two files, cannot share blocks.
NOT_SHARED: Final = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EPERM)


def require(target: Path, size: int) -> None:
    """Refuse to write ``size`` bytes to a file if this leaves less than :data:`RESERVED` free on its file system.

    :param target: an existing file
    :raises DriverError: the message begins with that of ENOSPC
    """
    left = available(target)
    if size > left:
        raise DriverError(f"{os.strerror(errno.ENOSPC)}: a copy of {size >> 20} MiB cannot be written: of the "
                          f"{(left + RESERVED) >> 20} MiB that are free, {RESERVED >> 20} MiB are reserved for disks "
                          "that grow")


def available(target: Path) -> int:
    """Return how many bytes may be written on the file system of an existing file; negative if there is no room."""
    found = os.statvfs(target)
    return found.f_bavail * found.f_frsize - RESERVED


def allocated(file: Path) -> int:
    """Return the allocated bytes of a sparse file."""
    found = file.stat()
    return min(found.st_size, found.st_blocks * BLOCK)


def duplicate(source: Path, target: Path, timeout: int, what: str, lock: Sequence[int] = ()) -> None:
    """Copy a disk on this host, sharing blocks if the file system supports it; zeros take no space.

    :param timeout: seconds it may take
    :param what: the disk, for the message
    :param lock: file descriptors that hold a lock on the disk, for the program that copies it
    :raises DriverError: it cannot be copied, or the copy would use the space that other disks need to grow
    """
    if not prepare(source, target):
        run(["cp", "--reflink=never", "--sparse=always", "--", str(source), str(target)], timeout,
            f"{what} cannot be copied", pass_fds=lock)


def prepare(source: Path, target: Path) -> bool:
    """Prepare a copy: share the blocks of ``source`` with the new file, or require the space for them.

    :param target: created if missing; empty unless it shares the blocks
    :returns: whether it shares them, so that the copy is complete
    :raises DriverError: the copy has no room
    """
    with source.open("rb") as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new, FICLONE, old.fileno())
        except OSError as error:
            if error.errno not in NOT_SHARED:
                raise
            require(target, allocated(source))
            return False
    return True
