"""The root file system in a disk file, plain or in a partition, as a tarball.

The kernel reads it through a loop device, mounted in a mount namespace that only the command has. When the command
ends, however it ends, the namespace goes, with it the mount, and with that the loop device: nothing can be left.
"""

import os
import subprocess
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from containerhost.storage.idmounts import OPTIONS
from lxdone import diskformat
from lxdone.diskformat import Format
from onedriver.errors import BadInput, DriverError, NotSupported

PARTITIONS_LIMIT = 30  # s

# $1 type, $2 options, $3 disk, $4 folder, $5 tarball. What is mounted is tenants' data: none of it is run or followed.
ARCHIVE = """
set -e
mount -t "$1" -o "$2" -- "$3" "$4"
if [ ! -L "$4/sbin" ] && [ ! -L "$4/sbin/init" ] && [ ! -e "$4/sbin/init" ]; then
    echo "it has no /sbin/init that a container could start" >&2
    exit 1
fi
exec tar --create --file "$5" --directory "$4" --one-file-system --numeric-owner --xattrs --xattrs-include='*' --acls \
    --exclude=./lost+found --exclude='./dev/*' .
"""


class FileSystem(NamedTuple):
    """:ivar start, size: bytes within the disk file
    """

    format: Format
    start: int
    size: int

    @property
    def options(self) -> str:
        return f"ro,{self.writable_options}"

    @property
    def writable_options(self) -> str:
        own = "".join(f",{key}={value}" if value else f",{key}" for key, value in OPTIONS[self.format.value].items())
        return f"loop,nodev,nosuid,noexec,offset={self.start},sizelimit={self.size}{own}"


def find(disk: Path) -> FileSystem:
    """The file system of a disk that is one, or the largest among its partitions.

    :raises NotSupported: there is none that this driver reads
    """
    found = diskformat.of(head(disk))
    if found in diskformat.FILE_SYSTEMS:
        return FileSystem(found, 0, length(disk))
    candidates = [FileSystem(diskformat.of(head(disk, start)), start, size) for start, size in partitions(disk)]
    known = [candidate for candidate in candidates if candidate.format in diskformat.FILE_SYSTEMS]
    if not known:
        raise NotSupported(f"none of the {len(candidates)} partitions of disk {disk} has a file system that "
                           "this driver reads: ext2, ext3, ext4 or xfs")
    return max(known, key=lambda candidate: candidate.size)


def length(disk: Path) -> int:
    """Bytes of a file or block device."""
    with disk.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def partitions(disk: Path) -> list[tuple[int, int]]:
    """Start and size of each, in bytes."""
    out = run(["partx", "--raw", "--noheadings", "--bytes", "--output", "START,SIZE", str(disk)], PARTITIONS_LIMIT,
              f"the partitions of disk {disk} cannot be read")
    return [(int(start) * 512, int(size)) for start, size in map(str.split, out.splitlines())]


def archive(disk: Path, found: FileSystem, folder: Path, limit: int) -> Path:
    """Write everything in the file system into a tarball, which the caller removes.

    :param folder: the tarball's; nobody else's
    :param limit: seconds it may take
    """
    tarball, point = folder / "root.tar", folder / "root"
    point.mkdir(exist_ok=True)
    try:
        run(["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ARCHIVE, "sh", found.format.value,
             found.options, str(disk), str(point), str(tarball)], limit, f"disk {disk} cannot be used")
    except BaseException:
        tarball.unlink(missing_ok=True)
        raise
    finally:
        point.rmdir()
    return tarball


def head(disk: Path, start: int = 0) -> bytes:
    try:
        with disk.open("rb") as file:
            file.seek(start)
            return file.read(diskformat.HEAD)
    except OSError as error:
        raise BadInput(f"disk {disk} cannot be read: {error.strerror}") from error


def run(command: list[str], limit: int, problem: str, accepted: Container[int] = (0,)) -> str:
    """:param accepted: statuses that are no failure
    :returns: what it printed
    :raises DriverError: it failed; the message begins with ``problem``
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False,
                              stdin=subprocess.DEVNULL, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{problem}: `{command[0]}` did not end within {limit} s") from error
    if done.returncode not in accepted:
        raise DriverError(f"{problem}: {' '.join((done.stderr or done.stdout).split())[:300]}")
    return done.stdout
