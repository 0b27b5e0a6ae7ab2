# SPDX-License-Identifier: Apache-2.0
"""Test the state of a root, without LXD; the functional tests write back on a real one."""

import dataclasses
import os
import shutil
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from lxdone.disk import stamps
from lxdone.root import root_state, root_writeback
from lxdone.root.root_writeback import RootWriteback
from onedriver.errors import DriverError, NotSupported
from onedriver.vm import Vm
from tests.unit.lxdone.machines import machine

TARBALL, EXT, SQUASHFS = b"\x1f\x8b" + bytes(4096), bytes(1080) + b"\x53\xef" + bytes(4096), b"hsqs" + bytes(4096)
PERSISTENT = ("<SAVE><![CDATA[NO]]>", "<SAVE>YES")


def starting(lcm: int) -> Vm:
    return machine()._replace(lcm_state=lcm)


class RootWritebackTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.home, self.directory = base / "one-1", base / "datastores/0/1"
        self.home.mkdir()
        self.directory.mkdir(parents=True)
        self.file = self.directory / "disk.0"
        self.file.write_bytes(EXT)
        self.writeback = RootWriteback(mock.Mock(side_effect=AssertionError), base / "datastores", 30)
        self.vm = machine()

    def saved(self) -> None:
        record = root_state.read(self.home)
        assert record
        root_state.unmark(record)
        root_state.write(self.home, dataclasses.replace(record, unsaved=False, coming=None,
                                                        stamp=stamps.stamp(self.file)))

    def test_a_container_that_runs_is_newer_than_its_disk(self) -> None:
        self.assertFalse(self.writeback.is_unsaved(self.home))
        self.writeback.begin(self.home, self.vm, self.file)
        self.assertTrue(self.writeback.is_unsaved(self.home))
        self.assertTrue((self.directory / root_state.RUNNING).exists())
        self.assertTrue((self.directory.parent / stamps.STORE).exists())
        self.writeback.end(self.home)
        self.assertEqual(([], ["disk.0"]), (os.listdir(self.home), os.listdir(self.directory)))

    def test_it_goes_on_while_its_disk_is_that_which_it_was_saved_to(self) -> None:
        self.assertTrue(self.writeback.is_current(self.home, self.vm, self.file))
        self.writeback.begin(self.home, self.vm, self.file)
        self.assertTrue(self.writeback.is_current(self.home, self.vm, self.file))
        self.saved()
        self.assertTrue(self.writeback.is_current(self.home, self.vm, self.file))
        (self.directory / root_state.RUNNING).write_text("node2\n")
        self.assertFalse(self.writeback.is_current(self.home, self.vm, self.file))
        (self.directory / root_state.RUNNING).unlink()
        os.utime(self.file, (1, 1))
        self.assertFalse(self.writeback.is_current(self.home, self.vm, self.file))

    def test_root_that_is_no_file_or_not_known_is_not_copied(self) -> None:
        target = self.directory / "copy"
        self.assertRaises(DriverError, self.writeback.copy, "one-1", self.home, target)
        self.writeback.begin(self.home, self.vm, self.file)
        record = root_state.read(self.home)
        assert record
        root_state.write(self.home, dataclasses.replace(record, image="one/one-7-1-0"))
        self.assertRaises(NotSupported, self.writeback.copy, "one-1", self.home, target)
        self.assertFalse(target.exists())

    def test_what_a_killed_boot_left_of_a_deleted_vm_is_found(self) -> None:
        self.writeback.announce(self.home, self.vm, self.file)
        self.assertFalse(self.writeback.is_begun(self.home))  # only LXD reports whether there is a container
        self.assertFalse(self.writeback.is_current(self.home, self.vm, self.file))  # it is created again
        self.writeback.require_whole(self.home, starting(2), self.file)
        self.assertFalse(self.writeback.is_over(self.home) or self.writeback.is_ended(self.home))
        shutil.rmtree(self.directory)
        self.assertTrue(self.writeback.is_over(self.home) and self.writeback.is_ended(self.home))

    def test_boot_of_a_disk_that_is_not_there_records_nothing(self) -> None:
        shutil.rmtree(self.directory)
        error = self.assertRaises(DriverError, self.writeback.announce, self.home, self.vm, self.file)
        self.assertIn("cannot be read", str(error))
        self.assertFalse((self.home / root_state.FILE).exists())

    def test_boot_that_replaces_what_the_vm_wrote_removes_its_mark(self) -> None:
        self.writeback.begin(self.home, self.vm, self.file)
        self.assertTrue((self.directory / root_state.RUNNING).exists())
        self.writeback.announce(self.home, self.vm, self.file)
        self.assertFalse((self.directory / root_state.RUNNING).exists() or self.writeback.is_unsaved(self.home))

    def test_where_both_were_written_nothing_is_chosen(self) -> None:
        self.writeback.begin(self.home, self.vm, self.file)
        os.utime(self.file, (1, 1))
        self.writeback.begin(self.home, self.vm, self.file)  # which another start does not make undone
        for question in (lambda: self.writeback.is_current(self.home, self.vm, self.file),
                         lambda: self.writeback.save("one-1", self.home)):
            self.assertIn("nothing is overwritten", str(self.assertRaises(DriverError, question)))

    def test_a_container_is_made_of_a_disk_with_everything(self) -> None:
        for lcm in (2, 20, 21, 22, 32, 35):
            self.writeback.require_whole(self.home, starting(lcm), self.file)
        self.writeback.begin(self.home, self.vm, self.file)
        self.writeback.require_whole(self.home, self.vm, self.file)
        for lcm in (20, 21, 22, 32, 35):  # its container is gone, with its changes
            self.assertRaises(DriverError, self.writeback.require_whole, self.home, starting(lcm), self.file)
        (self.home / root_state.FILE).unlink()
        error = self.assertRaises(DriverError, self.writeback.require_whole, self.home, starting(20), self.file)
        self.assertIn(f"on node {os.uname().nodename}", str(error))
        self.assertIn(str(self.directory / root_state.RUNNING), str(error))

    def test_a_size_that_is_to_be(self) -> None:
        self.writeback.enlarge(self.home, 5)
        self.assertIsNone(root_state.read(self.home))
        self.writeback.begin(self.home, self.vm, self.file)
        self.writeback.enlarge(self.home, 1 << 30)
        record = root_state.read(self.home)
        self.assertEqual(1 << 30, record.size if record else 0)

    def test_what_cannot_be_written_is_refused_before_it_is_used(self) -> None:
        persistent = machine(PERSISTENT)
        for content, refused in ((EXT, ()), (TARBALL, ()), (SQUASHFS, (persistent,))):
            self.file.write_bytes(content)
            for vm in (self.vm, persistent):
                if vm in refused:
                    self.assertRaises(NotSupported, self.writeback.require_possible, vm, self.file, self.file)
                else:
                    self.writeback.require_possible(vm, self.file, self.file)

    def test_only_a_persistent_image_is_packed_as_it_was(self) -> None:
        self.writeback.begin(self.home, self.vm, self.file)
        record = root_state.read(self.home)
        assert record
        for persistent, first, program in ((True, TARBALL, "gzip"), (False, TARBALL, "none"), (True, EXT, "none")):
            self.assertEqual(program,
                             root_writeback.compression(first, dataclasses.replace(record, persistent=persistent)))
