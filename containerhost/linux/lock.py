# SPDX-License-Identifier: Apache-2.0
"""A lock that all processes and threads of the host take through one file, and that a killed one lets go.

The file belongs to the owner of its folder, also where root is the first to need it: a service that is not root would
else never get the lock again.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux.files import Directory

PAUSE = 0.005  # seconds between two tries


class FileLock:
    """:param path: the file; made, with its folder, when first needed
    :param limit: seconds to wait for another holder
    """

    def __init__(self, path: Path, limit: float) -> None:
        self.path = path
        self._limit = limit

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """The lock belongs to the open file, so threads exclude each other as processes do.

        :returns: the file, open for reading and writing; a process that inherits it holds the lock, too
        :raises TimeoutError: another one holds it for longer than the limit
        :raises OSError: the file cannot be opened
        """
        handle = self._opened()
        try:
            self._wait_for(handle)
            yield handle
        finally:
            os.close(handle)

    def _opened(self) -> int:
        make_folder(self.path.parent)
        with Directory(self.path.parent) as folder:
            handle = None
            while handle is None:  # some remove a lock's file while they hold it
                if not folder.has(self.path.name):
                    folder.create(self.path.name, folder.owner if os.geteuid() == 0 else None)
                with contextlib.suppress(FileNotFoundError):
                    handle = folder.open(self.path.name, os.O_RDWR)
            try:
                adopt(handle, folder)
            except BaseException:
                os.close(handle)
                raise
            return handle

    def _wait_for(self, handle: int) -> None:
        deadline = time.monotonic() + self._limit
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has kept {self.path} locked for more than {self._limit:g} s; "
                                   f"see `fuser {self.path}`")
            time.sleep(PAUSE)


def adopt(handle: int, folder: Directory) -> None:
    """Give the folder's owner an empty file that root made with an earlier release."""
    found = os.fstat(handle)
    if os.geteuid() == 0 and (found.st_uid, found.st_gid) != folder.owner and found.st_nlink == 1 and not found.st_size:
        os.fchown(handle, *folder.owner)


def make_folder(path: Path) -> None:
    """Make what is missing of a folder; what root makes belongs to the owner of the folder that it is made in."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with Directory(path.parent) as parent:
        child = parent.child(path.name, create=True, mode=0o755)
        with child:
            if os.geteuid() == 0 and child.owner != parent.owner:
                os.fchown(child.fd, *parent.owner)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
