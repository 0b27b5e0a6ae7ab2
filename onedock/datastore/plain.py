"""Streams that may be packed, read unpacked. How one is packed its first bytes tell, not its name or media type."""

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
WINDOW = 1 << 27  # bytes; as much memory as a zstd stream may ask for
BUFFER = 1 << 18  # bytes


def _zstd(stream: BinaryIO) -> Any:
    return zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(stream, read_across_frames=True)


PACKED: Mapping[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}


class Corrupt(BadInput):
    """An archive or a layer is damaged."""


def reader(stream: io.RawIOBase) -> BinaryIO:
    """The unpacked content. Reading it may raise one of :data:`DAMAGED`."""
    buffered = io.BufferedReader(stream, BUFFER)
    unpack = of(buffered.peek(16))
    return cast(BinaryIO, unpack(cast(BinaryIO, buffered)) if unpack else buffered)


def of(head: bytes) -> Callable[[BinaryIO], Any] | None:
    """:returns: how to unpack; None for what is not packed"""
    return next((unpack for magic, unpack in PACKED.items() if head.startswith(magic)), None)
