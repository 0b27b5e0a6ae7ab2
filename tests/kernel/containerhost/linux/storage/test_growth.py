# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.storage import growth
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
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", *more, str(self.disk)], check=True)

    def test_a_file_system_fills_its_disk_and_keeps_its_content(self) -> None:
        for more in (("-O", "64bit"), ("-O", "^64bit,^has_journal", "-b", "1024")):
            self.ext(8 * MIB, *more)
            self.assertEqual(8 * MIB, growth.ext_size(self.disk))
            (self.directory / "file").write_text("kept\n")
            subprocess.run(["debugfs", "-w", "-R", f"write {self.directory / 'file'} file", str(self.disk)], check=True,
                           capture_output=True)
            growth.lengthen(self.disk, 24 * MIB)
            self.assertEqual([True, False], [growth.fill(self.disk, 30) for _ in range(2)])
            self.assertEqual(24 * MIB, growth.ext_size(self.disk))
            self.assertEqual("kept\n", subprocess.run(["debugfs", "-R", "cat file", str(self.disk)], check=True,
                                                      capture_output=True, text=True).stdout)
            self.disk.unlink()

    def test_what_is_broken_is_told_and_not_touched(self) -> None:
        self.ext(8 * MIB)
        with self.disk.open("r+b") as file:
            file.seek(1024 + 32)
            file.write(b"\xff" * 16)  # blocks and inodes of a group
        before = growth.ext_size(self.disk)
        with testtools.ExpectedException(HostActionFailed, ".*cannot be checked"), growth.lengthened(
                self.disk, 16 * MIB):
            growth.fill(self.disk, 30)
        self.assertEqual((before, 8 * MIB), (growth.ext_size(self.disk), self.disk.stat().st_size))

    def test_one_that_is_larger_than_its_disk_is_told(self) -> None:
        self.ext(8 * MIB)
        os.truncate(self.disk, 6 * MIB)
        self.assertIn("cannot be checked", str(self.assertRaises(HostActionFailed, growth.fill, self.disk, 30)))

    def test_it_waits_for_a_program_that_a_killed_action_left(self) -> None:
        self.ext(8 * MIB)
        growth.lengthen(self.disk, 16 * MIB)
        gate = self.directory / "gate"
        os.mkfifo(gate)
        script(self.directory / "e2fsck", f"read line < {gate}; true")
        begin = ("import sys; from pathlib import Path; from containerhost.linux.storage import growth; "
                 "growth.fill(Path(sys.argv[1]), 30)")
        environment = os.environ | {"PATH": f"{self.directory}:{os.environ['PATH']}"}
        with subprocess.Popen([sys.executable, "-c", begin, str(self.disk)], env=environment) as action, \
                gate.open("w") as program:  # it runs
            action.kill()
            action.wait()
            error = self.assertRaises(HostActionFailed, growth.fill, self.disk, 1)
            self.assertIn("an earlier action left", str(error))
            self.assertEqual(8 * MIB, growth.ext_size(self.disk))
            program.write("end\n")
        self.assertTrue(growth.fill(self.disk, 30))

    def test_other_file_systems_are_left_alone(self) -> None:
        self.disk.write_bytes(b"XFSB" + bytes(MIB))
        self.assertFalse(growth.fill(self.disk, 30))
