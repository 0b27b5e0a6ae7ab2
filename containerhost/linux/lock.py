# SPDX-License-Identifier: Apache-2.0
"""Exclude other processes, and other threads of this one, by locks on open files.

The kernel releases a lock when the last process closes the file: also when it is killed, but not before programs
that inherited the fd end.

The package ``filelock`` is not suitable: releasing its lock unlocks the file also for programs that inherited it, it
cannot lock a part of a file, and a file that root uses first belongs to root. Version 3.9, that of Debian 12, also
follows a link at the file's path and truncates the file.
"""

import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux.files import Directory, closing
from containerhost.linux.poll import wait_until

Failure = Callable[[str], Exception]  # makes the exception from a message

INTERVAL = 0.005  # s between two attempts
BYTE_INTERVAL = 0.05  # s; byte locks are held for long, and many processes may wait
FLOCK = "hhqqi0q"  # struct flock of fcntl(2): type, whence, start, length, process


def try_lock(fd: int) -> bool:
    """Lock an open file, or a directory, unless another process has locked it (flock(2))."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire(fd: int, timeout: float, path: str | Path, failure: Failure = TimeoutError) -> None:
    """Lock an open file, or a directory, until all processes that have it open have closed it.

    :param timeout: seconds to wait for another holder
    :raises Exception: ``failure``: another process holds it for longer
    """
    if not wait_until(lambda: try_lock(fd), timeout, INTERVAL):
        raise failure(f"another process has kept {path} locked for more than {timeout:.3g} s; see `fuser {path}`")


class FileLock:
    """Lock by the name of a file.

    The file belongs to the owner of its directory, even if root creates it: otherwise a service that is not root
    could never lock it.

    :param path: the file; created, with its directory, when first needed
    :param timeout: seconds to wait for another holder
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self._timeout = timeout

    @contextlib.contextmanager
    def held(self, failure: Failure = TimeoutError) -> Iterator[int]:
        """Hold the lock within the block.

        :returns: the file, open for reading and writing; a process that inherits it holds the lock, too
        :raises Exception: ``failure``: another process holds it for longer than the limit
        :raises HostActionFailed: the file cannot be opened; OSError where ``failure`` is TimeoutError
        """
        try:
            opened = self._opened()
        except OSError as error:
            if failure is TimeoutError:
                raise
            raise HostActionFailed(f"{self.path} cannot be locked: {error}") from error
        with closing(opened) as fd:
            acquire(fd, self._timeout, self.path, failure)
            yield fd

    def _opened(self) -> int:
        make_directory(self.path.parent)
        with Directory(self.path.parent) as directory:
            fd = None
            while fd is None:  # the file may be removed by the holder of its lock
                if not directory.has(self.path.name):
                    directory.create(self.path.name, directory.owner if os.geteuid() == 0 else None)
                with contextlib.suppress(FileNotFoundError):
                    fd = directory.open(self.path.name, os.O_RDWR)
            try:
                adopt(fd, directory)
            except BaseException:
                os.close(fd)
                raise
            return fd


@contextlib.contextmanager
def byte_held(path: Path, offset: int, timeout: float, failure: Failure = TimeoutError, *,
              shared: bool = False) -> Iterator[int]:
    """Hold the lock of one byte of a file, which need not contain it, within the block.

    :param path: the file; created for this user only, with its directory, when first needed
    :param timeout: seconds to wait for another holder
    :param shared: hold it concurrently with others that share it
    :returns: the file, open; a process that inherits it holds the lock, too
    :raises Exception: ``failure``: another process holds it for longer
    :raises OSError: the file cannot be opened; ELOOP for a link
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as fd:
        if not wait_until(lambda: _try_byte(fd, offset, shared), timeout, BYTE_INTERVAL):
            raise failure(f"another process has kept byte {offset} of {path} locked for more than {timeout:g} s")
        yield fd


def byte_is_held(path: Path, offset: int) -> bool:
    """Return whether another process, or another thread of this one, holds the lock of one byte of a file.

    Takes no lock, so it delays no other process.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    with closing(fd):
        wanted = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        found: int = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[0]
        return found != fcntl.F_UNLCK


def _try_byte(fd: int, offset: int, shared: bool) -> bool:
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(FLOCK, kind, os.SEEK_SET, offset, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def adopt(fd: int, directory: Directory) -> None:
    """Give the directory's owner an empty file that root created with an earlier release."""
    found = os.fstat(fd)
    owner = found.st_uid, found.st_gid
    if os.geteuid() == 0 and owner != directory.owner and found.st_nlink == 1 and not found.st_size:
        os.fchown(fd, *directory.owner)


def make_directory(path: Path) -> None:
    """Create missing components of a directory, owned by the owner of the directory above."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with Directory(path.parent) as parent:
        child = parent.child(path.name, create=True, mode=0o755)
        with child:
            if os.geteuid() == 0 and child.owner != parent.owner:
                os.fchown(child.fd, *parent.owner)
