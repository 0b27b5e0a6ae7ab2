# SPDX-License-Identifier: Apache-2.0
"""Files of the front-end that tenants may name as the source of an image: only what is in the datastore's SAFE_DIRS.

The check looks at the file that is open, so that no link, and nobody who changes one meanwhile, leads elsewhere.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from onedriver.errors import BadInput


class SafeFiles:
    """:param folders: SAFE_DIRS
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [Path(folder).resolve() for folder in folders]

    def open(self, path: Path) -> BinaryIO:
        """:raises BadInput: it is not there, no regular file, or not in a safe folder"""
        handle = self._opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadInput(f"{path} is no regular file")
        return os.fdopen(handle, "rb")

    def is_folder(self, path: Path) -> bool:
        handle = self._opened(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return stat.S_ISDIR(os.fstat(handle).st_mode)
        finally:
            os.close(handle)

    def _opened(self, path: Path, flags: int) -> int:
        try:
            handle = os.open(path, flags)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        found = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not any(found.is_relative_to(folder) for folder in self._folders):
            os.close(handle)
            raise BadInput(f"images may not be taken from {path}; this datastore takes them from "
                           f"{', '.join(map(str, self._folders)) or 'no folder'} (SAFE_DIRS)")
        return handle
