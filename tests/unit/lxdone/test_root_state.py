# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import stamps
from lxdone.root import root_state
from lxdone.root.root_state import RootState
from onedriver.errors import DriverError
from tests.unit.containerhost.linux.test_records import lease, of_first_release, of_later_release


class RecordsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.home, self.store, self.directory = base / "one-7", base / "0", base / "0/7"
        self.home.mkdir()
        self.directory.mkdir(parents=True)
        self.disk = self.directory / "disk.0"
        self.disk.write_text("content")
        self.record = RootState(str(self.disk), 1 << 20, False, None, None, stamps.stamp(self.disk),
                                store=stamps.store_of(self.directory))

    def saved(self) -> RootState:
        return dataclasses.replace(self.record, unsaved=False)

    def test_it_is_found_as_it_was_written(self) -> None:
        self.assertIsNone(root_state.read(self.home))
        root_state.write(self.home, self.record)
        self.assertEqual(self.record, root_state.read(self.home))
        for content in ("", "[]", '{"file": "x"}', "{"):
            (self.home / root_state.FILE).write_text(content)
            self.assertRaises(DriverError, root_state.read, self.home)

    def test_records_of_other_releases_are_used_and_their_fields_kept(self) -> None:
        file = self.home / root_state.FILE
        root_state.write(self.home, self.record)
        for release in (of_first_release, of_later_release):
            release(file)
            self.assertEqual(self.record, root_state.read(self.home))
        root_state.write(self.home, self.saved())
        self.assertEqual((9, [1]), lease(file))
        self.assertEqual(self.saved(), root_state.read(self.home))

    def test_another_content_has_another_stamp(self) -> None:
        self.assertTrue(self.record.is_of(stamps.stamp(self.disk)))
        for change in (lambda: self.disk.write_text("longer content"), lambda: os.utime(self.disk, (1, 1)),
                       lambda: os.replace(self.directory / "other", self.disk)):
            (self.directory / "other").write_text("content")
            change()
            self.assertFalse(self.record.is_of(stamps.stamp(self.disk)))
        coming = dataclasses.replace(self.record, coming=stamps.stamp(self.disk))
        self.assertTrue(coming.is_of(stamps.stamp(self.disk)))
        self.disk.unlink()
        self.assertRaises(DriverError, stamps.stamp, self.disk)

    def test_other_nodes_see_who_has_the_newer_root(self) -> None:
        self.assertIsNone(root_state.elsewhere(self.directory, None))
        root_state.mark(self.record)
        self.assertIsNone(root_state.elsewhere(self.directory, self.record))
        for other in (None, self.saved()):
            self.assertEqual(os.uname().nodename, root_state.elsewhere(self.directory, other))
        root_state.unmark(self.record)
        self.assertIsNone(root_state.elsewhere(self.directory, None))
        root_state.unmark(self.record)

    def test_it_is_over_when_opennebula_removed_the_directory_or_another_node_runs_it(self) -> None:
        root_state.mark(self.record)
        self.assertEqual((False, True), (root_state.is_over(self.record), root_state.is_over(self.saved())))
        root_state.unmark(self.record)
        self.assertFalse(root_state.is_over(self.saved()))
        os.rename(self.directory, self.store / "8")
        self.assertTrue(root_state.is_over(self.saved()))

    def test_without_certainty_it_is_not_over(self) -> None:
        root_state.mark(self.record)
        os.rename(self.directory, self.store / "8")
        for record in (self.record, dataclasses.replace(self.saved(), coming="1:2:3")):
            self.assertFalse(root_state.is_over(record))
        self.directory.symlink_to(self.directory)  # what cannot be looked at is not gone
        self.assertFalse(root_state.is_over(dataclasses.replace(self.saved(), file=str(self.directory / "x/disk.0"))))
        self.directory.unlink()
        (self.store / stamps.STORE).unlink()  # the datastore is not mounted
        self.assertFalse(root_state.is_over(self.saved()))

    def test_another_datastore_in_its_place_is_none(self) -> None:
        """A node that begins a VM while a datastore is not mounted marks the place where that is to be."""
        os.rename(self.store, self.store.with_name("aside"))
        other = self.store / "8"
        other.mkdir(parents=True)
        for content in (stamps.store_of(other), ""):  # with a mark of an earlier release, too
            (self.store / stamps.STORE).write_text(content)
            self.assertFalse(root_state.is_over(self.saved()))
        (self.store / stamps.STORE).write_text(f"{self.record.store}\n")
        self.assertTrue(root_state.is_over(self.saved()))
        self.assertTrue(root_state.is_over(dataclasses.replace(self.saved(), store=None)))

    def test_no_place_is_marked_where_no_datastore_is_mounted(self) -> None:
        os.rename(self.store, self.store.with_name("aside"))
        self.store.mkdir()
        for act in (lambda: root_state.mark(self.record), lambda: stamps.store_of(self.directory)):
            self.assertRaises(DriverError, act)
            self.assertEqual([], os.listdir(self.store))

    def test_its_identity_stays_and_replaces_what_is_none(self) -> None:
        self.assertEqual(self.record.store, stamps.store_of(self.directory))
        mark = self.store / stamps.STORE
        for make in (lambda: mark.symlink_to(self.disk), lambda: os.mkfifo(mark), lambda: mark.write_text("")):
            mark.unlink()
            make()
            self.assertNotEqual(self.record.store, stamps.store_of(self.directory))
            self.assertEqual((True, "content"), (mark.is_file() and not mark.is_symlink(), self.disk.read_text()))

    def test_a_datastore_that_cannot_be_written_is_told(self) -> None:
        gone = dataclasses.replace(self.record, file="/nonexistent/0/7/disk.0")
        self.assertIn("no_root_squash", str(self.assertRaises(DriverError, root_state.mark, gone)))
