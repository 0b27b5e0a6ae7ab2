# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.linux import daemonhelpers
from tests.waiting import await_that


class HelpersTest(testtools.TestCase):
    def test_helper_among_the_hosts_mounts_is_left_alone(self) -> None:
        """It has not entered a container yet."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "forkfile").write_text("import sys; sys.stdin.read()")
        process = subprocess.Popen(["lxd", "forkfile", "--", "97"], executable=sys.executable, cwd=directory,
                                   stdin=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        await_that(lambda: daemonhelpers.action(process.pid) == ["forkfile", "--", "97"], "it is taken for a helper")
        self.assertFalse(daemonhelpers.kill(process.pid, os.getpid()))
        self.assertIsNone(process.poll())

    def test_helper_that_has_ended_is_none(self) -> None:
        process = subprocess.Popen(["true"])
        process.wait()
        self.assertEqual(([], False), (daemonhelpers.action(process.pid), daemonhelpers.kill(process.pid, 0)))

    def test_only_copies_of_the_container_are_ended(self) -> None:
        script = Path(self.useFixture(fixtures.TempDir()).path) / "wait"
        script.write_text("import sys; sys.stdin.read()")
        pools = "/var/lib/lxd/storage-pools/default"
        processes = {}
        for name, words in {
                "this": ("rsync", str(script), "-a", f"{pools}/containers/c1/", f"{pools}/containers-snapshots/c1/one"),
                "another": ("rsync", str(script), f"{pools}/containers/c11/", f"{pools}/containers-snapshots/c11/one"),
                "into it": ("rsync", str(script), f"{pools}/containers-snapshots/c1/one", f"{pools}/containers/c1/"),
                "a program": ("tar", str(script), f"{pools}/containers/c1/", "/tmp/x")}.items():
            process = subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            processes[name] = process
            await_that(lambda words=words, pid=process.pid: daemonhelpers.command(pid) == list(words), "it runs")
        self.assertEqual(1, daemonhelpers.end_copies("c1"))
        self.assertEqual(-signal.SIGKILL, processes.pop("this").wait(timeout=10))
        self.assertEqual({"another": None, "into it": None, "a program": None},
                         {name: process.poll() for name, process in processes.items()})
