# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.process import daemonhelpers
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
