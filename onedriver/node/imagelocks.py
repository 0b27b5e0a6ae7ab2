# SPDX-License-Identifier: Apache-2.0
"""Lock images individually, so that a long action with one does not block others."""

import hashlib
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.linux.lock import FileLock, byte_held
from onedriver.errors import DriverError


class Busy(DriverError):
    """Signal that another process holds the lock."""


class ImageLocks:
    """Lock single images between the processes of a node, shared or exclusively.

    :param file: every image has one byte of it
    :param timeout: seconds to wait for another process
    """

    def __init__(self, file: Path, timeout: float) -> None:
        self._file = file
        self._timeout = timeout

    def held(self, image: str, *, shared: bool = False, wait: bool = True) -> AbstractContextManager[int]:
        """Hold the image's lock within the block, exclusively or shared; raise Busy after the timeout."""
        timeout = self._timeout if wait else 0
        offset = int(hashlib.sha256(image.encode()).hexdigest()[:15], 16)
        return byte_held(self._file, offset, timeout, lambda _: Busy(
            f"another command on this node has worked on the image {image} for more than {timeout:g} s, as a rule the "
            f"deploy of another VM that brings it here; `fuser -v {self._file}` shows it. Try again when it is done"),
            shared=shared)


def naming(lock: FileLock) -> AbstractContextManager[int]:
    """Exclude others that name or unname images, for a short block; raise Busy after the lock's timeout."""
    return lock.held(lambda told: Busy(
        f"another command on this node names or removes images and does not end: {told}. If it waits for the engine, "
        "see the engine's log; then try again"))
