# SPDX-License-Identifier: Apache-2.0
"""Copies of disks beside the root, without mounts; those that are mounted are tried with real ones."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from lxdone.disk import images, stamps
from lxdone.disk.images import Images, Record
from onedriver.errors import BadInput, DriverError, NotSupported
from tests.unit.containerhost.linux.test_records import lease, of_first_release, of_later_release
from tests.unit.lxdone.machines import machine


class CopyCase(testtools.TestCase):
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
        found = dataclasses.asdict(record) | {"store": stamps.store_of(self.directory)} | values
        (self.state / "5.json").write_text(json.dumps(found))

    def copy(self) -> None:
        self.disks.copy(1, self.disk, self.file, self.target)


class CopyTest(CopyCase):
    def test_records_of_other_releases_are_used_and_their_fields_kept(self) -> None:
        directory, record = self.state / "5", Record(str(self.file), copied=False, read_only=False)
        self.disks._write(directory, record)
        for release in (of_first_release, of_later_release):
            release(self.state / "5.json")
            self.assertEqual(record, self.disks._read(directory))
        self.disks._write(directory, dataclasses.replace(record, held="stamp"))
        self.assertEqual((9, [1]), lease(self.state / "5.json"))
        self.assertEqual("stamp", self.disks._read(directory).held)

    def test_what_is_no_file_is_refused(self) -> None:
        self.record("/dev/vg-one-0/lv-one-1-5")
        self.assertRaises(NotSupported, self.copy)
        self.record(ceph="one/one-7-1-5")
        self.assertRaises(NotSupported, self.copy)
        self.disk = self.disk._replace(type="RBD")
        self.assertRaises(NotSupported, self.copy)
        self.file.unlink()
        self.disk = self.disk._replace(type="FILE")
        (self.state / "5.json").unlink()
        self.assertRaises(BadInput, self.copy)
        self.assertFalse(self.target.exists())

    def test_written_disk_is_unsaved_until_it_is_held(self) -> None:
        (self.state / "5.raw").write_text("newer")
        self.record(copied=True, stamp=stamps.stamp(self.file))
        self.assertEqual((True, False), (self.disks.is_unsaved(1), self.disks.is_changed(1)))
        self.record(copied=True, stamp=stamps.stamp(self.file), held=stamps.stamp(self.file))
        self.assertEqual((False, False), (self.disks.is_unsaved(1), self.disks.is_changed(1)))
        self.record(copied=True, stamp="another", held="another")
        self.assertEqual((False, True), (self.disks.is_unsaved(1), self.disks.is_changed(1)))
        self.record(copied=True, stamp="another", read_only=True)
        self.assertEqual((False, False), (self.disks.is_unsaved(1), self.disks.is_changed(1)))

    def test_disk_is_replaced_when_another_file_has_its_place(self) -> None:
        self.assertFalse(self.disks.is_replaced(1, 5))
        for values in ({"copied": True}, {"read_only": True}):  # a qcow2 disk, an ISO image
            self.record(stamp=stamps.stamp(self.file), **values)
            before = self.disks.is_replaced(1, 5)
            self.file.with_name("new").write_text("content")
            self.file.with_name("new").replace(self.file)
            self.assertEqual((False, True), (before, self.disks.is_replaced(1, 5)))
        self.record(ceph="one/one-7-1-5")
        self.assertFalse(self.disks.is_replaced(1, 5))

    def test_copy_never_overwrites_a_disk_that_was_changed(self) -> None:
        written = self.useFixture(fixtures.MockPatchObject(images.qcow2, "from_raw")).mock
        copy = self.state / "5.raw"
        copy.write_text("newer")
        self.record(copied=True, stamp="another")
        self.assertIn(str(copy), str(self.assertRaises(DriverError, self.disks.release, 1, 5)))
        self.assertEqual(("newer", "content"), (copy.read_text(), self.file.read_text()))
        written.assert_not_called()

    def test_write_back_that_was_killed_is_repeated(self) -> None:
        def replaced(raw: Path, disk: Path, datastores: Path, timeout: int, ready: Callable[[Path], None]) -> None:
            new = disk.with_name("new")
            new.write_text(raw.read_text())
            ready(new)
            new.replace(disk)

        written = self.useFixture(fixtures.MockPatchObject(images.qcow2, "from_raw", side_effect=replaced)).mock
        (self.state / "5.raw").write_text("newer")
        self.record(copied=True, stamp=stamps.stamp(self.file))
        with mock.patch.object(self.disks, "_remove", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.disks.release, 1, 5)
        self.assertFalse(self.disks.is_changed(1))
        self.disks.release(1, 5)
        self.assertEqual(("newer", 2, False), (self.file.read_text(), written.call_count,
                                               (self.state / "5.raw").exists()))


class KilledReleaseTest(CopyCase):
    """A release that was killed left a part of a disk's place on the host."""

    def test_record_alone_is_no_disk(self) -> None:
        self.record()
        (self.state / "5").rmdir()
        self.assertFalse(self.disks.is_there(1, self.disk))

    def test_directory_without_disks_goes(self) -> None:
        (self.state / "5").rmdir()
        for clean in (self.disks.release_all, self.disks.discard_all):
            self.state.mkdir(exist_ok=True)
            clean(1)
            self.assertFalse(self.state.exists())
