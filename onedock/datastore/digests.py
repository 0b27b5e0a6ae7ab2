# SPDX-License-Identifier: Apache-2.0
"""Compute and check digests as registries and the OCI image specification write them: ``sha256:`` and 64 hexadecimal
digits."""

import hashlib
import io
import re
from typing import BinaryIO

from onedriver.errors import DriverError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
CHUNK = 1 << 20  # bytes


class DigestMismatch(DriverError):
    """The content is not what its digest says; nothing of it is kept."""


def of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def require(what: str, expected: str | None, found: str) -> None:
    """Refuse content whose digest is not the expected one.

    :param expected: None when nobody told it
    """
    if expected is not None and found != expected:
        raise DigestMismatch(f"{what} should have the digest {expected}, but has {found}: it was changed or damaged on "
                             "its way; nothing of it is kept")


class Counted(io.RawIOBase):
    """Reads through to a stream and keeps the digest of all that passed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        self._hash.update(data)
        buffer[:len(data)] = data
        return len(data)

    def digest(self) -> str:
        """Return the digest of the whole stream, whose rest is read first."""
        while data := self._stream.read(CHUNK):
            self._hash.update(data)
        return f"sha256:{self._hash.hexdigest()}"
