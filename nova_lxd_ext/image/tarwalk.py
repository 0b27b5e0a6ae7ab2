"""Walks the members of a tar stream without unpacking it.

Formats: POSIX pax and ustar (pax(1), "ustar Interchange Format"), GNU (GNU tar manual, "Basic Tar Format").
The standard library's tarfile is not used on a tenant's bytes: it takes a damaged header for the end of the
archive, and reads a pax header of any claimed size into memory.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

BLOCK: Final = 512
LARGEST_HEADER: Final = 1024 * 1024
CHUNK: Final = 256 * 1024

PAX: Final = b"x"
LONG_NAME: Final = b"L"
GNU_SPARSE: Final = b"S"
EXTENSIONS: Final = (PAX, b"g", LONG_NAME, b"K")  # headers about the next member (or, for g, about all that follow)
WITHOUT_DATA: Final = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, fifos: their size is no length

Read = Callable[[int], bytes]


class BadTar(Exception):
    """The stream is not a whole, undamaged tar archive. The message says where it breaks."""


@dataclasses.dataclass(frozen=True)
class Member:
    """:ivar name: without a leading ``./`` and a trailing ``/``
    :ivar folder: whether it is one
    :ivar content: its bytes if it was wanted, else None
    """

    name: str
    folder: bool
    content: bytes | None


def members(read: Read, wanted: Collection[str] = ()) -> Iterator[Member]:
    """Each member up to the end-of-archive mark.

    :param read: gives up to that many bytes; nothing at the end of the stream
    :param wanted: names of the (small) members whose content is kept
    :raises BadTar: a header is damaged, or the stream ends before the mark
    """
    name: str | None = None
    size: int | None = None
    while True:
        header = _exactly(read, BLOCK, "before the end-of-archive mark")
        if not any(header):
            return
        _check(header)
        kind = header[156:157]
        length = _number(header[124:136])
        if kind in EXTENSIONS:
            text = _small(read, length, "an extended header")
            if kind == PAX:
                name, size = _pax(text, b"path") or name, _pax_size(text, size)
            elif kind == LONG_NAME:
                name = _text(text)
            continue
        if kind == GNU_SPARSE:
            _skip_sparse_map(read, header)
        member = _clean(name if name is not None else _short_name(header))
        length = 0 if kind in WITHOUT_DATA else length if size is None else size
        content = None
        if member in wanted and kind in (b"0", b"\0"):
            content = _small(read, length, member)
        else:
            _skip(read, _padded(length), member)
        yield Member(member, kind == b"5", content)
        name = size = None


def is_header(block: bytes) -> bool:
    """Whether a file that starts with ``block`` is a tar archive (the oldest ones have no magic number)."""
    try:
        _check(block)
    except (BadTar, IndexError):
        return False
    return any(block)


def _check(header: bytes) -> None:
    """The checksum counts the eight bytes of its own field as spaces; old tars summed signed bytes."""
    claimed = _number(header[148:156])
    plain = header[:148] + b" " * 8 + header[156:]
    total = sum(plain)
    signed = total - 256 * sum(1 for byte in plain if byte > 127)
    if claimed not in (total, signed):
        raise BadTar("a header's checksum is wrong")


def _number(field: bytes) -> int:
    """Octal digits, or base-256 where the first bit is set (GNU, for sizes from 8 GiB)."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if not re.fullmatch(rb"[0-7]*", digits):
        raise BadTar("a header holds a number that is none")
    return int(digits or b"0", 8)


def _short_name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    name = _text(header[:100])
    return f"{prefix}/{name}" if prefix else name


def _pax(text: bytes, key: bytes) -> str | None:
    found = re.findall(rb"(?:^|\n)\d+ " + key + rb"=([^\n]*)", text)
    return _text(found[-1]) if found else None


def _pax_size(text: bytes, before: int | None) -> int | None:
    found = _pax(text, b"size")
    if found is None:
        return before
    if not re.fullmatch(r"[0-9]{1,20}", found):
        raise BadTar("an extended header holds a size that is none")
    return int(found)


def _skip_sparse_map(read: Read, header: bytes) -> None:
    more = header[482]
    while more:
        more = _exactly(read, BLOCK, "in a sparse file's map")[504]


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "replace")


def _clean(name: str) -> str:
    return name.removeprefix("./").strip("/") or "."


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _small(read: Read, size: int, what: str) -> bytes:
    if size > LARGEST_HEADER:
        raise BadTar(f"{what} claims {size} bytes; {LARGEST_HEADER} is the most it may have")
    return _exactly(read, _padded(size), f"in {what}")[:size]


def _skip(read: Read, size: int, what: str) -> None:
    while size:
        size -= len(_some(read, min(size, CHUNK), f"in {what!r}"))


def _exactly(read: Read, size: int, where: str) -> bytes:
    parts = []
    while size:
        parts.append(_some(read, size, where))
        size -= len(parts[-1])
    return b"".join(parts)


def _some(read: Read, size: int, where: str) -> bytes:
    data = read(size)
    if not data:
        raise BadTar(f"it ends {where}")
    return data
