# SPDX-License-Identifier: Apache-2.0
import os
import stat
from pathlib import Path

from onedriver.node import datastores
from tests.unit.onedriver.node.test_datastores import DatastoresCase

OTHER = 65534


class DatastoresTest(DatastoresCase):
    def give(self, owner: int) -> None:
        """VM's directory and disk to another user, as oneadmin has them."""
        for path in (self.home, self.disk):
            os.chown(path, owner, owner, follow_symlinks=False)

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

    def test_fifo_and_device_are_refused_at_once(self) -> None:
        for make in (lambda: os.mkfifo(self.disk), lambda: os.mknod(self.disk, stat.S_IFCHR, os.makedev(1, 3)),
                     self.disk.mkdir):
            self.disk.unlink()
            make()
            self.refused("is not a regular file")
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
