# SPDX-License-Identifier: Apache-2.0
import errno
import os
import stat
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import DriverError
from onedriver.node import datastores

MARK = ".mark"
OTHER = 65534


class DatastoresTest(testtools.TestCase):
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

    def give(self, owner: int) -> None:
        """VM's directory and disk to another user, as oneadmin has them."""
        for path in (self.home, self.disk):
            os.chown(path, owner, owner, follow_symlinks=False)

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

    def test_file_of_another_owner_is_refused_wherever_it_is(self) -> None:
        self.give(OTHER)
        os.chown(self.disk, 0, 0)
        self.refused(f"belongs to user 0, but the VM's directory to user {OTHER}")
        self.disk.unlink()
        (self.root / "1").mkdir()
        (self.root / "1/of-root").write_text("")
        self.disk.symlink_to(self.root / "1/of-root")
        self.refused("belongs to user 0")

    def test_hard_link_to_a_file_of_root_is_refused(self) -> None:
        self.give(OTHER)
        self.disk.unlink()
        os.link(self.secret, self.disk)
        self.refused("belongs to user 0")

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

    def test_fifo_and_device_are_refused_at_once(self) -> None:
        for make in (lambda: os.mkfifo(self.disk), lambda: os.mknod(self.disk, stat.S_IFCHR, os.makedev(1, 3)),
                     self.disk.mkdir):
            self.disk.unlink()
            make()
            self.refused("is no regular file")
            if self.disk.is_dir():
                self.disk.rmdir()

    def test_new_content_has_the_owner_and_mode_of_the_old_and_is_never_a_part(self) -> None:
        self.give(OTHER)
        self.disk.chmod(0o640)
        shown = []

        def ready(new: Path) -> None:
            shown.append(new.read_text())
            self.assertEqual("content", self.disk.read_text())

        with datastores.replaced(self.disk, ready) as new:
            self.assertEqual(0o600, stat.S_IMODE(new.stat().st_mode))
            new.write_text("new")
        found = self.disk.stat()
        self.assertEqual(["new"], shown)
        self.assertEqual(("new", OTHER, OTHER, 0o640), (self.disk.read_text(), found.st_uid, found.st_gid,
                                                        stat.S_IMODE(found.st_mode)))
        self.assertEqual(["disk.0"], os.listdir(self.home))

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
