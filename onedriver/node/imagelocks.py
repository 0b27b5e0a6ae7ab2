# SPDX-License-Identifier: Apache-2.0
"""Locks of images, one for each: what takes long with one of them keeps only those waiting who want the same one."""

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux.lock import FileLock
from onedriver.errors import DriverError

PAUSE = 0.05  # s between two tries
FLOCK = "hhqqi0q"  # struct flock of fcntl(2): type, whence, start, length, process


class Busy(DriverError):
    """Another process has the lock."""


class ImageLocks:
    """:param file: every image has one byte of it; a process that ends lets its bytes go
    :param limit: seconds to wait for another process
    """

    def __init__(self, file: Path, limit: float) -> None:
        self._file = file
        self._limit = limit

    @contextlib.contextmanager
    def held(self, image: str, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Let nobody else hold the image's lock within the block, or only those who share it.

        :raises Busy: another one holds it, for longer than the limit
        """
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            limit = self._limit if wait else 0
            end = time.monotonic() + limit
            while not taken(handle, image, shared=shared):
                if time.monotonic() >= end:
                    raise Busy(f"another command on this node has worked on the image {image} for more than "
                               f"{limit:g} s, as a rule the deploy of another VM that brings it here; `fuser -v "
                               f"{self._file}` shows it. Try again when it is done")
                time.sleep(PAUSE)
            yield
        finally:
            os.close(handle)


def taken(handle: int, image: str, *, shared: bool) -> bool:
    """Try to take the lock, which belongs to the open file, so that threads exclude each other as processes do."""
    place = int(hashlib.sha256(image.encode()).hexdigest()[:15], 16)
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(FLOCK, kind, os.SEEK_SET, place, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def naming(lock: FileLock) -> Iterator[None]:
    """Let nobody else name and unname images within the block, which does nothing that takes long.

    :raises Busy: another one does, for longer than the lock's limit
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held())
        except TimeoutError as error:
            raise Busy(f"another command on this node names or removes images and does not end: {error}. If it waits "
                       "for the engine, see the engine's log; then try again") from error
        yield
