# SPDX-License-Identifier: Apache-2.0
"""Exclude concurrent resizes of a running container by the clouds' drivers and the elastic service."""

import zlib
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.errors import EngineBusy
from containerhost.linux.lock import FileLock

DIRECTORY = "resizing"  # below the directory that the drivers of a host share
FILES = 4096  # a few containers share a file, so that none is left of each that ever was
TIMEOUT = 60.0  # s; longer than a guest is waited for


def resizing(directory: Path, container: str, timeout: float = TIMEOUT) -> AbstractContextManager[object]:
    """Hold the container's lock while the block runs.

    :param directory: shared by all processes that create containers on this host
    :param timeout: seconds to wait for another process
    :raises EngineBusy: another process holds the lock for longer than that
    """
    file = f"{zlib.crc32(container.encode()) % FILES:03x}"
    return FileLock(directory / DIRECTORY / file, timeout).held(lambda reason: EngineBusy(
        f"another process changes the size of container {container}; try again: {reason}"))
