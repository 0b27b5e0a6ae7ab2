# SPDX-License-Identifier: Apache-2.0
"""Write tar archives of validated members.

Formats: POSIX pax (pax(1), "pax Header Block"); sparse files as GNU tar's "PAX Format, Version 1.0".
"""

import tarfile
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final

from containerhost.images.members import BLOCK, PIECE, Kind, Member, Path, raw

RECORD: Final = 20 * BLOCK
LARGEST_SIZE: Final = 8 ** 11 - 1
LARGEST_ID: Final = 8 ** 7 - 1
SHORT: Final = 100  # bytes; the longest name in a plain header

TYPES: Final = {Kind.FILE: tarfile.REGTYPE, Kind.HARD_LINK: tarfile.LNKTYPE, Kind.SYMLINK: tarfile.SYMTYPE,
                Kind.DIRECTORY: tarfile.DIRTYPE, Kind.FIFO: tarfile.FIFOTYPE}


class Writer:
    """Write validated members to a tar archive in pax format."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.written = 0

    def add(self, member: Member, data: Callable[[int], bytes]) -> None:
        """Write a member.

        :param data: returns exactly that many bytes of its stored data
        """
        name = raw("/".join(member.path) or ".")
        link = raw("/".join(member.target) if member.kind is Kind.HARD_LINK else member.link)
        records = dict(member.attributes)
        sparse = b""
        if member.segments is not None:
            sparse = sparse_map(member)
            records |= {"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0", "GNU.sparse.name": name,
                        "GNU.sparse.realsize": b"%d" % member.size}
        size = len(sparse) + member.stored
        for key, value, largest in (("size", size, LARGEST_SIZE), ("uid", member.uid, LARGEST_ID),
                                    ("gid", member.gid, LARGEST_ID)):
            if value > largest:
                records[key] = b"%d" % value
        records |= {key: value for key, value in (("path", name), ("linkpath", link)) if len(value) > SHORT}
        if records:
            content = pax(records)
            self._header(b"./PaxHeaders", tarfile.XHDTYPE, len(content))
            self._write(padded(content))
        self._header(name, TYPES[member.kind], size, link, member)
        self._write(sparse)
        self._copy(member.stored, data)

    def end(self) -> None:
        self._write(bytes(2 * BLOCK))
        self._write(bytes(-self.written % RECORD))

    def _header(self, name: bytes, kind: bytes, size: int, link: bytes = b"", member: Member | None = None) -> None:
        info = tarfile.TarInfo(short(name))
        info.type, info.size, info.linkname = kind, size if size <= LARGEST_SIZE else 0, short(link)
        if member is not None:
            info.mode, info.mtime = member.mode, member.mtime
            info.uid, info.gid = (each if each <= LARGEST_ID else 0 for each in (member.uid, member.gid))
        self._write(info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape"))

    def _copy(self, size: int, data: Callable[[int], bytes]) -> None:
        left = size
        while left:
            piece = data(min(PIECE, left))
            left -= len(piece)
            self._write(piece)
        self._write(bytes(-size % BLOCK))

    def _write(self, data: bytes) -> None:
        self._target.write(data)
        self.written += len(data)


def short(name: bytes) -> str:
    return name[:SHORT].decode("utf-8", "surrogateescape")


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def pax(records: Mapping[str, bytes]) -> bytes:
    """Return the content of an extended header: records that begin with their length."""
    found = []
    for key, value in records.items():
        rest = b" " + raw(key) + b"=" + value + b"\n"
        length = len(rest) + len(str(len(rest)))
        length = len(rest) + len(str(length))
        found.append(b"%d" % length + rest)
    return b"".join(found)


def sparse_map(member: Member) -> bytes:
    segments = list(member.segments or ())
    if not segments or sum(segments[-1]) < member.size:
        segments.append((member.size, 0))
    return padded(b"%d\n" % len(segments) + b"".join(b"%d\n%d\n" % segment for segment in segments))


def single(path: Path, content: bytes, target: Writer) -> None:
    """Write a regular file owned by root."""
    left = memoryview(content)

    def data(size: int) -> bytes:
        nonlocal left
        piece, left = left[:size], left[size:]
        return bytes(piece)

    target.add(Member(path, Kind.FILE, 0o644, 0, 0, 0, size=len(content)), data)
