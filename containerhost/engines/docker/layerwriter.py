# SPDX-License-Identifier: Apache-2.0
"""Write what changed in the directory of a container's own files (overlayfs' upper one) as a layer of an image.

The container may run, and its owner may change everything while it is read. So each directory is opened relative to
its parent's descriptor without following a link; only regular files are opened, as many bytes are read of one as it
had, and whatever changes meanwhile is written again in the next layer. The layer that is written when the container
has stopped is exact.

An entry that was written is recognised by its inode and the time of its last change. That time proves nothing for an
entry that changed a moment before, because the kernel's clock ticks slowly and a write in progress sets it only once:
see :func:`begin`.

Formats: Docker's image specification v1.2; whiteouts and opaque directories of overlayfs (the kernel's
filesystems/overlayfs.rst).
"""

import errno
import os
import stat
import tarfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from containerhost.linux.files import closing
from containerhost.linux.run import check

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
CAPABILITY: Final = "security.capability"  # the only extended attribute that Docker itself takes along
OVERLAY_OPAQUE: Final = "trusted.overlay.opaque"
DEPTH: Final = 256  # directories within one another, as in images.members
ENTRIES: Final = 2_000_000  # of a container that runs: each takes memory
LINKS: Final = 256 << 20  # characters of the names of files that have several names: these take memory
#: The clock's lead over the monotonic one. A step of it would let changes of a moment before look old.
LEAD: Final = time.time_ns() - time.monotonic_ns()
PIECE: Final = 1 << 20  # bytes
SYNC_TIMEOUT: Final = 600.0  # s
SETTLED: Final = 10 * 10**9  # ns since an entry's last change after which no asynchronous write of before is pending
#: Errors of an entry that is replaced or removed while it is opened.
CHANGING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EAGAIN, errno.ESTALE})
TYPES: Final = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE,
                stat.S_IFCHR: tarfile.CHRTYPE, stat.S_IFBLK: tarfile.BLKTYPE, stat.S_IFREG: tarfile.REGTYPE}

Entries = Mapping[str, "Entry"]
NOTHING: Final[Entries] = {}


class Entry(NamedTuple):
    """Describe an entry that a layer has.

    :ivar identity: inode and type, and whether a directory is opaque
    :ivar changed: ns; -1 if it may have changed while it was written
    :ivar entries: those of a directory, by name
    """

    identity: tuple[int, int, bool]
    changed: int
    entries: Entries


class Bounds(NamedTuple):
    """Bound what may be written.

    :ivar size: bytes
    :ivar go_on: called often; raises an error to end it
    """

    size: int
    go_on: Callable[[], None] = lambda: None


UNBOUNDED: Final = Bounds(1 << 62)


class Target:
    """Write to a file within bounds."""

    def __init__(self, file: BinaryIO, bounds: Bounds) -> None:
        self.file = file
        self._bounds = bounds
        self._left = bounds.size

    def write(self, data: bytes) -> int:
        self.require(len(data))
        self._left -= len(data)
        return self.file.write(data)

    def require(self, size: int = 0) -> None:
        """Raise OSError if fewer than ``size`` bytes may still be written."""
        self._bounds.go_on()
        if size > self._left:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: it has more than {self._bounds.size >> 20} MiB, "
                                        "those of holes in its files counted")


def begin(upper: Path, frozen: AbstractContextManager[object]) -> int:
    """Prepare to read the files of a container that runs.

    No process of it is within a write now, and no mapped page is left that can be written without a change of the
    file's time.

    :param frozen: freezes the container's processes
    :returns: the time for :func:`write`
    :raises HostActionFailed: it cannot be frozen, or the files' data is not on the disk in time
    """
    with frozen:
        began = time.monotonic_ns() + min(LEAD, time.time_ns() - time.monotonic_ns())
    check(["sync", "--file-system", str(upper)], SYNC_TIMEOUT, f"the files of {upper} cannot be written to disk")
    return began


def write(upper: Path, target: Target, before: Entries = NOTHING, began: int | None = None) -> Entries:
    """Write a layer.

    :param before: what the layers below have of the directory
    :param began: of :func:`begin`; None if the container is stopped
    :returns: what the layers have now; without what is new where the container is stopped: no layer follows
    :raises OSError: it cannot be read, or written
    """
    with (tarfile.open(fileobj=cast(BinaryIO, target), mode="w|", format=tarfile.PAX_FORMAT, bufsize=PIECE) as layer,
          closing(os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top):
        cast(Any, layer).copybufsize = PIECE
        # A layer whose first name begins like a compressed file would be decompressed: names begin with a dot.
        return _Writer(layer, target, began).directory(top, "./", before, 0)


class _Writer:
    def __init__(self, layer: tarfile.TarFile, target: Target, began: int | None) -> None:
        self._layer = layer
        self._target = target
        self._began = began
        self._count = 0
        self._unwritten: list[list[tarfile.TarInfo]] = []  # directories of the present path
        self._links: dict[int, str] = {}
        self._links_left = LINKS

    def directory(self, fd: int, place: str, before: Entries, depth: int) -> Entries:
        """Write what changed in an open directory, and return what it has."""
        found: dict[str, Entry] = {}
        with os.scandir(fd) as names:  # of which its owner may make any number meanwhile
            for name in (each.name for each in names):
                try:
                    entry = self._entry(fd, place, name, before.get(name), depth)
                except OSError as error:
                    if self._began is None or error.errno not in CHANGING:
                        raise
                    continue
                if entry is not None and (self._began is not None or name in before):
                    found[name] = entry
        for name in sorted(before.keys() - found.keys()):
            self._add(tarfile.TarInfo(f"{place}{WHITEOUT}{name}"))
        return found

    def _entry(self, fd: int, place: str, name: str, before: Entry | None, depth: int) -> Entry | None:
        """Write an entry if it changed; return None for one that would hide another as part of a layer."""
        self._target.require()
        self._count += 1
        if self._began is not None and self._count > ENTRIES:
            raise OSError(errno.E2BIG, f"it has more than {ENTRIES} files")
        if name.startswith(WHITEOUT):
            return None
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return self._directory(fd, place, name, before, depth)
        now = _described(found)
        if now == before:
            return before
        if stat.S_ISREG(found.st_mode):
            return self._file(fd, place, name)
        if stat.S_ISSOCK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == 0):
            info = tarfile.TarInfo(f"{place}{WHITEOUT}{name}")  # no layer has a socket: it hides what it replaced
        else:
            info = _info(place + name, found)
        if info.issym():
            info.linkname = os.readlink(name, dir_fd=fd)
        self._add(info)
        return self._settled(now)

    def _directory(self, fd: int, place: str, name: str, before: Entry | None, depth: int) -> Entry:
        if depth == DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"it has more than {DEPTH} directories within one another")
        with closing(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)) as own:
            found, opaque = os.fstat(own), _attribute(own, OVERLAY_OPAQUE) == b"y"
            now = _described(found, opaque=opaque)
            infos, known = [_info(place + name, found)], NOTHING
            if before is not None and before.identity == now.identity:
                known = before.entries
            elif opaque or before is not None:  # it hides what the layers below have
                infos.append(tarfile.TarInfo(f"{place}{name}/{OPAQUE}"))
            self._unwritten.append(infos)
            try:
                if before is None or (before.identity, before.changed) != (now.identity, now.changed):
                    self._write_directories()
                return self._settled(now)._replace(entries=self.directory(own, f"{place}{name}/", known, depth + 1))
            finally:
                del self._unwritten[-1:]  # unless it is written

    def _file(self, fd: int, place: str, name: str) -> Entry:
        with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)) as place_of_it:
            # Not opened yet: a FIFO would wait, and a device node may be the host's.
            if not stat.S_ISREG(os.fstat(place_of_it).st_mode):
                raise OSError(errno.EINVAL, f"{place}{name} is not a file any more")
            handle = os.open(f"/proc/self/fd/{place_of_it}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:
            found = os.fstat(handle)
            info = _info(place + name, found)
            if capability := _attribute(handle, CAPABILITY):
                info.pax_headers = {f"SCHILY.xattr.{CAPABILITY}": capability.decode("utf-8", "surrogateescape")}
            first = self._first_name(found, info.name)
            if first != info.name:
                info.type, info.linkname = tarfile.LNKTYPE, first
                self._add(info)
            else:
                info.size = found.st_size
                self._add(info, file if self._began is None else _Padded(file, found.st_size))
        return self._settled(_described(found))

    def _first_name(self, found: os.stat_result, name: str) -> str:
        """Return the name by which the layer has a file already; else this one."""
        if found.st_nlink < 2:
            return name
        first = self._links.setdefault(found.st_ino, name)
        self._links_left -= len(name) if first == name else 0
        if self._links_left < 0:
            raise OSError(errno.E2BIG, "it has too many files with several names")
        return first

    def _settled(self, entry: Entry) -> Entry:
        """Return an entry that is written, without its time if it may have changed since that was read."""
        settled = self._began is None or entry.changed < self._began - SETTLED
        return entry if settled else entry._replace(changed=-1)

    def _add(self, info: tarfile.TarInfo, file: Any = None) -> None:
        self._write_directories()
        self._write(info, file)

    def _write_directories(self) -> None:
        for infos in self._unwritten:
            for info in infos:
                self._write(info)
            infos.clear()

    def _write(self, info: tarfile.TarInfo, file: Any = None) -> None:
        self._target.require(info.size)
        self._layer.addfile(info, file)
        self._layer.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all


class _Padded:
    """Read as many bytes of a file as it had, and zeros for those that it has no more."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        piece: bytes = self._file.read(wanted) or bytes(wanted)
        self._left -= len(piece)
        return piece + self.read(wanted - len(piece)) if len(piece) < wanted else piece


def _described(found: os.stat_result, *, opaque: bool = False) -> Entry:
    return Entry((found.st_ino, stat.S_IFMT(found.st_mode), opaque), found.st_ctime_ns, NOTHING)


def _info(name: str, found: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = TYPES[stat.S_IFMT(found.st_mode)], stat.S_IMODE(found.st_mode)
    info.uid, info.gid = found.st_uid, found.st_gid
    info.mtime = found.st_mtime_ns // 10**9  # as Docker has it; tarfile writes 10 µs as 1e-05, which Docker refuses
    if info.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = os.major(found.st_rdev), os.minor(found.st_rdev)
    return info


def _attribute(fd: int, name: str) -> bytes:
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
        return b""
