# SPDX-License-Identifier: Apache-2.0
"""With programs in the place of the one that freezes, and, where this host can mount, with real file systems."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.storage import fsfreeze, mountedfs
from containerhost.linux.storage.mountedfs import thaw
from tests.waiting import await_that

ROOT = Path(__file__).parents[5]
HOLD = "import sys, time; from pathlib import Path; from containerhost.linux.storage import fsfreeze\n" \
       "with fsfreeze.frozen(Path(sys.argv[1]), 60): print(flush=True); time.sleep(60)"


class ProcessTest(testtools.TestCase):
    directory = Path("/media/1")

    def stand_in(self, script: str) -> None:
        self.useFixture(fixtures.MockPatchObject(fsfreeze, "command", return_value=["sh", "-c", script]))

    def failed(self) -> str:
        def act() -> None:
            with fsfreeze.frozen(self.directory, 1):
                pass

        return str(self.assertRaises(HostActionFailed, act))

    def test_block_runs_while_it_is_frozen(self) -> None:
        done = Path(self.useFixture(fixtures.TempDir()).path) / "thawed"
        self.stand_in(f"echo frozen; cat; touch {done}")
        for error in (None, ZeroDivisionError):
            with contextlib.suppress(ZeroDivisionError), fsfreeze.frozen(self.directory, 1):
                self.assertFalse(done.exists())
                if error:
                    raise error
            await_that(done.exists, "it is thawed")
            done.unlink()

    def test_what_cannot_be_frozen_is_told(self) -> None:
        self.stand_in("echo Operation not supported; exit 1")
        self.assertIn("Operation not supported", self.failed())
        self.stand_in("exit 1")
        self.assertIn("cannot be frozen", self.failed())

    def test_file_system_that_the_kernel_does_not_thaw_keeps_nobody_waiting(self) -> None:
        self.useFixture(fixtures.MockPatchObject(mountedfs, "TIMEOUT", 0.2))
        self.useFixture(fixtures.MockPatch("fcntl.ioctl", lambda *arguments: time.sleep(9)))
        began = time.monotonic()
        error = self.assertRaises(HostActionFailed, thaw, Path(self.useFixture(fixtures.TempDir()).path))
        self.assertIn("not done within 0.2 s", str(error))
        self.assertLess(time.monotonic() - began, 5)

    def test_thaw_before_the_end_of_the_block_is_an_error(self) -> None:
        self.stand_in("echo frozen; exit 3")
        self.assertIn("more than 1 s", self.failed())

    def test_file_system_that_the_kernel_does_not_freeze_keeps_nobody_waiting(self) -> None:
        self.useFixture(fixtures.MockPatchObject(fsfreeze, "FREEZE_TIMEOUT", 0.2))
        self.stand_in("exec sleep 60")
        self.assertIn("does not end", self.failed())


class FileSystemTest(testtools.TestCase):
    """A real one."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(ROOT)))
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory, file = base / "mounted", base / "disk"
        self.directory.mkdir()
        with file.open("wb") as disk:
            disk.truncate(16 << 20)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", file], check=True)
        if subprocess.run(["mount", "-o", "loop", file, self.directory], check=False, capture_output=True).returncode:
            self.skipTest("this host mounts nothing")
        self.addCleanup(lambda: subprocess.run(["umount", self.directory], check=True))
        self.addCleanup(thaw, self.directory)

    @contextlib.contextmanager
    def writer(self) -> Iterator[Path]:
        """A process that writes to the disk without a pause."""
        file = self.directory / "file"
        with subprocess.Popen(["sh", "-c", f"while :; do echo x >> {file}; done"]) as process:
            try:
                await_that(file.exists, "it writes")
                yield file
            finally:
                process.kill()

    def is_written(self, file: Path) -> bool:
        before = file.stat().st_size
        time.sleep(0.5)
        return file.stat().st_size > before

    def test_nothing_is_written_while_it_is_frozen(self) -> None:
        with self.writer() as file:
            with fsfreeze.frozen(self.directory, 60):
                self.assertFalse(self.is_written(file))
            self.assertTrue(self.is_written(file))

    def test_it_is_thawed_when_its_user_is_killed(self) -> None:
        with self.writer() as file, subprocess.Popen([sys.executable, "-c", HOLD, self.directory],
                                                     stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout
            process.stdout.readline()
            self.assertFalse(self.is_written(file))
            os.killpg(process.pid, signal.SIGKILL)
            await_that(lambda: self.is_written(file), "it is thawed")

    def test_it_is_thawed_when_what_keeps_it_frozen_is_killed(self) -> None:
        def hold() -> None:
            with fsfreeze.frozen(self.directory, 60):
                subprocess.run(["pkill", "-KILL", "-f", f"fsfreeze {self.directory} 60"], check=True)

        with self.writer() as file:
            self.assertIn("ended with status -9", str(self.assertRaises(HostActionFailed, hold)))
            self.assertTrue(self.is_written(file))

    def test_it_stays_frozen_until_it_is_thawed(self) -> None:
        with self.writer() as file:
            for _ in range(2):
                fsfreeze.freeze(self.directory)
                self.assertFalse(self.is_written(file))
            thaw(self.directory)
            self.assertTrue(self.is_written(file))

    def test_one_at_a_time(self) -> None:
        """Each that waits in the kernel is a process that nobody can end."""
        with fsfreeze.frozen(self.directory, 60):
            self.assertIn("an earlier command",
                          str(self.assertRaises(HostActionFailed, fsfreeze.freeze, self.directory)))

    def test_one_that_nobody_waits_for_thaws_only_what_it_froze(self) -> None:
        for already in (False, True):
            if already:
                fsfreeze.freeze(self.directory)
            ends = os.pipe()
            os.close(ends[0])
            subprocess.run(fsfreeze.command(self.directory, "60"), stdin=subprocess.DEVNULL, stdout=ends[1],
                           stderr=subprocess.DEVNULL, check=False, cwd="/")
            os.close(ends[1])
            with subprocess.Popen(["touch", self.directory / "new"]) as process:
                time.sleep(0.5)
                frozen = process.poll() is None
                thaw(self.directory)
            self.assertEqual(already, frozen)

    def test_it_is_thawed_after_its_time(self) -> None:
        def hold() -> None:
            with fsfreeze.frozen(self.directory, 0.5):
                await_that(lambda: self.is_written(file), "it is thawed")

        with self.writer() as file:
            self.assertIn("thawed before", str(self.assertRaises(HostActionFailed, hold)))

    def test_one_that_a_killed_process_left_frozen_is_thawed_afterwards(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.directory], check=True)
        with fsfreeze.frozen(self.directory, 60):
            pass
        (self.directory / "file").write_text("written")

    def test_what_is_no_disk_is_refused(self) -> None:
        def hold() -> None:
            with fsfreeze.frozen(Path("/proc"), 60):
                pass

        self.assertIn("cannot be frozen", str(self.assertRaises(HostActionFailed, hold)))
