# SPDX-License-Identifier: Apache-2.0
"""Copies of disks beside the root, without mounts; those that are mounted are tried with real ones."""

import dataclasses
import json
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.storage import fsfreeze
from lxdone.disk import images
from lxdone.disk.images import Images, Record
from lxdone.root import root_state
from onedriver.errors import DriverError
from tests.unit.lxdone.machines import machine


class CopyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.state, self.directory = base / "state/disks/one-1", base / "datastores/0/1"
        for directory in (self.state / "5", self.directory):
            directory.mkdir(parents=True)
        self.file, self.target = self.directory / "disk.5", self.directory / "copy"
        self.file.write_text("content")
        self.disks = Images(base / "state", base / "datastores", lambda name: None, 30)
        self.disk = machine().disks[0]._replace(id=5)

    def record(self, file: str = "", **values: bool | str) -> None:
        record = Record(file or str(self.file), copied=False, read_only=bool(values.pop("read_only", False)))
        found = dataclasses.asdict(record) | {"store": root_state.store_of(self.directory)} | values
        (self.state / "5.json").write_text(json.dumps(found))

    def copy(self) -> None:
        self.disks.copy(1, self.disk, self.file, self.target)

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
