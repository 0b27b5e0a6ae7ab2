"""What a downloaded image file is: found in its bytes, never in its name or in what somebody claims of it.

The whole file is read once, in small pieces: that proves it undamaged and measures it. Nothing is unpacked.
"""

import bz2
import dataclasses
import enum
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import zstandard

from nova_lxd_ext.image import imagemetadata, squashfs, tarwalk
from nova_lxd_ext.image.imageerrors import BadImage, TooLarge

# Enough for `xz -9` (65 MiB) and `zstd --long` (128 MiB); a dictionary that only wants our memory is refused.
DECODER_MEMORY: Final = 256 * 1024 * 1024
WINDOW: Final = 128 * 1024 * 1024
METADATA: Final = "metadata.yaml"


class Format(enum.StrEnum):
    """``unified``: metadata.yaml and rootfs/ in one tarball (LXD doc, "Image format"); the others hold a root alone."""

    UNIFIED = "unified"
    ROOTFS = "rootfs"
    SQUASHFS = "squashfs"


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """:ivar unpacked: bytes it takes on disk, as the length of the uncompressed tar (which rounds files up to
        512 bytes and does not count holes), or what a squashfs lists
    :ivar architecture: as metadata.yaml names it; None when the file does not say
    """

    format: Format
    unpacked: int
    architecture: str | None = None


def inspect(path: Path, limit: int | None = None) -> ImageFile:
    """Read the whole file at ``path``.

    :param limit: bytes it may have unpacked; reading stops there, so a bomb costs no more than the disk it asks for
    :raises BadImage: it is damaged, or nothing a container can boot from
    :raises TooLarge: it has more than ``limit`` bytes unpacked
    """
    with path.open("rb") as file:
        start = file.read(tarwalk.BLOCK)
        file.seek(0)
        if start.startswith(squashfs.MAGIC):
            contents = squashfs.contents(path, limit)
            form = Format.SQUASHFS if contents.tops is None else _format(contents.tops, squashed=True)
            return ImageFile(form, contents.size)
        return _inspect_tar(_Metered(_decompressed(start, file), limit))


def _inspect_tar(stream: "_Metered") -> ImageFile:
    tops: set[str] = set()
    metadata: bytes | None = None
    try:
        for member in tarwalk.members(stream.read, wanted=(METADATA,)):
            first, _, rest = member.name.partition("/")
            tops.update({first, f"{first}/{rest.partition('/')[0]}"} & KNOWN)
            if member.content is not None:
                metadata = member.content
        # What follows the end mark is padding, but the compressor's own checksum stands behind it.
        while stream.read(tarwalk.CHUNK):
            pass
    except (tarwalk.BadTar, EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise BadImage(f"it is damaged: {error}") from error
    form = _format(tops, squashed=False)
    named = imagemetadata.architecture(metadata or b"") if form is Format.UNIFIED else None
    return ImageFile(form, stream.total, named)


# Where a root file system shows itself. Anything else in an image is of no interest here.
ROOT_FOLDERS: Final = frozenset({"bin", "sbin", "usr"})
UNIFIED_ROOTS: Final = frozenset(f"rootfs/{folder}" for folder in ROOT_FOLDERS)
DOCKER_MARKS: Final = frozenset({"oci-layout", "manifest.json"})
KNOWN: Final = ROOT_FOLDERS | UNIFIED_ROOTS | DOCKER_MARKS | {METADATA, "rootfs"}


def _format(tops: set[str], *, squashed: bool) -> Format:
    unified = METADATA in tops and "rootfs" in tops
    if unified and squashed:
        raise BadImage("it is a unified LXD image as squashfs; upload it as a tarball, or its root file system alone")
    if unified and tops & UNIFIED_ROOTS:
        return Format.UNIFIED
    if tops & ROOT_FOLDERS:
        return Format.SQUASHFS if squashed else Format.ROOTFS
    if tops & DOCKER_MARKS:
        raise BadImage("it is a Docker or OCI archive; upload the file system of a container made from it "
                       "('docker export') instead")
    if METADATA in tops:
        raise BadImage("it holds metadata.yaml but no root file system; upload the image's other half")
    raise BadImage("it holds no root file system: neither metadata.yaml with rootfs/, nor any of bin, sbin and usr")


# Disk images of virtual machines, told apart so that the complaint can name them.
OTHERS: Final = {
    b"QFI\xfb": "a QCOW2 disk image",
    b"KDMV": "a VMDK disk image",
    b"conectix": "a VHD disk image",
    b"vhdxfile": "a VHDX disk image",
    b"PK\x03\x04": "a ZIP archive",
    b"\x7fELF": "a program or kernel",
}


def _decompressed(start: bytes, file: BinaryIO) -> BinaryIO:
    """The tar stream in ``file``, whose first block is ``start``."""
    for magic, decoder in DECODERS.items():
        if start.startswith(magic):
            return decoder(file)
    if tarwalk.is_header(start):
        return file
    found = next((words for magic, words in OTHERS.items() if start.startswith(magic)), "of an unknown format")
    raise BadImage(f"it is {found}; a container needs a tarball (plain, gz, xz, zst or bz2) or a squashfs")


def _gzip(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file))


def _zstd(file: BinaryIO) -> BinaryIO:
    # A truncated frame ends this reader without an error; the walk then misses the end-of-archive mark.
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    return cast(BinaryIO, decoder.stream_reader(file, read_across_frames=True))


def _xz(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, _Streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=DECODER_MEMORY)))


def _bzip2(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, _Streams(file, bz2.BZ2Decompressor))


DECODERS: Final[dict[bytes, Callable[[BinaryIO], BinaryIO]]] = {
    b"\x1f\x8b": _gzip,
    b"\x28\xb5\x2f\xfd": _zstd,
    b"\xfd7zXZ\x00": _xz,
    b"BZh": _bzip2,
}


class _Streams(io.RawIOBase):
    """One or more compressed streams behind each other; lzma.open has no memory limit, hence this."""

    def __init__(self, file: BinaryIO, decoder: Callable[[], Any]) -> None:
        self._file = file
        self._new = decoder
        self._decoder = decoder()

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._decoder.eof:
                # xz pads streams with zeros to multiples of four bytes.
                rest = self._decoder.unused_data.lstrip(b"\0") or self._file.read(tarwalk.CHUNK).lstrip(b"\0")
                if not rest:
                    return b""
                self._decoder = self._new()
            else:
                rest = self._file.read(tarwalk.CHUNK) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not rest:
                    raise EOFError("the compressed data ends too early")
            data = cast(bytes, self._decoder.decompress(rest, size))
            if data:
                return data


class _Metered:
    """Counts what is read from a stream and stops at a limit."""

    def __init__(self, stream: BinaryIO, limit: int | None) -> None:
        self._stream = stream
        self._limit = limit
        self.total = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.total += len(data)
        if self._limit is not None and self.total > self._limit:
            raise TooLarge(self.total, self._limit)
        return data
