# SPDX-License-Identifier: Apache-2.0
"""Turn an image file of any accepted format into a tar stream.

The format is detected from the content, never from the name. Each packed format is unpacked by its own maintained
program, which verifies its checksums.
"""

import contextlib
import errno
import os
import re
import subprocess
from collections.abc import Iterator
from typing import IO, BinaryIO, Final, cast

from containerhost.images.errors import BadImage
from containerhost.linux.run import not_run

BLOCK: Final = 512
SQUASHFS: Final = b"hsqs"
# Enough for `xz -9` (65 MiB) and `zstd --long` (128 MiB); larger dictionaries are refused.
PROGRAMS: Final = {
    b"\x1f\x8b": ("gzip", "--decompress", "--stdout"),
    b"\xfd7zXZ\x00": ("xz", "--decompress", "--stdout", "--format=xz", "--threads=1",
                      "--memlimit-decompress=256MiB"),
    b"\x28\xb5\x2f\xfd": ("zstd", "--decompress", "--stdout", "--quiet", "--memory=128MB"),
    b"BZh": ("bzip2", "--decompress", "--stdout"),
    SQUASHFS: ("sqfs2tar", "/dev/stdin"),
}
# Detected only for the message of the refusal.
OTHERS: Final = {
    b"QFI\xfb": "a QCOW2 disk image",
    b"KDMV": "a VMDK disk image",
    b"conectix": "a VHD disk image",
    b"vhdxfile": "a VHDX disk image",
    b"PK\x03\x04": "a ZIP archive",
    b"\x7fELF": "a program or kernel",
}
SAID: Final = 1000  # bytes of a program's errors that are reported
# zstd's error for trailing data that is not a frame; the frames before it were unpacked and verified.
NOT_A_FRAME: Final = "unsupported format"


def head(fd: int) -> bytes | None:
    """Return the first block of a file without moving its position; None for a pipe, which must be a plain tar."""
    try:
        return os.pread(fd, BLOCK, 0)
    except OSError as error:
        if error.errno == errno.ESPIPE:
            return None
        raise


@contextlib.contextmanager
def opened(fd: int, start: bytes | None) -> Iterator[BinaryIO]:
    """Open the tar stream in a file.

    The caller reads it to its end. The program that unpacks it must then have succeeded.

    :param start: its first block; None for a pipe, which is taken for a plain tar
    :raises BadImage: of an unknown format, or damaged
    """
    if start is None or is_header(start):
        with open(fd, "rb", buffering=1 << 20, closefd=False) as file:
            yield file
        return
    found = next((program for magic, program in PROGRAMS.items() if start.startswith(magic)), None)
    if found is None:
        other = next((words for magic, words in OTHERS.items() if start.startswith(magic)), "of an unknown format")
        raise BadImage(f"it is {other}; a container needs a tarball (plain, gz, xz, zst or bz2) or a squashfs")
    with unpacked(fd, found) as stream:
        yield stream


@contextlib.contextmanager
def unpacked(fd: int, command: tuple[str, ...]) -> Iterator[BinaryIO]:
    with open(os.memfd_create("errors"), "w+b") as errors:
        try:
            process = subprocess.Popen(command, stdin=fd, stdout=subprocess.PIPE, stderr=errors, bufsize=1 << 20)
        except FileNotFoundError as error:
            raise BadImage(f"it cannot be unpacked: {not_run(command[0], error)}") from error
        with process:
            stream = cast(IO[bytes], process.stdout)
            try:
                yield cast(BinaryIO, stream)
            except BadImage as error:
                # If the decompressor failed, its error explains the end of the stream.
                stream.close()
                if process.wait() > 0:
                    raise damaged(errors, command[0]) from error
                raise
            else:
                if process.wait() != 0 and not was_enlarged(fd, errors, command[0]):
                    raise damaged(errors, command[0])
            finally:
                process.kill()


def was_enlarged(fd: int, errors: IO[bytes], program: str) -> bool:
    """Return whether zstd failed only after the image in a file that ends in zeros: a disk enlarged to its SIZE.

    The other programs ignore such zeros. The caller has read the tar stream to its end.
    """
    if complaint(errors, program) != NOT_A_FRAME:
        return False
    size = os.fstat(fd).st_size
    return not any(os.pread(fd, BLOCK, max(size - BLOCK, 0)))


def damaged(errors: IO[bytes], program: str) -> BadImage:
    return BadImage(f"it is damaged: {complaint(errors, program)}")


def complaint(errors: IO[bytes], program: str) -> str:
    errors.seek(0)
    lines = errors.read(SAID).decode("utf-8", "replace").strip().splitlines() or ["it ends too early"]
    # Messages begin with the program's and the file's name.
    return re.sub(rf"^{program}: *(?:\(?/?\*?stdin\*?\\?\)?|/dev/stdin) ?: *", "", lines[0].strip())[:200]


def is_header(block: bytes) -> bool:
    """Return whether a file that starts with ``block`` is a tar archive (the oldest ones have no magic number)."""
    if len(block) < BLOCK or not any(block):
        return False
    digits = block[148:156].replace(b"\0", b" ").strip()
    counted = block[:148] + b" " * 8 + block[156:]
    # Old versions of tar summed signed bytes.
    total = sum(counted)
    return re.fullmatch(rb"[0-7]+", digits) is not None and \
        int(digits, 8) in (total, total - 256 * sum(byte > 127 for byte in counted))
