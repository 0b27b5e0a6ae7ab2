# SPDX-License-Identifier: Apache-2.0
"""Parse a tar stream into validated members, with bounded memory. This is the only parser of a tenant's archive.

It uses the standard library's ``tarfile`` over a stream with limits: ``tarfile`` alone takes a damaged header for
the archive's end, reads a header of any claimed size into memory, and needs quadratic time for a malicious extended
header.
"""

import dataclasses
import enum
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, Final, cast

from containerhost.images import attributes
from containerhost.images.errors import BadImage, TooLarge

BLOCK: Final = 512
PIECE: Final = 1 << 20
HEADERS_LIMIT: Final = 1 << 20  # bytes; total headers of one member
MEMBERS_LIMIT: Final = 2_000_000
HOLES: Final = 4  # ratio to the bytes that may be read: programs that copy a container read its holes as zeros
PATH_LIMIT: Final = 4000  # bytes; the kernel's limit is 4096 with the destination directory
NAME_LIMIT: Final = 255  # bytes
DEPTH_LIMIT: Final = 256  # nested directories
LAST_ID: Final = 2 ** 32 - 2
LAST_TIME: Final = 8 ** 11 - 1  # the largest value of a plain header: the year 2242

PAX: Final = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})  # types whose data are records
LONG: Final = frozenset({tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})  # types whose data is a name
# pax(1), "pax Header Block"
RECORD: Final = re.compile(rb"([1-9][0-9]{0,6}) [^=]{1,512}=")
NUMBER: Final = re.compile(rb"[0-9]{256}")  # names and sizes have fewer digits

# Messages of tarfile if the stream ends where a header is expected.
ENDS: Final = ("empty header", "truncated header")

Path = tuple[str, ...]


class Kind(enum.Enum):
    FILE = "0"
    HARD_LINK = "1"
    SYMLINK = "2"
    DEVICE = "3"
    DIRECTORY = "5"
    FIFO = "6"


KINDS: Final = {
    tarfile.REGTYPE: Kind.FILE, tarfile.AREGTYPE: Kind.FILE, tarfile.CONTTYPE: Kind.FILE,
    tarfile.GNUTYPE_SPARSE: Kind.FILE, tarfile.LNKTYPE: Kind.HARD_LINK, tarfile.SYMTYPE: Kind.SYMLINK,
    tarfile.CHRTYPE: Kind.DEVICE, tarfile.BLKTYPE: Kind.DEVICE, tarfile.DIRTYPE: Kind.DIRECTORY,
    tarfile.FIFOTYPE: Kind.FIFO,
}


@dataclasses.dataclass(frozen=True)
class Member:
    """Describe a validated member of an image's tar archive.

    :ivar path: components of its name, without empty ones, ``.`` and ``..``; () is the archive's top
    :ivar target: path of the member that a hard link refers to
    :ivar size: bytes of the file, holes included
    :ivar segments: offset and length of the parts of a sparse file that have data; None where the file has no holes
    :ivar attributes: extended attributes by their names in pax headers
    """

    path: Path
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    link: str = ""
    target: Path = ()
    size: int = 0
    segments: Sequence[tuple[int, int]] | None = None
    attributes: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def stored(self) -> int:
        """Return the size of the member's data in an archive."""
        return self.size if self.segments is None else sum(length for _, length in self.segments)


class Stream:
    """Read a tar stream once, forwards. ``tarfile`` reads headers from it.

    :param limit: maximum of bytes to read
    """

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._left = HEADERS_LIMIT
        self._header: bytes | None = None
        self._holes = 0
        self.total = 0

    def tell(self) -> int:
        return self.total

    def seek(self, position: int) -> None:
        if position < self.total:
            raise BadImage("it is damaged: a header refers to a position before itself")
        while self.total < position:
            self.exactly(min(PIECE, position - self.total), "in a member's data")

    def next_member(self) -> None:
        self._left = HEADERS_LIMIT
        self._header = None

    def read(self, size: int) -> bytes:
        """Read a part of a header; fewer bytes at the stream's end."""
        if not 0 <= size <= self._left:
            raise BadImage(f"it is damaged: an extended header claims {size} bytes; the limit for all headers "
                           "of a member is {HEADERS_LIMIT}")
        self._left -= size
        data = self.upto(size)
        if self._header is None:
            self._header = data[156:157]  # typeflag of ustar
            return data
        if self._header in PAX:
            _require_records(data)
        if self._header in PAX | LONG:
            self._header = None  # another header follows
        return data

    def upto(self, size: int) -> bytes:
        """Read data; fewer bytes at the stream's end."""
        try:
            data = self._source.read(size)
        except OSError as error:
            raise BadImage(f"it is damaged: {error}") from error
        self.total += len(data)
        if self.total > self._limit:
            raise TooLarge(self.total, self._limit)
        return data

    def exactly(self, size: int, where: str) -> bytes:
        data = self.upto(size)
        if len(data) < size:
            raise BadImage(f"it is damaged: it ends {where}")
        return data

    def count_holes(self, member: Member) -> None:
        """Count the holes of a sparse file, which take no bytes of the stream.

        :raises BadImage: those of all files are too large
        """
        self._holes += member.size - member.stored
        if self._holes > HOLES * self._limit:
            raise BadImage(f"its sparse files have holes of {self._holes} bytes, {HOLES * self._limit} are allowed")

    def drain(self) -> None:
        """Read the remainder after the archive's end: padding, followed by a compressor's checksum."""
        while self.upto(PIECE):
            pass


def _require_records(header: bytes) -> None:
    """Refuse an extended header without valid records.

    :raises BadImage: it is not a list of records, or would take ``tarfile`` long
    """
    content = header.rstrip(b"\0")
    place = 0
    while place < len(content):
        found = RECORD.match(content, place)
        end = place + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(content) or content[end - 1:end] != b"\n":
            raise BadImage("it is damaged: an extended header is not a list of records")
        place = end
    if NUMBER.search(content):
        raise BadImage("it has an extended header with a number of more than 255 digits")


class _Header(tarfile.TarInfo):
    """Extend a ``tarfile`` header by the position of a sparse file's map (GNU tar's PAX format 1.0).

    :ivar map_offset: position of a sparse file's map that precedes its data; otherwise None
    """

    map_offset: int | None = None

    def _proc_gnusparse_10(self, following: "_Header", headers: Mapping[str, str], archive: tarfile.TarFile) -> None:
        following.map_offset = following.offset_data
        super()._proc_gnusparse_10(following, headers, archive)  # type: ignore[misc]  # typeshed lacks it


def read(stream: Stream, changed: Callable[[Member], Member] = lambda member: member) -> Iterator[Member]:
    """Yield each member up to the archive's end. Its data may be read from the stream before the next one.

    :param changed: maps a member, perhaps to one with less data, before its holes are counted
    :raises BadImage: the archive is damaged, or a member could not be on a file system
    """
    # In mode "w" the constructor reads nothing, and nothing is written.
    archive = tarfile.TarFile(fileobj=cast(IO[bytes], stream), mode="w", encoding="utf-8", errors="surrogateescape")
    number = 0
    while (info := _next(archive, stream)) is not None:
        number += 1
        if number > MEMBERS_LIMIT:
            raise BadImage(f"it has more than {MEMBERS_LIMIT} members")
        end = archive.offset
        member = changed(_validated(info, end - info.offset_data))
        stream.count_holes(member)
        yield member
        stream.seek(end)


def _next(archive: tarfile.TarFile, stream: Stream) -> tarfile.TarInfo | None:
    stream.next_member()
    try:
        info = _Header.fromtarfile(archive)
        _correct_size(info, archive)
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed lacks the header errors
        return None
    # The map of an old sparse file raises an IndexError at the archive's end.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
        words = "it ends before the end-of-archive mark" if str(error) in ENDS else str(error)
        raise BadImage(f"it is damaged: {words}") from error
    if archive.pax_headers.keys() - {"comment"}:
        raise BadImage("it has a header about all members that follow (pax, type g); write a header for each member")
    return info


def _correct_size(info: _Header, archive: tarfile.TarFile) -> None:
    """Set the size of a sparse file from its number of bytes in the archive.

    ``tarfile`` uses the last of the two sizes for both, and with many segments the archive has a record of the
    second."""
    stored = info.pax_headers.get("size")
    size = info.pax_headers.get("GNU.sparse.realsize") or info.pax_headers.get("GNU.sparse.size")
    if stored is not None and size is not None and cast(Any, info).sparse is not None:
        begin = info.offset_data if info.map_offset is None else info.map_offset
        info.size, archive.offset = int(size), begin + -(-int(stored) // BLOCK) * BLOCK


def _validated(info: tarfile.TarInfo, length: int) -> Member:
    """Return the validated member of a header.

    :param length: bytes between the member's data and the next header
    """
    path = components(info.name)
    shown = "/".join(path)[:200]
    kind = KINDS.get(info.type)
    if kind is None:
        raise BadImage(f"its member {shown!r} is of the unknown type {info.type!r}")
    if not (0 <= info.uid <= LAST_ID and 0 <= info.gid <= LAST_ID):
        raise BadImage(f"its member {shown!r} has the owner {info.uid}:{info.gid}, which no system has")
    if kind is Kind.FILE and not path:
        raise BadImage("it has a file without a name")
    member = Member(path, kind, info.mode & 0o7777, info.uid, info.gid, int(min(LAST_TIME, max(0, info.mtime))),
                    attributes=attributes.allowed(info.pax_headers))
    if kind is Kind.FILE:
        member = dataclasses.replace(member, size=info.size, segments=_segments(info, shown))
        if not 0 <= member.stored <= length or info.size < 0:
            raise BadImage(f"it is damaged: member {shown!r} claims more data than it has")
    elif kind is Kind.HARD_LINK:
        member = dataclasses.replace(member, target=components(info.linkname))
    elif kind is Kind.SYMLINK:
        if not info.linkname or "\0" in info.linkname or len(raw(info.linkname)) > PATH_LIMIT:
            raise BadImage(f"its symbolic link {shown!r} has no target that a file system could hold")
        member = dataclasses.replace(member, link=info.linkname)
    return member


def _segments(info: tarfile.TarInfo, shown: str) -> Sequence[tuple[int, int]] | None:
    """Return the parts of a sparse file that have data.

    Some programs pad each part to whole blocks, others do not: so only the last may need padding.
    """
    parts: list[tuple[int, int]] | None = cast(Any, info).sparse  # typeshed has it as a number
    if parts is None:
        return None
    found = [(offset, size) for offset, size in parts if size]
    end = 0
    for number, (offset, size) in enumerate(found):
        if offset < end or size < 0 or (size % BLOCK and number < len(found) - 1):
            raise BadImage(f"it is damaged: the map of the sparse file {shown!r} contradicts itself")
        end = offset + size
    if end > info.size:
        raise BadImage(f"it is damaged: the sparse file {shown!r} has data after its end")
    return found


def components(name: str) -> Path:
    """Split a member's name.

    :raises BadImage: it leads out of the archive, or is too long for a file system
    """
    path = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in path:
        raise BadImage(f"its member {name[:200]!r} is outside of the image")
    if "\0" in name or len(raw(name)) > PATH_LIMIT or any(len(raw(part)) > NAME_LIMIT for part in path):
        raise BadImage(f"its member {name[:200]!r} has a name that no file system could hold")
    if len(path) > DEPTH_LIMIT:
        raise BadImage(f"its member {name[:200]!r} is more than {DEPTH_LIMIT} directories deep")
    return path


def raw(text: str) -> bytes:
    """Return the bytes of a name in the archive."""
    return text.encode("utf-8", "surrogateescape")
