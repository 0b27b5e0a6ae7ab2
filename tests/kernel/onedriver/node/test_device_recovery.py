# SPDX-License-Identifier: Apache-2.0
"""Test that devices of killed actions are released without an operator, and no others."""

from unittest import mock

from containerhost.allocation.states import State
from tests.kernel.onedriver.node.test_vmlock import held
from tests.unit.onedriver.node.test_device_recovery import VM_ID, DeviceRecoveryCase


class DeviceRecoveryTest(DeviceRecoveryCase):
    def test_vm_that_action_works_on_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with held(self.directory / "state", VM_ID):
            self.assert_freed(False)
        self.assert_freed(True)

    def test_vm_that_action_begins_on_meanwhile_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with held(self.directory / "state", VM_ID), mock.patch.object(self.recovery, "pending", return_value=(VM_ID,)):
            self.recovery.recover(self.present)
        self.assertEqual({self.gpu.id}, set(self.store.records()))
