"""Persistent roots: what a container wrote, brought back into the disk file that its root came from, in its format.

A mark in the VM's folder says that this is to be done, from the container's start until it is done.

LXD packs the stopped container as one of its images, with the ids that its files have inside. That is the new file
where the old one was such an image; else it is unpacked into a copy of the old file, whose file system is mounted in a
mount namespace that only the unpacking command has: when it ends, however it ends, mount and loop device go.
The new file takes the old one's place as a whole or not at all.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.exports import Exports, Reader
from lxdone import diskformat, filesystems, newfile, qcow2
from lxdone.diskformat import Format
from onedriver.errors import DriverError, NotSupported

MARK = "unsaved"
# How LXD is to pack what came packed so, by its first bytes.
COMPRESSIONS = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"))
WRITABLE = frozenset({Format.TARBALL, Format.PARTITIONED}) | diskformat.FILE_SYSTEMS

# $1 type, $2 options, $3 disk, $4 folder. The archive comes in; what is below rootfs/ becomes all that there is.
UNPACK = """
set -e
mount -t "$1" -o "$2" -- "$3" "$4"
find "$4" -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf --one-file-system -- '{}' +
tar --extract --directory "$4" --strip-components=1 --numeric-owner --same-owner --same-permissions --xattrs \
    --xattrs-include='*' --acls rootfs
umount -- "$4"
"""


class RootSaves:
    """:param datastores: OpenNebula's
    :param timeout: seconds that each of the long steps may take
    """

    def __init__(self, client: LxdClient, datastores: Path, timeout: int) -> None:
        self._client = client
        self._datastores = datastores
        self._timeout = timeout

    def require_possible(self, disk: Path) -> None:
        """:raises NotSupported: what is written could not be kept"""
        found = diskformat.of(filesystems.head(disk))
        if found not in WRITABLE | {Format.QCOW2}:
            raise NotSupported(f"disk {disk} is a persistent image of format {found.value}, which cannot be written; "
                               "make the image non-persistent, or a file system")
        if not disk.resolve().is_relative_to(self._datastores.resolve()):
            raise NotSupported(f"disk {disk} is not in a datastore below {self._datastores}, but in {disk.resolve()}")

    def mark(self, folder: Path, disk: Path) -> None:
        """The container is about to run.

        :param folder: the VM's own
        """
        (folder / MARK).write_text(str(disk), encoding="utf-8")

    @staticmethod
    def is_marked(folder: Path) -> bool:
        return (folder / MARK).exists()

    def save(self, name: str, folder: Path) -> None:
        """:param name: a container that does not run
        :param folder: the VM's own
        """
        if self.is_marked(folder):
            self._save(name, Path((folder / MARK).read_text(encoding="utf-8")), folder)
            (folder / MARK).unlink()

    def _save(self, name: str, disk: Path, folder: Path) -> None:
        self.require_possible(disk)
        first = filesystems.head(disk)
        found = diskformat.of(first)
        if found is Format.QCOW2:
            raw = folder / "saved.raw"
            try:
                qcow2.to_raw(disk, self._datastores, raw, self._timeout)
                self._unpack(name, raw, folder)
                qcow2.from_raw(raw, disk, self._datastores, self._timeout)
            finally:
                raw.unlink(missing_ok=True)
            return
        file = disk.resolve()
        with newfile.instead_of(file) as unfinished:
            if found is Format.TARBALL:
                self._write(name, unfinished, first)
            else:
                filesystems.run(["cp", "--reflink=auto", "--sparse=always", "--", str(file), str(unfinished)],
                                self._timeout, f"disk {disk} cannot be copied")
                self._unpack(name, unfinished, folder)

    def _write(self, name: str, file: Path, first: bytes) -> None:
        compression = next((program for magic, program in COMPRESSIONS if first.startswith(magic)), "none")

        def write(reader: Reader) -> None:
            with file.open("wb") as target:
                shutil.copyfileobj(reader, target)

        self._packed(name, compression, write)

    def _unpack(self, name: str, disk: Path, folder: Path) -> None:
        found = filesystems.find(disk)
        point = folder / "saved"
        point.mkdir(exist_ok=True)
        command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", UNPACK, "sh", found.format.value,
                   found.writable_options, str(disk), str(point)]
        try:
            self._packed(name, "none", lambda reader: feed(command, reader, self._timeout, f"disk {disk}"))
        finally:
            point.rmdir()

    def _packed(self, name: str, compression: str, use: Callable[[Reader], None]) -> None:
        exports = Exports(self._client, compression, self._timeout)
        exports.discard(name, name)  # what a killed command left
        try:
            source = exports.take(name, name)
            with exports.reading(exports.pack(source, name, lambda percent: None)) as reader:
                use(reader)
        finally:
            exports.discard(name, name)


def feed(command: list[str], reader: Reader, limit: int, what: str) -> None:
    """Run a command with what is read for its standard input.

    :raises DriverError: it failed, or took longer than ``limit`` seconds
    """
    out, end = os.pipe()
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, stdin=out, stderr=errors) as process:
        os.close(out)
        clock = threading.Timer(limit, process.kill)
        clock.start()
        try:
            # One that ended early says why by itself.
            with contextlib.suppress(BrokenPipeError), open(end, "wb") as sink:
                shutil.copyfileobj(reader, sink)
            if process.wait() != 0:
                errors.seek(0)
                said = " ".join(errors.read(1000).decode(errors="replace").split())
                raise DriverError(f"{what} cannot be written: {said or f'not done within {limit} s'}")
        finally:
            clock.cancel()
            process.kill()
