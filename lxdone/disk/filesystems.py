"""The root file system in a disk file, plain or in a partition, as an image of LXD's, which is read while it is made.

The kernel reads it through a loop device, mounted in a mount namespace that only the command has. When the command
ends, however it ends, the namespace goes, with it the mount, and with that the loop device: nothing can be left.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from containerhost.storage.idmounts import OPTIONS
from lxdone.disk import diskformat
from lxdone.disk.diskformat import Format
from onedriver.errors import BadInput, DriverError, NotSupported

PARTITIONS_LIMIT = 30  # s
PIECE = 1 << 20  # bytes

# $1 type, $2 options, $3 disk, $4 where to mount it, $5 folder of metadata.yaml. What is mounted is tenants' data: none
# of it is run or followed. The same disk gives the same image.
ARCHIVE = """
set -e
mount -t "$1" -o "$2" -- "$3" "$4"
if [ ! -L "$4/sbin" ] && [ ! -L "$4/sbin/init" ] && [ ! -e "$4/sbin/init" ]; then
    echo "it has no /sbin/init that a container could start" >&2
    exit 1
fi
exec tar --create --file - --one-file-system --numeric-owner --xattrs --xattrs-include='*' --acls \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --exclude=./lost+found --exclude='./dev/*' \
    --transform='s,^[.],rootfs,S' --directory "$5" metadata.yaml --directory "$4" .
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


class Partition(NamedTuple):
    """:ivar scheme: of the disk's table: ``gpt`` or ``dos``
    :ivar start, size: bytes
    """

    number: int
    scheme: str
    start: int
    size: int


def find(disk: Path) -> FileSystem:
    """The file system of a disk that is one, or the largest among its partitions.

    :raises NotSupported: there is none that this driver reads
    """
    found = diskformat.of(head(disk))
    if found in diskformat.FILE_SYSTEMS:
        return FileSystem(found, 0, length(disk))
    candidates = [FileSystem(diskformat.of(head(disk, part.start)), part.start, part.size) for part in partitions(disk)]
    known = [candidate for candidate in candidates if candidate.format in diskformat.FILE_SYSTEMS]
    if not known:
        raise NotSupported(f"none of the {len(candidates)} partitions of disk {disk} has a file system that "
                           "this driver reads: ext2, ext3, ext4 or xfs")
    return max(known, key=lambda candidate: candidate.size)


def length(disk: Path) -> int:
    """Bytes of a file or block device."""
    with disk.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def partitions(disk: Path) -> list[Partition]:
    out = run(["partx", "--raw", "--noheadings", "--bytes", "--output", "NR,SCHEME,START,SIZE", str(disk)],
              PARTITIONS_LIMIT, f"the partitions of disk {disk} cannot be read")
    return [Partition(int(number), scheme, int(start) * 512, int(size))
            for number, scheme, start, size in map(str.split, out.splitlines())]


@contextlib.contextmanager
def archived(disk: Path, found: FileSystem, metadata: str, folder: Path, limit: int) -> Iterator["Output"]:
    """Everything in the file system as an image's tarball.

    :param metadata: the image's metadata.yaml
    :param folder: for what is needed meanwhile; nobody else's
    :param limit: seconds it may take
    """
    own = folder / "packing"
    point = own / "root"
    point.mkdir(parents=True, exist_ok=True)
    (own / "metadata.yaml").write_text(metadata, encoding="utf-8")
    os.utime(own / "metadata.yaml", (0, 0))  # each time the same
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ARCHIVE, "sh", found.format.value,
               found.options, str(disk), str(point), str(own)]
    try:
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as process:
            clock = threading.Timer(limit, process.kill)
            clock.start()
            try:
                yield Output(process, cast("IO[bytes]", process.stdout), errors, limit, f"disk {disk} cannot be used")
            finally:
                clock.cancel()
                process.kill()
    finally:
        shutil.rmtree(own)


class Output:
    """What a command prints, piece by piece. Its end is only told when the command ended well."""

    def __init__(self, process: subprocess.Popen[bytes], printed: IO[bytes], errors: IO[bytes], limit: int,
                 problem: str) -> None:
        self._process = process
        self._printed = printed
        self._errors = errors
        self._limit = limit
        self._problem = problem

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(PIECE), b"")

    def read(self, size: int = -1, /) -> bytes:
        """:raises DriverError: it failed; the message begins with ``problem``"""
        piece = self._printed.read(size)
        if not piece and (status := self._process.wait()):
            self._errors.seek(0)
            said = " ".join(self._errors.read(1000).decode(errors="replace").split())[:300]
            raise DriverError(f"{self._problem}: {said or f'not done within {self._limit} s (status {status})'}")
        return piece


def head(disk: Path, start: int = 0) -> bytes:
    try:
        with disk.open("rb") as file:
            file.seek(start)
            return file.read(diskformat.HEAD)
    except OSError as error:
        raise BadInput(f"disk {disk} cannot be read: {error.strerror}") from error


def run(command: list[str], limit: int, problem: str, accepted: Container[int] = (0,), given: str = "") -> str:
    """:param accepted: statuses that are no failure
    :param given: what it reads
    :returns: what it printed
    :raises DriverError: it failed; the message begins with ``problem``
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False,
                              input=given, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{problem}: `{command[0]}` did not end within {limit} s") from error
    if done.returncode not in accepted:
        raise DriverError(f"{problem}: {' '.join((done.stderr or done.stdout).split())[:300]}")
    return done.stdout
