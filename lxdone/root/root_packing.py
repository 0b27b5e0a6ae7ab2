# SPDX-License-Identifier: Apache-2.0
"""Bring a container's root, packed by LXD, into a disk.

LXD packs it as an image, with the container's ids. It is written unchanged, or unpacked into a file system that is
mounted in the unpacking command's own mount namespace: when the command ends for any reason, the kernel removes
mount and loop device.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from containerhost.linux.storage import growth, loops
from lxdone.disk import filesystems, partitions
from onedriver.errors import DriverError
from onedriver.node import pipes
from onedriver.node.programs import beside

if TYPE_CHECKING:
    from containerhost.engines.capabilities import Exports, Packed, Reader

MARGIN = 16 << 20  # bytes; minimum free space of a new file system
# No journal, which would not be replayed; a file needs a block and an inode.
NEW = ("-m", "0", "-i", "4096", "-O", "^has_journal")

# $1 type, $2 options, $3 block device, $4 directory. The archive on standard input replaces the content; its files are
# below rootfs/. Root follows no symbolic link (nosymfollow), and stops if a file cannot be removed.
UNPACK = """
set -e
mount -t "$1" -o "$2" -- "$3" "$4"
find "$4" -mindepth 1 -maxdepth 1 -exec rm -rf --one-file-system -- '{}' +
[ -z "$(ls -A "$4")" ] || { echo "what was on it cannot be removed" >&2; exit 1; }
tar --extract --directory "$4" --strip-components=1 --numeric-owner --same-owner --same-permissions --xattrs \
    --xattrs-include='*' --acls rootfs
# Only sync reports that the file behind a loop device has no space: later writes fail silently.
sync -f -- "$4" || { echo "not all of it reached the disk; is there room in the datastore?" >&2; exit 1; }
umount -- "$4"
"""


@contextlib.contextmanager
def packed(exports: "Exports", name: str, home: Path, timeout: int) -> Iterator["PackedRoot"]:
    """Pack a container's root.

    :param name: a container; if it is not stopped, LXD packs a snapshot of it
    :param home: the VM's directory on the node
    :param timeout: seconds that each of the long steps may take
    """
    exports.discard(name, name)  # left by a killed command
    try:
        yield PackedRoot(exports, exports.pack(exports.take(name, name), name, lambda percent: None), home, timeout)
    finally:
        exports.discard(name, name)


class PackedRoot:
    """Write a container's root, packed by LXD, to a file or into the file system of a disk."""

    def __init__(self, exports: "Exports", found: "Packed", home: Path, timeout: int) -> None:
        self._exports = exports
        self._found = found
        self.home = home
        self._timeout = timeout

    @property
    def size(self) -> int:
        """Return the size of LXD's archive in bytes."""
        return self._found.size

    def write(self, file: Path) -> None:
        """Write LXD's archive unchanged."""
        with self._exports.reading(self._found) as reader, file.open("wb") as target:
            shutil.copyfileobj(reader, target)

    def fill(self, disk: Path, size: int | None, *, new: bool) -> None:
        """Replace the content of a file system on an unused disk by the root.

        :param new: whether to create the file system; otherwise the existing one grows with its disk
        :param size: minimum bytes of the disk for OpenNebula; None keeps its size
        """
        needed = self._found.size * 9 // 8 + MARGIN
        if new:
            if size is not None:
                growth.lengthen(disk, max(size, needed))
            filesystems.make_ext(disk, self._timeout, *NEW)
        elif size is not None:
            growth.lengthen(disk, size)
        found = filesystems.find(disk)
        if found.start and found.size < needed and partitions.unstretchable(disk, found.start) is None:
            partitions.stretch(disk, found.start, self._timeout)
            found = filesystems.find(disk)
        growth.fill(disk, self._timeout, found.start, found.size)
        point = self.home / "saved"
        point.mkdir(exist_ok=True)
        command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", UNPACK, "sh", found.format.value,
                   found.writable_options]
        try:
            with loops.over(disk, found.start, found.size, read_only=False) as node, self._exports.reading(
                    self._found) as reader:
                feed([*command, node, str(point)], reader, self._timeout, f"disk {disk}")
        finally:
            point.rmdir()


def feed(command: list[str], reader: "Reader", timeout: int, what: str) -> None:
    """Run a command with the reader's data as input; raise DriverError if it fails, or on a timeout."""
    begun = time.monotonic()
    out, end = os.pipe()
    problem = f"{what} cannot be written"
    try:
        with beside(command, timeout, problem, stdin=out):
            os.close(out)
            # A reader that ended early reports the reason itself.
            with contextlib.suppress(BrokenPipeError), pipes.writer(open(end, "wb", 0), problem) as sink:
                shutil.copyfileobj(reader, sink)
    except DriverError as error:
        if time.monotonic() - begun < timeout:
            raise
        raise DriverError(f"{error}; it did not end within {timeout:g} s: see operation_timeout in /etc/lxdone.toml"
                          ) from error
