# SPDX-License-Identifier: Apache-2.0
import struct
import subprocess
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import filesystems
from lxdone.disk.diskformat import Format
from lxdone.disk.filesystems import FileSystem
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import programs

MIB = 1 << 20
EXT = (1080, b"\x53\xef")


def partitioned(*partitions: tuple[int, int]) -> bytes:
    """A master boot record.

    :param partitions: start and size in bytes
    """
    entries = b"".join(struct.pack("<8B2L", 0, 0, 0, 0, 0x83, 0, 0, 0, start // 512, size // 512)
                       for start, size in partitions)
    return bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa"


class FindTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.disk = Path(self.useFixture(fixtures.TempDir()).path) / "disk.0"

    def write(self, size: int, *pieces: tuple[int, bytes]) -> None:
        with self.disk.open("wb") as file:
            file.truncate(size)
            for place, content in pieces:
                file.seek(place)
                file.write(content)

    def test_a_whole_disk(self) -> None:
        self.write(4 * MIB, EXT)
        self.assertEqual(FileSystem(Format.EXT, 0, 4 * MIB), filesystems.find(self.disk))

    def test_the_largest_partition_with_a_file_system(self) -> None:
        starts = MIB, 2 * MIB, 5 * MIB
        self.write(12 * MIB, (0, partitioned((starts[0], MIB), (starts[1], 3 * MIB), (starts[2], 7 * MIB))),
                   (starts[0] + EXT[0], EXT[1]), (starts[1] + EXT[0], EXT[1]))
        self.assertEqual(FileSystem(Format.EXT, starts[1], 3 * MIB), filesystems.find(self.disk))

    def test_partitions_that_hold_nothing_known(self) -> None:
        self.write(4 * MIB, (0, partitioned((MIB, 2 * MIB))))
        error = self.assertRaises(NotSupported, filesystems.find, self.disk)
        self.assertIn("none of the 1 partitions", str(error))

    def test_a_disk_that_is_not_there(self) -> None:
        self.assertRaises(BadInput, filesystems.find, self.disk)

    def test_clones_of_one_xfs_may_be_mounted_side_by_side(self) -> None:
        self.assertTrue(FileSystem(Format.XFS, 0, MIB).options.endswith(",nouuid"))
        self.assertEqual("ro,nodev,nosuid,noexec,nosymfollow,errors=remount-ro",
                         FileSystem(Format.EXT, 512, MIB).options)

    def test_a_command_that_fails_says_why_on_one_line(self) -> None:
        error = self.assertRaises(DriverError, programs.run, ["sh", "-c", "echo a; echo b >&2; echo c >&2; exit 1"],
                                  9, "no")
        self.assertEqual("no: b c", str(error))
        late = self.assertRaises(DriverError, programs.run, ["sleep", "60"], 0, "no")
        self.assertIn("did not end within 0 s", str(late))


class ArchivedTest(testtools.TestCase):
    def test_program_that_inherits_the_archive_waits_for_it(self) -> None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(filesystems, "over_loop", lambda *_: subprocess.Popen(
            ["sh", "-c", "sleep 0.3; echo content"], stdout=subprocess.PIPE, start_new_session=True)))
        with filesystems.archived(directory / "disk.0", FileSystem(Format.EXT, 0, MIB), directory, 30) as pipe:
            self.assertEqual(b"content\n", subprocess.check_output(["cat"], stdin=pipe))
