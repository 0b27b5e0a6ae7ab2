# SPDX-License-Identifier: Apache-2.0
"""Room in a datastore, with the answers of a file system in the place of a real one's."""

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import testtools

from onedriver.errors import DriverError
from onedriver.node import room

MIB = 1 << 20


class RoomTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.source, self.target = base / "source", base / "target"
        with self.source.open("wb") as file:
            file.write(b"x" * MIB)
            file.truncate(512 * MIB)
        self.clone = self.useFixture(fixtures.MockPatchObject(
            fcntl, "ioctl", side_effect=OSError(errno.EOPNOTSUPP, ""))).mock

    def free(self, size: int) -> None:
        self.useFixture(fixtures.MockPatchObject(os, "statvfs", return_value=SimpleNamespace(
            f_bavail=size // 4096, f_frsize=4096)))

    def test_sparse_file_takes_its_blocks(self) -> None:
        self.assertLessEqual(room.allocated(self.source), 2 * MIB)
        self.assertGreaterEqual(room.allocated(self.source), MIB)

    def test_refused_when_less_than_the_reserve_would_remain(self) -> None:
        self.free(room.RESERVED + 5 * MIB)
        room.require(self.source, 5 * MIB)
        error = self.assertRaises(DriverError, room.require, self.source, 5 * MIB + 1)
        self.assertTrue(str(error).startswith("No space left on device: a copy of 5 MiB cannot be written"), error)

    def test_copy_prepared_where_it_has_room(self) -> None:
        self.free(room.RESERVED + 8 * MIB)
        self.assertFalse(room.prepare(self.source, self.target))
        self.assertEqual(0, self.target.stat().st_size)

    def test_copy_refused_before_anything_is_written(self) -> None:
        self.free(room.RESERVED)
        self.assertRaises(DriverError, room.prepare, self.source, self.target)
        self.assertEqual(0, self.target.stat().st_blocks)

    def test_shared_blocks_need_no_room(self) -> None:
        self.free(0)
        self.clone.side_effect = None
        self.assertTrue(room.prepare(self.source, self.target))
        self.clone.assert_called_once_with(mock.ANY, room.FICLONE, mock.ANY)

    def test_other_errors_of_sharing_are_raised(self) -> None:
        self.clone.side_effect = OSError(errno.EIO, "Input/output error")
        self.assertRaises(OSError, room.prepare, self.source, self.target)
