# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import fixtures
import testtools

from onedock import imageref
from onedock.imageref import ImageRef
from onedriver.errors import BadInput, DriverError

ID = "sha256:" + "0a" * 32


class ImageRefTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path, "disk.0")

    def test_what_is_written_is_read(self) -> None:
        for ref in (ImageRef(ID, "docker://nginx:1.27@sha256:ab"), ImageRef(ID, "x", "disk.0.tar", 12)):
            imageref.write(self.file, ref)
            self.assertEqual(ref, imageref.read(self.file))
        self.assertEqual([self.file], list(self.file.parent.iterdir()))

    def test_an_archive_that_is_not_there_is_not_written(self) -> None:
        imageref.write(self.file, ImageRef(ID, "x"))
        self.assertEqual({"image": ID, "reference": "x"}, json.loads(self.file.read_text()))

    def test_what_is_none_is_refused(self) -> None:
        good = {"image": ID, "reference": "x"}
        for wrong, words in (
            ({"image": "nginx:latest"}, "image is 'nginx:latest'"), ({"image": ID + "0"}, "image is"),
            ({"image": 7}, "image is '7'"), ({"image": None}, "image is"),
            ({"reference": "a\nb"}, "reference is"), ({"archive": "../x"}, "archive is"),
            ({"archive": "a/b"}, "archive is"), ({"archive": ".hidden"}, "archive is"),
            ({"vm": "12"}, "vm is"), ({"vm": True}, "vm is"), ({"vm": -1}, "vm is"),
            ({"more": "x"}, "does not name an image"),
        ):
            self.file.write_text(json.dumps(good | wrong))
            self.assertIn(words, str(self.assertRaises(BadInput, imageref.read, self.file)))
        for text in ("", "[]", "null", "{", '"x"', '{"image": "sha256:"}', "[" * 9000, "x" * 100_000):
            self.file.write_text(text)
            self.assertRaises(BadInput, imageref.read, self.file)
        self.file.write_bytes(b"QFI\xfb" + bytes(range(256)))
        self.assertIn("does not name an image", str(self.assertRaises(BadInput, imageref.read, self.file)))
        self.file.unlink()
        self.assertIn("cannot be read", str(self.assertRaises(BadInput, imageref.read, self.file)))

    def test_a_file_that_cannot_be_written_stays_what_it_was(self) -> None:
        directory = self.file.parent / "disk.1"
        directory.mkdir()
        self.assertRaises(DriverError, imageref.write, directory, ImageRef(ID, "x"))
        self.assertEqual([directory], list(self.file.parent.iterdir()))
