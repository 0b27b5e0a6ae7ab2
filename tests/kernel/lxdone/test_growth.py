# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import filesystems, growth
from onedriver.errors import DriverError, NotSupported
from tests.commands import script

MIB = 1 << 20


class GrowthTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.disk = self.directory / "disk.0"

    def ext(self, size: int, *more: str) -> None:
        self.disk.touch()
        growth.lengthen(self.disk, size)
        growth.make_ext(self.disk, 30, *more)

    def test_a_file_becomes_longer_never_shorter(self) -> None:
        self.disk.write_bytes(b"x")
        self.assertEqual([True, False, False], [growth.lengthen(self.disk, size) for size in (MIB, MIB, 1)])
        self.assertEqual((MIB, b"x"), (self.disk.stat().st_size, self.disk.read_bytes().rstrip(b"\0")))

    def test_a_file_system_fills_its_disk_and_keeps_its_content(self) -> None:
        for more in (("-O", "64bit"), ("-O", "^64bit,^has_journal", "-b", "1024")):
            self.ext(8 * MIB, *more)
            self.assertEqual(8 * MIB, growth.ext_size(self.disk))
            (self.directory / "file").write_text("kept\n")
            subprocess.run(["debugfs", "-w", "-R", f"write {self.directory / 'file'} file", str(self.disk)], check=True,
                           capture_output=True)
            growth.lengthen(self.disk, 24 * MIB)
            self.assertEqual([True, False], [growth.fill(self.disk, filesystems.find(self.disk), 30)
                                             for _ in range(2)])
            self.assertEqual(24 * MIB, growth.ext_size(self.disk))
            self.assertEqual("kept\n", subprocess.run(["debugfs", "-R", "cat file", str(self.disk)], check=True,
                                                      capture_output=True, text=True).stdout)
            self.disk.unlink()

    def table(self, scheme: str, *parts: str, size: int = 40) -> None:
        """A disk of some MiB that becomes one of 100."""
        self.disk.touch()
        growth.lengthen(self.disk, size * MIB)
        subprocess.run(["sfdisk", "--quiet", str(self.disk)], input="\n".join([f"label: {scheme}", *parts]), text=True,
                       check=True)
        growth.lengthen(self.disk, 100 * MIB)

    def test_the_last_partition_reaches_to_the_end(self) -> None:
        for scheme in ("dos", "gpt"):
            self.table(scheme, "start=1MiB,size=1MiB", "start=2MiB,size=30MiB")
            self.assertIsNone(growth.too_small(self.disk, 2 * MIB, 100 * MIB))
            for _ in range(2):
                growth.stretch(self.disk, 2 * MIB, 30)
                first, second = filesystems.partitions(self.disk)
                self.assertEqual((1, scheme, MIB, MIB), first)
                self.assertEqual((2, scheme, 2 * MIB), second[:3])
                self.assertTrue(97 * MIB <= second.size <= 98 * MIB)
            self.disk.unlink()

    def test_partitions_that_cannot_grow(self) -> None:
        for scheme, start, words, parts in (
                ("gpt", 2 * MIB, "a partition after partition 1", ("start=2MiB,size=20MiB", "start=30MiB,size=2MiB")),
                ("dos", 6 * MIB, "partition 5 within another",
                 ("start=2MiB,size=30MiB,type=extended", "start=6MiB,size=20MiB"))):
            with self.subTest(words):
                self.table(scheme, *parts)
                before = self.disk.read_bytes()
                self.assertIn(words, str(self.assertRaises(NotSupported, growth.stretch, self.disk, start, 30)))
                self.assertIn(words, growth.too_small(self.disk, start, 0) or "")
                self.assertEqual(before, self.disk.read_bytes())
                self.disk.unlink()
        self.table("gpt", "start=2MiB,size=30MiB")
        self.useFixture(fixtures.MonkeyPatch("shutil.which", lambda name: None))
        self.assertIn("install fdisk", growth.too_small(self.disk, 2 * MIB, 0) or "")

    def test_there_is_no_room_that_a_partition_would_lack(self) -> None:
        self.table("gpt", "start=2MiB,size=20MiB", "start=30MiB,size=69MiB", size=100)
        self.assertIsNone(growth.too_small(self.disk, 2 * MIB, 100 * MIB))
        self.assertIn("after partition 1", growth.too_small(self.disk, 2 * MIB, 200 * MIB) or "")

    def test_what_is_broken_is_told_and_not_touched(self) -> None:
        self.ext(8 * MIB)
        with self.disk.open("r+b") as file:
            file.seek(1024 + 32)
            file.write(b"\xff" * 16)  # blocks and inodes of a group
        growth.lengthen(self.disk, 16 * MIB)
        before = growth.ext_size(self.disk)
        error = self.assertRaises(DriverError, growth.fill, self.disk, filesystems.find(self.disk), 30)
        self.assertIn("cannot be checked", str(error))
        self.assertEqual(before, growth.ext_size(self.disk))

    def test_it_waits_for_a_program_that_a_killed_action_left(self) -> None:
        self.ext(8 * MIB)
        growth.lengthen(self.disk, 16 * MIB)
        gate = self.directory / "gate"
        os.mkfifo(gate)
        script(self.directory / "e2fsck", f"read line < {gate}; true")
        begin = ("import sys; from pathlib import Path; from lxdone.disk import filesystems, growth; "
                 "disk = Path(sys.argv[1]); growth.fill(disk, filesystems.find(disk), 30)")
        environment = os.environ | {"PATH": f"{self.directory}:{os.environ['PATH']}"}
        with subprocess.Popen([sys.executable, "-c", begin, str(self.disk)], env=environment) as action, \
                gate.open("w") as program:  # it runs
            action.kill()
            action.wait()
            error = self.assertRaises(DriverError, growth.fill, self.disk, filesystems.find(self.disk), 1)
            self.assertIn("an earlier action left", str(error))
            self.assertEqual(8 * MIB, growth.ext_size(self.disk))
            program.write("end\n")
        self.assertTrue(growth.fill(self.disk, filesystems.find(self.disk), 30))

    def test_other_file_systems_are_left_alone(self) -> None:
        self.disk.write_bytes(b"XFSB" + bytes(MIB))
        self.assertFalse(growth.fill(self.disk, filesystems.find(self.disk), 30))

    def test_only_a_disk_without_content_is_empty(self) -> None:
        self.disk.write_bytes(bytes(8 * MIB))
        self.assertTrue(growth.is_empty(self.disk))
        with self.disk.open("r+b") as file:
            file.seek(1 * MIB)
            file.write(b"x")
        self.assertFalse(growth.is_empty(self.disk))
