# SPDX-License-Identifier: Apache-2.0
import contextlib
import struct
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import volumes
from containerhost.engines.docker.volumes import Volumes
from containerhost.errors import HostActionFailed
from containerhost.linux.storage import growth, mountedfs

HERE = (0, 0)
BLOCK = 4096


class XfsGrowthTest(testtools.TestCase):
    """An XFS can grow only while it is mounted: a disk that was enlarged before is as large as its file from then."""

    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        (self.base / "media/1").mkdir(parents=True)
        self.file = self.base / "disk.1"
        self.run = self.useFixture(fixtures.MockPatchObject(volumes, "run")).mock
        self.check = self.useFixture(fixtures.MockPatchObject(growth, "check")).mock
        self.useFixture(fixtures.MockPatchObject(mountedfs, "measure"))
        self.useFixture(fixtures.MockPatchObject(volumes, "file_system", return_value="xfs"))
        self.useFixture(fixtures.MockPatchObject(Volumes, "_is_ready", return_value=True))
        self.tool = self.useFixture(fixtures.MockPatch("shutil.which", return_value="/sbin/xfs_growfs")).mock
        self.useFixture(fixtures.MockPatch("containerhost.linux.storage.loops.over",
                                           return_value=contextlib.nullcontext("/dev/loop0")))

    def mounted(self, blocks: int, size: int, read_only: bool = False, root: tuple[int, int] = HERE) -> list[str]:
        """:returns: the programs that were run"""
        self.file.write_bytes(b"XFSB" + struct.pack(">IQ", BLOCK, blocks))
        with self.file.open("rb+") as file:
            file.truncate(size)
        Volumes(self.base / "media").mount(1, self.file, read_only=read_only, root=root)
        return [call.args[0][0] for call in (*self.run.mock_calls, *self.check.mock_calls)]

    def test_one_whose_file_was_enlarged_grows_when_it_is_mounted(self) -> None:
        self.assertEqual(["mount", "xfs_growfs"], self.mounted(64, 128 * BLOCK))
        self.assertEqual(["xfs_growfs", "-d", str(self.base / "media/1")], self.check.mock_calls[0].args[0])

    def test_one_that_fills_its_file_or_cannot_be_written_is_left(self) -> None:
        self.assertEqual(["mount"], self.mounted(128, 128 * BLOCK))
        self.run.reset_mock()
        self.assertEqual(["mount"], self.mounted(64, 128 * BLOCK, read_only=True))

    def test_one_that_this_host_cannot_grow_is_mounted_as_it_is(self) -> None:
        self.tool.return_value = None
        self.assertEqual(["mount"], self.mounted(64, 128 * BLOCK))

    def test_one_that_a_killed_call_has_mounted_grows_and_is_the_containers(self) -> None:
        self.useFixture(fixtures.MockPatch("os.path.ismount", return_value=True))
        self.useFixture(fixtures.MockPatch("containerhost.linux.storage.idmounts.device_of", return_value="/dev/loop0"))
        self.useFixture(fixtures.MockPatch("containerhost.linux.storage.loops.belongs", return_value=True))
        self.assertEqual(["xfs_growfs"], self.mounted(64, 128 * BLOCK, root=(1000, 100)))
        found = (self.base / "media/1").stat()
        self.assertEqual((1000, 100), (found.st_uid, found.st_gid))

    def test_one_that_cannot_grow_is_not_left_mounted(self) -> None:
        self.check.side_effect = HostActionFailed("no room")
        with mock.patch("os.path.ismount", side_effect=[False, True]):
            self.assertRaises(HostActionFailed, self.mounted, 64, 128 * BLOCK)
        self.assertEqual("umount", self.run.mock_calls[-1].args[0][0])
