# SPDX-License-Identifier: Apache-2.0
"""Thaw, shut down or enlarge a mounted file system, by its mount point.

The request numbers are from <linux/fs.h>, <linux/loop.h>, and the headers of ext4 and xfs; ext4 adopted xfs's
shutdown.
"""

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from containerhost.linux.files import closing
from containerhost.linux.process import childprocess
from containerhost.linux.storage import idmounts, loops

FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
NO_FLUSH = 2  # unwritten data is discarded
EXT_RESIZE = 0x40086610  # EXT4_IOC_RESIZE_FS
TIMEOUT = 60.0  # s
GROWTH_TIMEOUT = 600.0  # s; ext4 initializes the tables of the new groups


def thaw(directory: Path) -> None:
    """Thaw a file system. Idempotent."""
    _ask(directory, THAW, 0, f"{directory} cannot be written to again", errno.EINVAL)


def abandon(directory: Path) -> None:
    """Shut down a file system: it is never written to its disk again, not even when it is unmounted."""
    _ask(directory, SHUTDOWN, struct.pack("=I", NO_FLUSH), f"{directory} cannot be ended", errno.EIO)
    thaw(directory)


def enlarge(directory: Path, blocks: int, lock: int) -> None:
    """Grow an ext4 file system to the size of its enlarged disk.

    :param blocks: new number of blocks of the file system
    :param lock: an fd that stays open while the kernel works on it
    :raises HostActionFailed: among others because this process lacks CAP_SYS_RESOURCE
    """
    measure(directory)
    _ask(directory, EXT_RESIZE, struct.pack("=Q", blocks),
         f"the file system at {directory} cannot grow while it is in use (stop the container first, or give root "
         "CAP_SYS_RESOURCE)", timeout=GROWTH_TIMEOUT, keep=[lock])


def measure(directory: Path) -> None:
    """Update the size of the underlying loop device, if there is one, to that of its file."""
    node = idmounts.device_of(directory)
    if loops.attribute(node, "backing_file") is not None:
        loops.measure(node)


def _ask(directory: Path, request: int, argument: bytes | int, problem: str, *done: int,
         timeout: float | None = None, keep: Sequence[int] = ()) -> None:
    """Send an ioctl to a file system, from a child process because hanging storage blocks in the kernel.

    :param done: errors that mean that this was already done
    :param timeout: seconds; None is TIMEOUT
    :param keep: fds that the child keeps open
    :raises HostActionFailed: the kernel refuses, or the time is over
    """
    def act() -> None:
        with closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            try:
                fcntl.ioctl(fd, request, argument)
            except OSError as error:
                if error.errno not in done:
                    raise

    childprocess.run_for_device(f"fs-{zlib.crc32(os.fsencode(directory)):x}", act, problem, timeout or TIMEOUT,
                                keep)
