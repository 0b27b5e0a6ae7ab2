# SPDX-License-Identifier: Apache-2.0
"""Decompress streams, detecting the format by the first bytes, not by name or media type."""

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, cast

import zstandard

from onedriver.errors import BadInput

#: What a damaged tarball or a damaged packed stream makes Python's modules raise. A link that leads to itself makes
#: tarfile recurse.
DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError, tarfile.TarError,
           RecursionError)
WINDOW = 1 << 27  # bytes; as much memory as a stream of zstd or xz may ask for
BUFFER = 1 << 18  # bytes
PIECE = 1 << 13  # bytes of an xz stream: its rest is copied for each of the streams in it, which may be tiny
PADDING = b"\0"  # after an xz stream


def _zstd(stream: BinaryIO) -> Any:
    return zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(stream, read_across_frames=True)


class XzStream(io.RawIOBase):
    """Unpack an xz stream with little more memory than ``WINDOW``.

    A stream specifies its reader's window, up to 4 GiB, and :class:`lzma.LZMAFile` allocates that."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = self._new_decoder()

    @staticmethod
    def _new_decoder() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW + BUFFER)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; raise EOFError or LZMAError if the stream is truncated, damaged, or needs more memory."""
        data = b""
        while not data:
            if self._decoder.eof:
                if not (packed := self._next_stream()):
                    return 0
                self._decoder = self._new_decoder()
            elif not self._decoder.needs_input:
                packed = b""
            elif not (packed := self._stream.read(PIECE)):
                raise EOFError("the xz stream is cut off")
            data = self._decoder.decompress(packed, max_length=len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """Return the beginning of the stream after the last one and its padding; empty if there is none."""
        packed = self._decoder.unused_data or self._stream.read(PIECE)
        while packed and not (found := packed.lstrip(PADDING)):
            packed = self._stream.read(PIECE)
        return found if packed else b""


PACKED: Mapping[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ\x00": lambda stream: io.BufferedReader(XzStream(stream), BUFFER),
    b"\x28\xb5\x2f\xfd": _zstd,
}


class Corrupt(BadInput):
    """Signal that an archive or a layer is damaged."""


def reader(stream: io.RawIOBase) -> BinaryIO:
    """Return the decompressed content. Reading it may raise one of :data:`DAMAGED`."""
    buffered = io.BufferedReader(stream, BUFFER)
    unpack = of(buffered.peek(16))
    return cast(BinaryIO, unpack(cast(BinaryIO, buffered)) if unpack else buffered)


def of(head: bytes) -> Callable[[BinaryIO], Any] | None:
    """Detect by the first bytes how to unpack a stream; None if it is not packed."""
    return next((unpack for magic, unpack in PACKED.items() if head.startswith(magic)), None)
