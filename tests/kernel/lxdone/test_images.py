# SPDX-License-Identifier: Apache-2.0
"""Copies of disks beside the root, without mounts; those that are mounted are tried with real ones."""


import fixtures

from containerhost.errors import HostActionFailed
from containerhost.linux.storage import fsfreeze
from lxdone.disk import images
from onedriver.errors import DriverError
from tests.unit.lxdone.test_images import CopyCase


class CopyTest(CopyCase):
    def test_disk_that_is_not_mounted_is_copied_as_it_is(self) -> None:
        self.copy()
        self.record()
        self.copy()
        self.assertEqual(("content", 0o600), (self.target.read_text(), self.target.stat().st_mode & 0o777))

    def test_disk_that_cannot_be_frozen_or_was_thawed_too_early_has_no_copy(self) -> None:
        self.record()
        self.useFixture(fixtures.MockPatchObject(images.os.path, "ismount", return_value=True))
        for script in ("echo Operation not permitted; exit 1", "echo frozen; exit 3"):
            self.useFixture(fixtures.MockPatchObject(fsfreeze, "command", return_value=["sh", "-c", script]))
            self.assertRaises((HostActionFailed, DriverError), self.copy)
            self.assertEqual(["disk.5"], [path.name for path in self.directory.iterdir()])

    def test_read_only_disk_is_not_frozen(self) -> None:
        self.record(read_only=True)
        self.useFixture(fixtures.MockPatchObject(images.os.path, "ismount", return_value=True))
        self.useFixture(fixtures.MockPatchObject(fsfreeze, "command", return_value=["false"]))
        self.copy()
        self.assertEqual("content", self.target.read_text())
