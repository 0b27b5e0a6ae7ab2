# SPDX-License-Identifier: Apache-2.0
"""Limit an image's use of a datastore, because the unpacked size of a packed image is unknown beforehand."""

from typing import BinaryIO

from onedock.datastore import digests
from onedriver.errors import BadInput

RESERVE = 1 << 30  # bytes that stay free; of a small datastore a part
PART = 20


class TooLarge(BadInput):
    """Signal that an image exceeds the space of a datastore."""


class Room:
    """Limit the bytes that one action may write to a datastore.

    :param free, total: bytes of the datastore's file system
    :param limit: bytes; None if only the free space limits the action
    """

    def __init__(self, free: int, total: int, limit: int | None = None) -> None:
        reserve = min(RESERVE, total // PART)
        most = max(0, free - reserve)
        self._why = f"{mib(most)} of it are free beside a reserve of {mib(reserve)}"
        if limit is not None:
            self._why += f", and its ONEDOCK_IMAGE_LIMIT is {mib(limit)}"
        self._left = most if limit is None else min(most, limit)

    def take(self, size: int) -> None:
        """Reserve space for bytes to be written; raise TooLarge if there is not enough."""
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"the unpacked image exceeds the datastore's limit: {self._why}; it was "
                           "discarded")

    def copy(self, source: BinaryIO, target: BinaryIO) -> None:
        while data := source.read(digests.CHUNK):
            self.take(len(data))
            target.write(data)


def mib(size: int) -> str:
    return f"{size >> 20} MiB"
