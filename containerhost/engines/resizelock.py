# SPDX-License-Identifier: Apache-2.0
"""Exclude concurrent resizes of a running container by the clouds' drivers and the elastic service."""

import zlib
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.errors import EngineBusy
from containerhost.linux.lock import FileLock

DIRECTORY = "resizing"  # below the lock directory of all drivers
FILES = 4096  # several containers share a lock file, so that the number of files is limited
TIMEOUT = 60.0  # s; longer than the notice period of a guest


def resizing(directory: Path, container: str, timeout: float = TIMEOUT) -> AbstractContextManager[object]:
    """Hold the container's lock while the block runs.

    :param timeout: seconds to wait for another process
    :raises EngineBusy: another process holds the lock for longer than that
    """
    file = f"{zlib.crc32(container.encode()) % FILES:03x}"
    return FileLock(directory / DIRECTORY / file, timeout).held(lambda reason: EngineBusy(
        f"another process changes the size of container {container}; try again: {reason}"))
