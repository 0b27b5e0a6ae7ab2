# SPDX-License-Identifier: Apache-2.0
"""Tarballs of images that were made to keep the front-end busy, and links as older `docker save` writes them."""

import io
import tarfile
import tempfile
import tracemalloc

import testtools

from onedock.datastore.archives import Tarball
from onedock.datastore.decompress import Corrupt
from tests.unit.containerhost.images.test_headers import END, extended, header, record


def tarball(*members: tarfile.TarInfo) -> Tarball:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(member.name.encode().ljust(member.size)))
    return Tarball(raw, "an archive")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


class TarballTest(testtools.TestCase):
    def content(self, archive: Tarball, path: str) -> bytes:
        with archive.open(path) as file:
            return file.read(100)

    def test_header_that_is_searched_in_quadratic_time(self) -> None:
        raw = io.BytesIO(extended(record("comment", b"9" * 900)) + header() + END)
        self.assertIn("255 digits", str(self.assertRaises(Corrupt, Tarball, raw, "an archive")))

    def test_header_that_leads_back(self) -> None:
        raw = io.BytesIO(extended(record("size", b"-1024")) + header() + END)
        self.assertRaises(Corrupt, Tarball, raw, "an archive")

    def test_header_that_leads_behind_the_end(self) -> None:
        raw = io.BytesIO(header(size=4 << 30) + END)
        self.assertRaises(Corrupt, Tarball, raw, "an archive")

    def test_attributes_are_not_kept(self) -> None:
        raw = self.enterContext(tempfile.TemporaryFile())
        attributes = b"".join(record(f"SCHILY.xattr.user.{number}", b"x" * 65000) for number in range(15))
        for number in range(20):
            raw.write(extended(attributes) + header(f"{number}"))
        raw.write(END)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        archive = Tarball(raw, "an archive")
        self.assertLess(tracemalloc.get_traced_memory()[0], len(attributes) // 2)
        self.assertTrue(archive.has("19"))

    def test_files_and_links(self) -> None:
        archive = tarball(member("a/layer.tar", size=20), member("b", tarfile.DIRTYPE),
                          member("b/layer.tar", tarfile.SYMTYPE, "../a/layer.tar"),
                          member("c", tarfile.LNKTYPE, "b/layer.tar"), member("./d", size=10))
        for path in ("a/layer.tar", "b/layer.tar", "c", "./c", "b/../c"):
            self.assertEqual(b"a/layer.tar".ljust(20), self.content(archive, path), path)
        self.assertEqual(b"./d".ljust(10), self.content(archive, "d"))
        self.assertFalse(archive.has("e"))

    def test_parts_are_read_side_by_side(self) -> None:
        archive = tarball(member("a", size=8), member("b", size=8))
        with archive.open("a") as first, archive.open("b") as second:
            pieces = [file.read(4) for file in (first, second, first, second, first)]
        self.assertEqual([b"a   ", b"b   ", b"    ", b"    ", b""], pieces)

    def test_links_that_lead_nowhere(self) -> None:
        archive = tarball(member("loop", tarfile.SYMTYPE, "loop"), member("out", tarfile.SYMTYPE, "../../etc/passwd"),
                          member("dir", tarfile.DIRTYPE))
        for path in ("loop", "out", "dir", "none"):
            self.assertRaises(Corrupt, self.content, archive, path)
