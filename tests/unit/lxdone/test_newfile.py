# SPDX-License-Identifier: Apache-2.0
import os
import stat
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import newfile


class NewFileTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path) / "disk"
        self.file.write_text("old")
        self.file.chmod(0o640)

    def test_as_a_whole_with_owner_and_mode(self) -> None:
        self.file.with_name("disk.lxdone-unfinished").write_text("of a killed one")
        with newfile.instead_of(self.file) as unfinished:
            self.assertFalse(unfinished.exists())
            unfinished.write_text("new")
            self.assertEqual("old", self.file.read_text())
        self.assertEqual(("new", 0o640, ["disk"]),
                         (self.file.read_text(), stat.S_IMODE(self.file.stat().st_mode), os.listdir(self.file.parent)))

    def test_or_not_at_all(self) -> None:
        def fail() -> None:
            with newfile.instead_of(self.file) as unfinished:
                unfinished.write_text("half")
                raise KeyError("full")

        self.assertRaises(KeyError, fail)
        self.assertEqual(("old", ["disk"]), (self.file.read_text(), os.listdir(self.file.parent)))
