"""A lock that all processes and threads of the host take through one file, and that a killed one lets go."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

PAUSE = 0.005  # seconds between two tries


class FileLock:
    """:param path: the file; made, with its folder, when first needed
    :param limit: seconds to wait for another holder
    """

    def __init__(self, path: Path, limit: float) -> None:
        self.path = path
        self._limit = limit

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The lock belongs to the open file, so threads exclude each other as processes do.

        :raises TimeoutError: another one holds it for longer than the limit
        :raises OSError: the file cannot be opened
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(handle)
            yield
        finally:
            os.close(handle)

    def _wait_for(self, handle: int) -> None:
        deadline = time.monotonic() + self._limit
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has kept {self.path} locked for more than {self._limit:g} s; "
                                   f"see `fuser {self.path}`")
            time.sleep(PAUSE)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
