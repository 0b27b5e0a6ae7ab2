# SPDX-License-Identifier: Apache-2.0
"""Attach files as block devices: loop devices (loop(4)).

They are removed automatically (LO_FLAGS_AUTOCLEAR) with their last user, the process that created it or a mount. So
a killed process leaves none.
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing

CONTROL = "/dev/loop-control"
GET_FREE, CONFIGURE, SET_CAPACITY = 0x4C82, 0x4C0A, 0x4C07  # ioctl numbers of <linux/loop.h>
READ_ONLY, AUTOCLEAR = 1, 4
# struct loop_config: descriptor, block size; of struct loop_info64 the device's, inode's and node's numbers, offset and
# size limit, number, type, key size and flags, names and keys; what is reserved.
CONFIG = struct.Struct("=II 3Q QQ 3I I 176x 64x")
TRIES = 50  # another process may configure the free device first


@contextlib.contextmanager
def over(file: Path, start: int, size: int, *, read_only: bool) -> Iterator[str]:
    """Yield the node of a loop device over a part of a file, within the block or while a mount uses it.

    An existing one over the same part is reused: mounting a file system twice through different devices would
    destroy it.

    :param start, size: bytes
    """
    for _ in range(TRIES):
        present = existing(file)
        fd, node = join(present, start, size) if present else make(file, start, size, read_only=read_only)
        if fd is None:
            continue
        with closing(fd):
            if belongs(node, file):
                yield node
                return
    raise HostActionFailed(f"no loop device could be attached to {file}: other processes took each free one first")


def existing(file: Path) -> str | None:
    """Return the node of a loop device over any part of the file."""
    for directory in Path("/sys/block").glob("loop*/loop"):
        node = f"/dev/{directory.parent.name}"
        if belongs(node, file):
            return node
    return None


def belongs(node: str, file: Path) -> bool:
    return attribute(node, "backing_file") == str(file.resolve())


def attribute(node: str, name: str) -> str | None:
    """Return an attribute of a loop device; None if it has no file."""
    try:
        return Path(f"/sys/block/{Path(node).name}/loop/{name}").read_text(encoding="utf-8").rstrip("\n")
    except OSError:
        return None


def join(node: str, start: int, size: int) -> tuple[int | None, str]:
    if (attribute(node, "offset"), attribute(node, "sizelimit")) != (str(start), str(size)):
        raise HostActionFailed(f"{node} is attached to another part of the same file: another process uses it")
    return os.open(node, os.O_RDONLY | os.O_CLOEXEC), node


def measure(node: str) -> None:
    """Update the size of a loop device to that of its file."""
    try:
        with closing(os.open(node, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            fcntl.ioctl(fd, SET_CAPACITY)
    except OSError as error:
        raise HostActionFailed(f"{node} does not take the size of its file: {error.strerror}") from error


def make(file: Path, start: int, size: int, *, read_only: bool) -> tuple[int | None, str]:
    """Attach a free loop device to a file.

    :returns: no descriptor if another process was faster
    """
    flags = AUTOCLEAR | (READ_ONLY if read_only else 0)
    try:
        mode = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        with closing(os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)) as control, closing(os.open(file, mode)) as backing:
            node = f"/dev/loop{fcntl.ioctl(control, GET_FREE)}"
            fd = os.open(node, mode)
            try:
                fcntl.ioctl(fd, CONFIGURE, CONFIG.pack(backing, 0, 0, 0, 0, start, size, 0, 0, 0, flags))
            except BaseException:
                os.close(fd)
                raise
            return fd, node
    except OSError as error:
        if error.errno == errno.EBUSY:
            return None, ""
        raise HostActionFailed(f"no loop device can be attached to {file}: {error.strerror}") from error
