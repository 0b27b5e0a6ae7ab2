# SPDX-License-Identifier: Apache-2.0
import subprocess
import time
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker import startup
from containerhost.linux.sysfs import Host

ID = "ef" * 32
TIMEOUT = 60.0  # s, which no test waits for


class BeginTest(testtools.TestCase):
    """A real process, and a tree in which the kernel tells of it and its container."""

    def setUp(self):
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.host = Host(self.root)
        self.process = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.tell()

    def tell(self, name: str = "sleep", states: str = "S", used: int = 5) -> None:
        pids = [self.process.pid + number for number in range(len(states))]
        self.write("proc", str(pids[0]), "comm", text=name)
        for pid, state in zip(pids, states, strict=True):
            self.write("proc", str(pid), "status", text=f"Name:\tod) d\nState:\t{state} (as it is)\n")
        self.write("sys/fs/cgroup/docker", ID, "cgroup.procs", text="\n".join(map(str, pids)))
        self.write("sys/fs/cgroup/docker", ID, "cpu.stat", text=f"usage_usec {used}\n")

    def write(self, *parts: str, text: str) -> None:
        file = self.root.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def wait_started(self, limit: float = TIMEOUT) -> bool:
        return startup.wait_started(self.host, ID, self.process.pid, limit)

    def test_one_that_waits_has_begun(self):
        for states in ("S", "SIT"):
            self.tell(states=states)
            begun = time.monotonic()
            self.assertFalse(self.wait_started())
            self.assertLess(time.monotonic() - begun, TIMEOUT / 2)

    def test_one_that_has_ended_and_one_that_is_gone(self):
        self.process.kill()
        self.tell(states="R")
        self.assertTrue(self.wait_started())
        self.process.wait()
        self.assertTrue(self.wait_started())

    def test_one_that_works_is_watched_to_the_limit(self):
        for told in ({"name": "runc:[2:INIT]"}, {"states": "R"}, {"states": "SD"}):
            self.tell(**told)
            begun = time.monotonic()
            self.assertFalse(self.wait_started(0.05))
            self.assertGreaterEqual(time.monotonic() - begun, 0.05)

    def test_what_it_worked_counts_only_while_all_wait(self):
        self.assertEqual(5000, startup.worked(self.host, ID, self.process.pid))
        self.tell(used=7)
        self.assertEqual(7000, startup.worked(self.host, ID, self.process.pid))
        self.assertIsNone(startup.worked(self.host, "0" * 64, self.process.pid))
