# SPDX-License-Identifier: Apache-2.0
import contextlib
import subprocess
import sys
from collections.abc import Iterator
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


@contextlib.contextmanager
def held(state: Path, vm_id: int) -> Iterator[subprocess.Popen[bytes]]:
    """Let another process hold a VM's lock within the block, as an action does."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(state), str(vm_id)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as action:
        assert action.stdout
        assert action.stdout.readline() == b"held\n"
        yield action
        action.communicate()


class VmLockTest(testtools.TestCase):
    def test_one_process_for_each_vm_and_none_that_ended(self) -> None:
        state = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        with held(state, 7) as other:
            self.assertRaises(vmlock.Busy, vmlock.held(state, 7, 0).__enter__)
            with vmlock.held(state, 8, 0):
                pass
            other.kill()
            other.wait()
            with vmlock.held(state, 7, 0):
                pass
