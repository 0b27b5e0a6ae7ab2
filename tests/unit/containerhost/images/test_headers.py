# SPDX-License-Identifier: Apache-2.0
"""Headers of archives that are made to crash a parser, or to keep it busy, and good ones that it misread."""

import io
import tarfile

import testtools

from containerhost.images.errors import BadImage
from containerhost.images.members import LAST_TIME, Member, Stream, read

END = bytes(1024)
GIB = 1 << 30


def header(name: str = "a", kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    found = tarfile.TarInfo(name)
    found.type, found.size = kind, size
    return found.tobuf(tarfile.USTAR_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def extended(content: bytes) -> bytes:
    return header("x", tarfile.XHDTYPE, len(content)) + padded(content)


def record(key: str, value: bytes) -> bytes:
    rest = b" " + key.encode() + b"=" + value + b"\n"
    return next(found for length in range(len(rest), len(rest) + 9)
                if len(found := b"%d" % length + rest) == length)


class Parts:
    """Read bytes, and zeros where a number stands, one after the other; never whole in memory."""

    def __init__(self, *parts: bytes | int) -> None:
        self._parts = list(parts)

    def read(self, size: int) -> bytes:
        found = b""
        while self._parts and len(found) < size:
            part, left = self._parts.pop(0), size - len(found)
            if isinstance(part, int):
                found += bytes(min(part, left))
                rest: bytes | int = max(part - left, 0)
            else:
                found += part[:left]
                rest = part[left:]
            if rest:
                self._parts.insert(0, rest)
        return found


def members(*parts: bytes | int) -> list[Member]:
    return list(read(Stream(Parts(*parts), 1 << 40)))


class HostileHeadersTest(testtools.TestCase):
    def assert_refused(self, words: str, *parts: bytes | int) -> None:
        self.assertIn(words, str(self.assertRaises(BadImage, members, *parts)))

    def test_numbers_that_are_searched_in_quadratic_time(self):
        content = record("comment", b"9" * 900_000)
        self.assert_refused("more than 255 digits", extended(content), header(), END)

    def test_records_that_overlap(self):
        self.assert_refused("is not a list of records", extended(b"2 " * 200_000 + b"="), header(), END)

    def test_records_behind_a_long_name_are_looked_at_too(self):
        name = header("long", tarfile.GNUTYPE_LONGNAME, 4) + padded(b"name")
        self.assert_refused("is not a list of records", name, extended(b"2 2 2="), header(), END)

    def test_a_long_name_is_no_header(self):
        """Each of its characters may stand where a header has its type."""
        name = "bin/" + "/".join("xgLK" * 50 for _ in range(4))
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
            archive.addfile(tarfile.TarInfo(name))
        self.assertEqual([name], ["/".join(member.path) for member in members(made.getvalue())])

    def test_times_that_are_no_numbers(self):
        for value, wanted in ((b"inf", LAST_TIME), (b"nan", 0), (b"-inf", 0), (b"12:30", 0), (b"1e300", LAST_TIME)):
            (member,) = members(extended(record("mtime", value)), header(), END)
            self.assertEqual(wanted, member.mtime, value)

    def test_the_map_of_an_old_sparse_file_breaks_off(self):
        content = bytearray(header("sparse", tarfile.GNUTYPE_SPARSE))
        content[482] = 1
        content[148:156] = b" " * 8
        content[148:156] = b"%06o\0 " % sum(content)
        self.assert_refused("damaged", bytes(content))


class LargeSparseFilesTest(testtools.TestCase):
    """GNU tar writes the bytes that such a file has in the archive into a record when a header cannot hold them."""

    stored, real = 8 * GIB + 512, 20 * GIB

    def test_of_version_1(self):
        chart = padded(b"2\n0\n%d\n%d\n0\n" % (self.stored, self.real))
        records = (record("GNU.sparse.major", b"1") + record("GNU.sparse.minor", b"0")
                   + record("GNU.sparse.name", b"big") + record("GNU.sparse.realsize", b"%d" % self.real)
                   + record("size", b"%d" % (self.stored + len(chart))))
        self.assert_whole(members(extended(records), header("GNUSparseFile.0/big"), chart, self.stored, header("next"),
                                  END))

    def test_of_version_0(self):
        for chart in (record("GNU.sparse.map", b"0,%d" % self.stored), record("GNU.sparse.offset", b"0")
                      + record("GNU.sparse.numbytes", b"%d" % self.stored)):
            records = (record("GNU.sparse.size", b"%d" % self.real) + record("GNU.sparse.name", b"big") + chart
                       + record("size", b"%d" % self.stored))
            self.assert_whole(members(extended(records), header("big"), self.stored, header("next"), END))

    def test_holes_are_limited(self):
        """What copies a container reads them as zeros."""
        for real, count in ((2**63 - 1, 1), (2**40, 5)):
            chart = padded(b"1\n%d\n0\n" % real)
            records = (record("GNU.sparse.major", b"1") + record("GNU.sparse.minor", b"0")
                       + record("GNU.sparse.name", b"big") + record("GNU.sparse.realsize", b"%d" % real))
            parts = (extended(records), header("GNUSparseFile.0/big", size=len(chart)), chart)
            error = self.assertRaises(BadImage, members, *parts * count, END)
            self.assertIn("sparse files have holes of", str(error))

    def assert_whole(self, found: list[Member]) -> None:
        self.assertEqual([(("big",), self.real, self.stored), (("next",), 0, 0)],
                         [(member.path, member.size, member.stored) for member in found])
