# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from onedriver.node import vmlock

#: Arguments: the directory, the VM's id. The lock is held until standard input ends.
HOLD = """
import pathlib, sys
from onedriver.node import vmlock
with vmlock.held(pathlib.Path(sys.argv[1]), int(sys.argv[2]), 0):
    print("held", flush=True)
    sys.stdin.read()
"""


class VmLockTest(testtools.TestCase):
    def test_one_process_for_each_vm_and_none_that_ended(self) -> None:
        state = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        with subprocess.Popen([sys.executable, "-c", HOLD, str(state), "7"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as other:
            self.assertEqual(b"held\n", other.stdout.readline())
            self.assertRaises(vmlock.Busy, vmlock.held(state, 7, 0).__enter__)
            with vmlock.held(state, 8, 0):
                pass
            other.kill()
            other.wait()
            with vmlock.held(state, 7, 0):
                pass
