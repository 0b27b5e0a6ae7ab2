# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys
import tempfile
from pathlib import Path

import testtools

from tools.cloud.daemons import Daemon, DaemonFailed, Daemons

TIMEOUT = 10  # seconds


def running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class DaemonsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.temporary())
        self.daemons = Daemons(self.directory)
        self.addCleanup(self.daemons.kill_leftovers)

    def temporary(self) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return directory.name

    def python(self, name: str, program: str, **keywords: object) -> Daemon:
        """A process that is ready when it has written a file of its name."""
        ready = self.directory / f"{name}.ready"
        text = f"import os, signal, sys, time; open({str(ready)!r}, 'w').write(str(os.getpid())); {program}"
        return Daemon(name, (sys.executable, "-c", text), ready=lambda: ready.exists() and bool(ready.read_text()),
                      limit=TIMEOUT, **keywords)

    def pid(self, name: str) -> int:
        return int((self.directory / f"{name}.ready").read_text())

    def test_up_and_down(self) -> None:
        self.daemons.bring_up([self.python("a", "time.sleep(60)"), self.python("b", "time.sleep(60)")])
        pids = [self.pid("a"), self.pid("b")]
        self.assertTrue(all(map(running, pids)))
        self.daemons.stop()
        self.assertFalse(any(map(running, pids)))
        self.assertEqual([], list(self.directory.glob("*.json")))

    def test_another_command_finds_and_ends_them(self) -> None:
        child = os.fork()
        if child == 0:
            self.daemons.bring_up([self.python("a", "time.sleep(60)")])
            os._exit(0)
        os.waitpid(child, 0)
        self.assertTrue(running(self.pid("a")))
        Daemons(self.directory).stop()
        self.assertFalse(running(self.pid("a")))

    def test_what_another_command_restarted_has_not_failed(self) -> None:
        self.daemons.bring_up([self.python("a", "time.sleep(60)")])
        other = Daemons(self.directory)
        other.stop(["a"])
        self.daemons.check()
        other.bring_up([self.python("a", "time.sleep(60)")])
        self.daemons.check()
        other.stop()

    def test_a_number_given_to_another_process_is_left_alone(self) -> None:
        (self.directory / "a.json").write_text(f'{{"pid": {os.getpid()}, "started": 1, "end": {int(signal.SIGKILL)}}}')
        self.daemons.stop()
        self.assertEqual([], list(self.directory.glob("*.json")))

    def test_one_that_ends_while_it_starts_is_told_with_its_log(self) -> None:
        program = "print('no such database'); raise SystemExit(3)"
        broken = Daemon("broken", (sys.executable, "-c", program), lambda: False)
        error = self.assertRaises(DaemonFailed, self.daemons.bring_up, [broken])
        self.assertIn("broken ended with status 3", str(error))
        self.assertIn("no such database", str(error))

    def test_one_that_is_never_ready_is_told(self) -> None:
        slow = Daemon("slow", ("sleep", "60"), lambda: False, limit=0.3)
        self.assertIn("not ready after", str(self.assertRaises(DaemonFailed, self.daemons.bring_up, [slow])))

    def test_one_that_ignores_its_signal_is_killed_after_the_limit(self) -> None:
        stubborn = self.python("a", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
                               end=signal.SIGTERM)
        self.daemons.bring_up([stubborn])
        self.daemons.stop(limit=0.5)
        self.assertFalse(running(self.pid("a")))

    def test_what_left_the_group_is_found_by_its_mark(self) -> None:
        stray = self.python("a", f"os.fork() or (os.setsid(), open({str(self.directory / 'stray')!r}, 'w').write("
                                 "str(os.getpid())), time.sleep(60)); time.sleep(60)")
        self.daemons.bring_up([stray])
        while not (self.directory / "stray").exists() or not (self.directory / "stray").read_text():
            self.daemons.check()
        pid = int((self.directory / "stray").read_text())
        self.daemons.stop()
        self.assertTrue(running(pid))
        self.daemons.kill_leftovers()
        self.assertFalse(running(pid))

    def test_a_command_that_fails_or_hangs_is_told_with_its_log(self) -> None:
        failing = (sys.executable, "-c", "print('what it said'); raise SystemExit(1)")
        error = self.assertRaises(DaemonFailed, self.daemons.run, "one", failing)
        self.assertIn("what it said", str(error))
        error = self.assertRaises(DaemonFailed, self.daemons.run, "two", ("sleep", "9"), limit=0.2)
        self.assertIn("longer than", str(error))
