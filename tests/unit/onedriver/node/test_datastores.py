# SPDX-License-Identifier: Apache-2.0
import errno
import os
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import DriverError
from onedriver.node import datastores

MARK = ".mark"


class DatastoresCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.root = self.base / "datastores"
        self.home, self.store = self.root / "0/7", self.root / "0"
        self.home.mkdir(parents=True)
        self.disk = self.home / "disk.0"
        self.disk.write_text("content")
        self.secret = self.base / "secret"
        self.secret.write_text("secret")

    def refused(self, words: str, file: Path | None = None) -> None:
        for call in (datastores.opened, datastores.replaced):
            error = self.assertRaises(DriverError, call(file or self.disk).__enter__)
            self.assertIn(words, str(error))

    def is_gone(self) -> bool:
        return datastores.is_gone(self.store, MARK, None, "7", "disk.0")


class DatastoresTest(DatastoresCase):
    def test_disk_is_opened_and_its_path_opens_the_same_file_again(self) -> None:
        with datastores.opened(self.disk, write=True) as disk:
            self.disk.rename(self.home / "moved")
            self.disk.symlink_to(self.secret)
            self.assertEqual("content", disk.path.read_text())
            self.assertEqual(self.disk, disk.file)
        self.assertEqual("secret", self.secret.read_text())

    def test_link_to_another_file_of_the_datastores_is_a_disk(self) -> None:
        image = self.root / "1/image"
        image.parent.mkdir()
        image.write_text("persistent")
        self.disk.unlink()
        self.disk.symlink_to(image)
        with datastores.opened(self.disk) as disk:
            self.assertEqual(("persistent", image), (disk.path.read_text(), disk.file))
        with datastores.replaced(self.disk) as new:
            new.write_text("written")
        self.assertEqual(("written", True), (image.read_text(), self.disk.is_symlink()))

    def test_link_out_of_the_datastores_is_refused(self) -> None:
        self.disk.unlink()
        self.disk.symlink_to(self.secret)
        self.refused("is not in a datastore")

    def test_links_among_the_directories_are_refused(self) -> None:
        elsewhere = self.base / "elsewhere"
        for number, link in enumerate((self.home, self.store, self.root)):
            with self.subTest(link):
                target = elsewhere / str(number)
                target.parent.mkdir(exist_ok=True)
                link.rename(target)
                link.symlink_to(target)
                self.refused("has a link or a file among its components")
                link.unlink()
                target.rename(link)

    def test_failed_replacement_leaves_the_old_content_alone(self) -> None:
        def fail() -> None:
            with datastores.replaced(self.disk) as new:
                new.write_text("half")
                raise OSError(errno.ENOSPC, "full")

        error = str(self.assertRaises(DriverError, fail))
        self.assertTrue(error.startswith("full: disk ") and error.endswith("is as it was"), error)
        self.assertEqual(("content", ["disk.0"]), (self.disk.read_text(), os.listdir(self.home)))

    def test_link_at_the_name_of_the_new_file_is_not_followed(self) -> None:
        (self.home / f"disk.0{datastores.UNFINISHED}").symlink_to(self.secret)
        with datastores.replaced(self.disk) as new:
            new.write_text("new")
        self.assertEqual(("secret", "new"), (self.secret.read_text(), self.disk.read_text()))

    def test_disk_that_was_replaced_meanwhile_is_left_alone(self) -> None:
        def replace() -> None:
            with datastores.replaced(self.disk) as new:
                new.write_text("new")
                self.disk.unlink()
                self.disk.write_text("of somebody else")

        self.assertIn("was replaced while", str(self.assertRaises(DriverError, replace)))
        self.assertEqual(("of somebody else", ["disk.0"]), (self.disk.read_text(), os.listdir(self.home)))

    def test_disk_is_gone_only_where_its_datastore_is_there(self) -> None:
        self.assertRaises(DriverError, self.is_gone)
        (self.store / MARK).touch()
        self.assertFalse(self.is_gone())
        self.disk.unlink()
        self.assertTrue(self.is_gone())
        self.disk.symlink_to(self.root / "1/not-mounted")
        self.assertFalse(self.is_gone())
        self.disk.unlink()
        self.home.rmdir()
        self.assertTrue(self.is_gone())
        (self.store / MARK).unlink()
        self.assertIn("mounted?", str(self.assertRaises(DriverError, self.is_gone)))
        self.store.rmdir()
        self.assertRaises(DriverError, self.is_gone)
