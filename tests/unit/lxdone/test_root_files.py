# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from lxdone.root import root_files
from lxdone.root.root_files import RootFile


class RootFilesCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.root = RootFile(self.directory / "disk.0", "one/one-5", "oneadmin")
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{self.directory}:/usr/bin:/bin"))


class RootFilesTest(RootFilesCase):
    def test_a_file_is_where_it_is(self) -> None:
        root = RootFile(self.directory / "disk.0")
        root.file.write_text("content")
        with root_files.opened(root) as disk:
            self.assertEqual("content", disk.read_text())
        root_files.restore(root)
        self.assertRaises(ValueError, lambda: root_files.replaced(root).__enter__())
