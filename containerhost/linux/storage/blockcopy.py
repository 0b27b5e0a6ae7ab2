# SPDX-License-Identifier: Apache-2.0
"""Copy pieces of one block device to another."""

import os
import stat

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing

STEP = 4 * 2**20  # bytes


def copy(source: str, target: str, offset: int, size: int) -> int:
    """Copy a piece of a block device.

    :param offset: offset of the piece in bytes
    :param size: bytes of the piece; fewer at the end
    :returns: bytes copied; 0 at the end of ``source``
    :raises HostActionFailed: one is not a block device, or is used by the host (mounted, in a RAID or a volume
        group), the target is smaller, or reading or writing fails
    """
    # O_NONBLOCK: some directories below /dev are writable for everybody, and opening a FIFO would block. O_EXCL: the
    # kernel refuses to open a block device that it uses itself (open(2)), also for reading.
    try:
        with (closing(os.open(source, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC)) as reading,
              closing(os.open(target, os.O_WRONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC)) as writing):
            return copied(reading, writing, offset, size)
    except OSError as error:
        raise HostActionFailed(f"{source} cannot be copied to {target}: {error.strerror}") from error


def copied(reading: int, writing: int, offset: int, size: int) -> int:
    room, there = length(writing), length(reading)
    if there > room:
        raise HostActionFailed(f"a block device of {there} bytes cannot be copied to one of {room} bytes")
    end = min(offset + size, there)
    done = offset
    while done < end:
        piece = os.pread(reading, min(STEP, end - done), done)
        if not piece:
            break
        done += os.pwrite(writing, piece, done)
    os.fsync(writing)
    return done - offset


def length(fd: int) -> int:
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        raise HostActionFailed("the source or target is not a block device")
    return os.lseek(fd, 0, os.SEEK_END)
