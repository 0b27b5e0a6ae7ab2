# SPDX-License-Identifier: Apache-2.0
"""What the model of a disk says of writes whose result is known."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.linux.files import atomic_write
from tests.model.disk import FULL, Disk

OLD, NEW = b"old content", b"new content!"


class DiskTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path) / "root"
        self.root.mkdir()
        self.file = self.root / "file"
        self.file.write_bytes(OLD)
        self.steps: list[str] = []
        self.disk = Disk(self.root, self.step)

    def step(self, what: str) -> str | None:
        self.steps.append(what)
        return None

    def after(self, act: Callable[[], Any]) -> list[dict[str, bytes | None]]:
        """Return what the disk may have after a power cut at the end."""
        with self.disk.watched():
            act()
        return [image.content for image in self.disk.images()]

    def test_synced_write_is_there(self) -> None:
        self.assertEqual([{"file": NEW}], self.after(lambda: atomic_write(self.file, NEW)))

    def test_file_written_in_place_is_old_new_or_torn(self) -> None:
        found = self.after(lambda: self.file.write_bytes(NEW))
        self.assertEqual([{"file": NEW}, {"file": OLD}, {"file": NEW[:6]}], found)

    def test_name_may_come_before_the_content(self) -> None:
        def replace() -> None:
            self.file.with_name("new").write_bytes(NEW)
            self.file.with_name("new").replace(self.file)
        self.assertIn({"file": b""}, self.after(replace))

    def test_names_come_in_their_order(self) -> None:
        def change() -> None:
            (self.root / "directory").mkdir()
            self.file.unlink()
        self.assertEqual([{"directory": None}, {"directory": None, "file": OLD}, {"file": OLD}], self.after(change))

    def test_state_is_restored_with_the_files_that_stay_what_they_are(self) -> None:
        number = self.file.stat().st_ino

        def change() -> None:
            self.file.rename(self.root / "other")
            (self.root / "directory").mkdir()
        self.after(change)
        self.disk.restore(self.disk.images()[-1])
        self.assertEqual((["file"], number, OLD), (os.listdir(self.root), self.file.stat().st_ino,
                                                   self.file.read_bytes()))

    def test_full_disk_refuses_all_but_removals(self) -> None:
        self.disk = Disk(self.root, lambda what: FULL)

        def fill() -> None:
            self.assertRaises(OSError, atomic_write, self.file, NEW)
            self.assertRaises(OSError, (self.root / "directory").mkdir)
            self.file.unlink()
        self.assertEqual({}, self.after(fill)[0])
