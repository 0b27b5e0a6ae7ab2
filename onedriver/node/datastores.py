# SPDX-License-Identifier: Apache-2.0
"""Open disks and directories of VMs in OpenNebula's system datastores as root.

They belong to the user of OpenNebula (oneadmin), who may rename, replace and link everything in them at any time,
also between a check and its use. So root enters a VM's directory component by component without following a link,
opens only files that belong to the directory's owner, and then uses the open file by the path ``/proc/<pid>/fd/<n>``
that this module yields, which this process and its child programs can open again.

A path is always ``<datastores>/<datastore>/<vm>/<name>``.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from containerhost.errors import ContainerHostError
from containerhost.linux.files import Directory, closing
from onedriver.errors import BadInput, DriverError, NotSupported

MARK_LIMIT = 256  # bytes
UNFINISHED = ".unfinished"  # suffix of a disk's new file; a leftover of a killed process is replaced


class Disk(NamedTuple):
    """Describe an open file of a VM's disk.

    :ivar path: opens it again, in this process and its children
    :ivar file: its real path, for messages and for comparisons only
    :ivar owner: user and group id of the VM's directory
    """

    path: Path
    file: Path
    owner: tuple[int, int]


def open_directory(path: Path) -> Directory:
    """Open the directory of a VM, or of a datastore.

    :raises DriverError: a component is a link
    :raises FileNotFoundError: it is missing
    """
    with Directory("/") as root:
        try:
            return root.child(*path.parts[1:])
        except NotADirectoryError as error:
            raise DriverError(f"{path} has a link or a file among its components, which root does not follow below the "
                              "datastores: set the option `datastores` to the directory itself, and mount datastores "
                              "there instead of linking them") from error


def unwritable(error: OSError) -> DriverError:
    return DriverError(f"the datastore cannot be written: {error}; the driver is root on the node: export shared "
                       "datastores with no_root_squash")


@contextlib.contextmanager
def opened(file: Path, *, write: bool = False) -> Iterator[Disk]:
    """Open a disk within the block. It may be a link to another file of the datastores.

    :raises BadInput: it is missing
    :raises DriverError: it is not a regular file, has another owner than the VM's directory, or is not in a
        datastore
    """
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(open_directory(file.parent))
            # O_PATH does not open the file itself: a FIFO cannot block, a device is not accessed.
            fd = stack.enter_context(closing(os.open(file.name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory.fd)))
            disk = _checked(fd, directory, file)
            handle = stack.enter_context(closing(os.open(disk.path, flags)))
        except OSError as error:
            raise BadInput(f"disk {file} cannot be read: {error.strerror}") from error
        path = reopening(handle)
        with _named(path, file):
            yield disk._replace(path=path)


def _checked(fd: int, directory: Directory, file: Path) -> Disk:
    found, home = os.fstat(fd), os.fstat(directory.fd)
    real = Path(os.readlink(f"/proc/self/fd/{fd}"))
    if not real.is_relative_to(file.parents[2]):
        raise NotSupported(f"disk {file} is not in a datastore below {file.parents[2]}, but in {real}")
    if not stat.S_ISREG(found.st_mode):
        raise DriverError(f"disk {file} is not a regular file")
    if found.st_uid != home.st_uid:
        raise DriverError(f"disk {file} belongs to user {found.st_uid}, but the VM's directory to user {home.st_uid}: "
                          "give the file to that user")
    return Disk(reopening(fd), real, (home.st_uid, home.st_gid))


def reopening(fd: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{fd}")


@contextlib.contextmanager
def _named(path: Path, file: Path) -> Iterator[None]:
    """Name the file in errors instead of the path that opens it."""
    try:
        yield
    except (DriverError, ContainerHostError) as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), str(file))) from error


@contextlib.contextmanager
def replaced(file: Path, ready: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Replace a disk: the file at the yielded path becomes the disk when the block ends without an error.

    It has the owner and mode of the old one. Only one process at a time may do this.

    :param ready: called with the complete new file before it becomes the disk
    :raises DriverError: it cannot be written, or was replaced meanwhile; it is unchanged
    """
    with opened(file) as disk, _as_driver_error(f"disk {file} cannot be written and is as it was"), open_directory(
            disk.file.parent) as directory:
        old, name = disk.path.stat(), disk.file.name
        with directory.replacing(name, f"{name}{UNFINISHED}") as fd:
            os.fchown(fd, old.st_uid, old.st_gid)
            with _named(reopening(fd), file):
                yield reopening(fd)
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
            os.fsync(fd)
            if ready:
                ready(reopening(fd))
            if not os.path.samestat(directory.stat(name), old):
                raise DriverError(f"disk {file} was replaced while its new content was written: nothing is changed")


@contextlib.contextmanager
def created(file: Path) -> Iterator[Path]:
    """Create a file in a VM's directory: the one at the yielded path gets the name when the block succeeds.

    It belongs to the directory's owner, with mode 0600. Only one process at a time may do this.

    :raises DriverError: it cannot be written
    """
    with (_as_driver_error(f"{file} cannot be written"), open_directory(file.parent) as directory,
          directory.replacing(file.name, f"{file.name}{UNFINISHED}") as fd):
        os.fchown(fd, *directory.owner)
        with _named(reopening(fd), file):
            yield reopening(fd)


@contextlib.contextmanager
def _as_driver_error(result: str) -> Iterator[None]:
    """Raise a DriverError instead of an OSError, with the reason first, because OpenNebula truncates errors."""
    try:
        yield
    except OSError as error:
        raise DriverError(f"{error.strerror}: {result}") from error


def is_gone(store: Path, mark: str, identity: str | None, *names: str) -> bool:
    """Return whether a file is certainly gone from a datastore, which itself is present.

    A link with a missing target counts as present.

    :param mark: name of a file in it that identifies a mounted datastore
    :param identity: content of the mark; None if unknown
    :raises DriverError: it is uncertain
    """
    try:
        with open_directory(store) as directory:
            _require_identity(directory, mark, identity)
            try:
                _stat(directory, names)
            except FileNotFoundError:
                _require_identity(directory, mark, identity)
                return True
    except OSError as error:
        raise DriverError(f"{'/'.join(names)} cannot be checked in the datastore {store}: {error.strerror} "
                          f"({error.filename}). Is the datastore mounted? If it is, and has no file {mark}, make that "
                          f"file{f', with the line {identity}' if identity else ''}") from error
    return False


def _require_identity(store: Directory, mark: str, identity: str | None) -> None:
    """Raise DriverError for another datastore, or for an empty mount point."""
    if identity is None:
        store.stat(mark)
        return
    found = store.read(mark, MARK_LIMIT).decode(errors="replace").strip()
    if found != identity:
        raise DriverError(f"{store.path} is not the same datastore as before: its file {mark} has {found[:80]!r} "
                          f"instead of {identity!r}. Is the right one mounted?")


def _stat(directory: Directory, names: Sequence[str]) -> None:
    if len(names) == 1:
        directory.stat(names[0])
        return
    with directory.child(*names[:-1]) as parent:
        parent.stat(names[-1])
