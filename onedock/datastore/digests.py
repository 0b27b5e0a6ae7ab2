# SPDX-License-Identifier: Apache-2.0
"""Compute and check digests of registries and the OCI image specification: ``sha256:`` and 64 hexadecimal digits."""

import hashlib
import io
import re
from typing import BinaryIO

from onedriver.errors import DriverError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
CHUNK = 1 << 20  # bytes


class DigestMismatch(DriverError):
    """Signal that the content does not match its digest and was discarded."""


class SizeMismatch(DigestMismatch):
    """Signal that the content exceeds its stated size and was discarded."""


def of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def require(what: str, expected: str | None, found: str) -> None:
    """Refuse content whose digest is not the expected one, if any."""
    if expected is not None and found != expected:
        raise DigestMismatch(f"{what} should have the digest {expected}, but has {found}: it was changed or damaged in "
                             "transfer; it was discarded")


class Counted(io.RawIOBase):
    """Read through to a stream, at most ``limit`` bytes, computing the digest of the data."""

    def __init__(self, stream: BinaryIO, limit: int | None = None) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        self._count(data)
        buffer[:len(data)] = data
        return len(data)

    def digest(self) -> str:
        """Read the rest of the stream, and return the digest of all of it."""
        while data := self._stream.read(CHUNK):
            self._count(data)
        return f"sha256:{self._hash.hexdigest()}"

    def _count(self, data: bytes) -> None:
        """Count the data; raise SizeMismatch above the limit."""
        self._hash.update(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise SizeMismatch("a layer has more bytes than the image's manifest says, by which OpenNebula counted "
                                   "them: create the image again; it was discarded")
