# SPDX-License-Identifier: Apache-2.0
"""Directories that outlive no test run: one that a killed run left is removed by the next."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "containerhost-"
_LOCK = ".in-use"
YOUNG = 60  # s in which a directory may not have its lock yet


class RunDirectory:
    """A directory of this process below /tmp; a lock, which ends with the process, says that it is in use."""

    def __init__(self) -> None:
        purge()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path)
        os.close(self._lock)


def purge() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - directory.stat().st_mtime < YOUNG:
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):  # some other program's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
