# SPDX-License-Identifier: Apache-2.0
"""Read the root file system in a disk file, plain or in a partition, as a tarball that is streamed.

The kernel reads it through a loop device, mounted in the command's own mount namespace. When the command ends for
any reason, the kernel removes the namespace, the mount and the loop device, so nothing remains.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from containerhost.linux.files import closing
from containerhost.linux.run import MEMORY, limited, start, words
from containerhost.linux.storage import loops
from containerhost.linux.storage.growth import length
from containerhost.linux.storage.idmounts import OPTIONS
from lxdone.disk import diskformat
from lxdone.disk.diskformat import Format
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node.programs import run

PARTITIONS_TIMEOUT = 30  # s
EMPTY_PIECE = 4 << 20  # bytes examined for each piece

# $1 type, $2 options, $3 block device, $4 where to mount it. What is mounted is tenants' data: none of it is run or
# followed. Holes stay holes: a file may be much longer than its disk. The order is that of the names: the same disk
# gives the same image.
ARCHIVE = f"""
set -e
mount -t "$1" -o "$2" -- "$3" "$4"
if [ ! -L "$4/sbin" ] && [ ! -L "$4/sbin/init" ] && [ ! -e "$4/sbin/init" ]; then
    echo "it has no /sbin/init that a container could start" >&2
    exit 1
fi
exec prlimit --as={MEMORY} --core=0 -- \
    tar --create --file - --format=pax --sparse --sort=name --one-file-system --numeric-owner --xattrs \
    --xattrs-include='*' --acls --pax-option=delete=atime,delete=ctime --exclude=./lost+found --exclude='./dev/*' \
    --directory "$4" .
"""


class FileSystem(NamedTuple):
    """Locate a file system in a disk, in bytes, with its mount options."""

    format: Format
    start: int
    size: int

    @property
    def options(self) -> str:
        return f"ro,{self.writable_options}"

    @property
    def writable_options(self) -> str:
        own = "".join(f",{key}={value}" if value else f",{key}" for key, value in OPTIONS[self.format.value].items())
        return f"nodev,nosuid,noexec,nosymfollow{own}"


class Partition(NamedTuple):
    """Hold one entry of a disk's partition table.

    :ivar scheme: of the disk's table: ``gpt`` or ``dos``
    """

    number: int
    scheme: str
    start: int
    size: int


def find(disk: Path) -> FileSystem:
    """Find a disk's file system, or the largest among its partitions; raise NotSupported if none is readable."""
    found = diskformat.of(head(disk))
    if found in diskformat.FILE_SYSTEMS:
        return FileSystem(found, 0, length(disk))
    candidates = [FileSystem(diskformat.of(head(disk, part.start)), part.start, part.size) for part in partitions(disk)]
    known = [candidate for candidate in candidates if candidate.format in diskformat.FILE_SYSTEMS]
    if not known:
        raise NotSupported(f"none of the {len(candidates)} partitions of disk {disk} has a file system that "
                           "this driver reads: ext2, ext3, ext4 or xfs")
    return max(known, key=lambda candidate: candidate.size)


def partitions(disk: Path) -> list[Partition]:
    out = run(["partx", "--raw", "--noheadings", "--bytes", "--output", "NR,SCHEME,START,SIZE", str(disk)],
              PARTITIONS_TIMEOUT, f"the partitions of disk {disk} cannot be read")
    return [Partition(int(number), scheme, int(start) * 512, int(size))
            for number, scheme, start, size in map(str.split, out.splitlines())]


@contextlib.contextmanager
def archived(disk: Path, found: FileSystem, directory: Path, timeout: int) -> Iterator[BinaryIO]:
    """Read everything in the file system as a tarball, from a pipe.

    At the end of the block, the command's own failure takes precedence over a reader's error.

    :param directory: a private directory for temporary files
    :param timeout: seconds it may take
    :raises DriverError: it could not be read
    """
    point = directory / "packing"
    point.mkdir(parents=True, exist_ok=True)
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ARCHIVE, "sh", found.format.value,
               found.options]
    try:
        with tempfile.TemporaryFile() as errors:
            process, problem = over_loop(command, disk, found, point, errors), f"disk {disk} cannot be used"
            # Non-blocking mode is impossible, because another program inherits the pipe: only the time limit ends a
            # hung read.
            with limited(process, timeout) as wait, cast(BinaryIO, process.stdout) as pipe:
                try:
                    yield pipe
                finally:
                    # Closing the pipe ends a program that still writes.
                    pipe.close()
                    status = wait()
                    if status not in (0, -signal.SIGPIPE):
                        said = words(errors) or f"not done within {timeout} s (status {status})"
                        raise DriverError(f"{problem}: {said}")
    finally:
        shutil.rmtree(point)


def over_loop(command: list[str], disk: Path, found: FileSystem, point: Path,
              errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command with a loop device over the file system as an additional argument, before ``point``.

    The loop device exists as long as the command, and no path of the disk is opened again."""
    with (loops.over(disk, found.start, found.size, read_only=True) as node,
          closing(os.open(node, os.O_RDONLY | os.O_CLOEXEC)) as device):
        return start([*command, node, str(point)], f"disk {disk} cannot be used", DriverError,
                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, pass_fds=[device],
                     start_new_session=True)


def head(disk: Path, start: int = 0) -> bytes:
    try:
        with disk.open("rb") as file:
            file.seek(start)
            return file.read(diskformat.HEAD)
    except OSError as error:
        raise BadInput(f"disk {disk} cannot be read: {error.strerror}") from error


def make_ext(disk: Path, timeout: int, *more: str) -> None:
    """Format the whole disk as ext4, with additional options of mke2fs."""
    run(["mke2fs", "-q", "-F", "-t", "ext4", *more, str(disk)], timeout, f"disk {disk} cannot get a file system")


def is_empty(disk: Path) -> bool:
    """Return whether the beginning of a disk contains only zeros, as for a new one."""
    with disk.open("rb") as file:
        return not file.read(EMPTY_PIECE).strip(b"\0")
