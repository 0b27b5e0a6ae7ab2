# SPDX-License-Identifier: Apache-2.0
import io
import os
import tarfile
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from lxdone.disk import isofiles
from onedriver.errors import DriverError, NotSupported

LIMIT = 20


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", link: str = "", mode: int = 0o600):
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname, member.mode = kind, len(content), link, mode
    return member, io.BytesIO(content)


class IsoFilesCase(testtools.TestCase):
    """Test what a hostile image can list; bsdtar itself is tried in the functional tests."""

    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory = self.base / "directory"
        self.iso = self.base / "iso"
        self.iso.write_bytes(bytes(100))

    def extract(self, *entries) -> None:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as archive:
            for member, content in entries:
                archive.addfile(member, content)
        with mock.patch.object(isofiles, "members", lambda *_: tarfile.open(fileobj=io.BytesIO(raw.getvalue()),
                                                                            mode="r|")):
            isofiles.extract(self.iso, self.directory, LIMIT)


class IsoFilesTest(IsoFilesCase):
    def test_plain_files_that_everybody_may_read(self) -> None:
        self.directory.mkdir()
        (self.directory / "old").write_text("")
        self.extract(entry("a/b", content=b"x"), entry("run", content=b"y", mode=0o700), entry("same", tarfile.LNKTYPE,
                     link="run"), entry("link", tarfile.SYMTYPE, link="/etc/passwd"))
        self.assertEqual({"a", "run", "same", "link"}, set(os.listdir(self.directory)))
        self.assertEqual(["644", "755", "755"], [f"{(self.directory / name).stat().st_mode & 0o777:o}"
                                                 for name in ("a/b", "run", "same")])

    def test_nothing_leads_out_and_no_device_is_made(self) -> None:
        for name in ("../x", "/x", "a/../../x"):
            self.assertRaises(NotSupported, self.extract, entry(name, content=b"x"))
        self.assertRaises(NotSupported, self.extract, entry("x", tarfile.LNKTYPE, link="../../etc/passwd"))
        # Through a link nothing is written: it is made last.
        self.extract(entry("link", tarfile.SYMTYPE, link=str(self.base)), entry("link/x", content=b"x"))
        self.assertEqual(["directory", "iso"], sorted(os.listdir(self.base)))
        self.extract(entry("null", tarfile.CHRTYPE), entry("file"))
        self.assertEqual(["file"], os.listdir(self.directory))

    def test_no_link_is_made_through_another(self) -> None:
        """It would be root's link in any directory of the host."""
        for name in ("link/x", "link/more/x"):
            (self.base / "host/more").mkdir(parents=True, exist_ok=True)
            self.assertRaises(DriverError, self.extract, entry("link", tarfile.SYMTYPE, link=str(self.base / "host")),
                              entry(name, tarfile.SYMTYPE, link="/dev/null"))
            self.assertEqual((["more"], []), (os.listdir(self.base / "host"), os.listdir(self.base / "host/more")))

    def test_links_below_directories_and_of_the_image_itself(self) -> None:
        self.extract(entry(".", tarfile.SYMTYPE, link="/etc"), entry("a", tarfile.DIRTYPE), entry("a/b", content=b"x"),
                     entry("a/b", tarfile.SYMTYPE, link="taken"), entry("a/link", tarfile.SYMTYPE, link="b"))
        self.assertEqual(("b", b"x"), (os.readlink(self.directory / "a/link"), (self.directory / "a/b").read_bytes()))

    def test_no_more_than_its_own_size(self) -> None:
        self.extract(entry("a", content=bytes(60)), entry("b", content=bytes(40)))
        self.assertRaises(NotSupported, self.extract, entry("a", content=bytes(60)), entry("b", content=bytes(41)))

    def test_directories_that_a_name_implies_count(self) -> None:
        self.patch(isofiles, "ENTRIES", 20)
        self.extract(*(entry("/".join(f"{number}{depth}" for depth in range(9)), content=b"") for number in range(2)))
        self.assertRaises(NotSupported, self.extract, *(
            entry("/".join(f"{number}{depth}" for depth in range(9)), content=b"") for number in range(3)))

    def test_one_without_files_is_damaged(self) -> None:
        self.assertIn("damaged", str(self.assertRaises(DriverError, self.extract)))
