# SPDX-License-Identifier: Apache-2.0
"""Test that devices of killed actions are released without an operator, and no others."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from containerhost.allocation.states import State
from tests.kernel.onedriver.node.test_vmlock import HOLD
from tests.unit.onedriver.node.test_device_recovery import VM_ID, DeviceRecoveryCase


class DeviceRecoveryTest(DeviceRecoveryCase):
    def test_vm_that_action_works_on_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with self.worked_on():
            self.assert_freed(False)
        self.assert_freed(True)

    def test_vm_that_action_begins_on_meanwhile_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with self.worked_on(), mock.patch.object(self.recovery, "pending", return_value=(VM_ID,)):
            self.recovery.recover(self.present)
        self.assertEqual({self.gpu.id}, set(self.store.records()))

    @contextlib.contextmanager
    def worked_on(self) -> Iterator[None]:
        with subprocess.Popen([sys.executable, "-c", HOLD, str(self.directory / "state"), str(VM_ID)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as action:
            self.assertEqual(b"held\n", action.stdout.readline())  # type: ignore[union-attr]
            yield
            action.communicate()
