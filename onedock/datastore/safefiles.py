# SPDX-License-Identifier: Apache-2.0
"""Open files of the front-end that tenants may name as a source: only those in the datastore's SAFE_DIRS.

The open file is checked, so that neither a link, nor a concurrent change of one, can lead elsewhere.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from onedriver.errors import BadInput


class SafeFiles:
    """Open files below a datastore's SAFE_DIRS, and refuse all others."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = [Path(directory).resolve() for directory in directories]

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file in a safe directory; raise BadInput on any other."""
        fd = self._opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise BadInput(f"{path} is not a regular file")
        return open(fd, "rb")

    def is_directory(self, path: Path) -> bool:
        fd = self._opened(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return stat.S_ISDIR(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _opened(self, path: Path, flags: int) -> int:
        try:
            fd = os.open(path, flags)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        found = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not any(found.is_relative_to(directory) for directory in self._directories):
            os.close(fd)
            raise BadInput(f"images from this source are not permitted: {path}; this datastore permits "
                           f"{', '.join(map(str, self._directories)) or 'no directory'} (SAFE_DIRS)")
        return fd
