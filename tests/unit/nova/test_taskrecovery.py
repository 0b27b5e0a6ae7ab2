# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import fixtures
import testtools
from nova.compute import task_states, vm_states

from containerhost.engines.contract import ContainerState, Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.server.taskrecovery import TaskRecovery
from tests.unit.nova import records


class RebuildTest(testtools.TestCase):
    def removed(self, task_state: str, container: object) -> bool:
        """Return whether the recovery of a lost rebuild removes the server's container; the server is ERROR then."""
        states, lifecycle = mock.Mock(), mock.Mock()
        states.find.return_value = container
        server = records.instance(vm_state=vm_states.ACTIVE, task_state=task_state)
        with mock.patch("nova_lxd_ext.server.taskrecovery.fail") as fail:
            TaskRecovery(states, lifecycle, mock.Mock(), mock.Mock(), mock.Mock()).recover(None, server, mock.Mock())
        fail.assert_called_once()
        return bool(lifecycle.remove.called)

    def test_container_stays_until_nova_has_asked_for_its_end(self) -> None:
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.taskrecovery.instance_records.requested"))
        for state, container, removed in (
                (task_states.REBUILDING, object(), False), (task_states.REBUILDING, None, True),
                (task_states.REBUILD_BLOCK_DEVICE_MAPPING, object(), True),
                (task_states.REBUILD_SPAWNING, object(), True)):
            self.assertEqual(removed, self.removed(state, container), state)


class UnshelvingTest(testtools.TestCase):
    def test_copy_of_a_move_is_not_the_unshelved_server(self) -> None:
        """The progress may be that of the first boot."""
        states, lifecycle = mock.Mock(), mock.Mock()
        states.find.return_value = ContainerState("instance-0000002a", Status.STOPPED, {labels.INCOMING: "7"})
        server = records.instance(vm_state=vm_states.SHELVED_OFFLOADED, task_state=task_states.SPAWNING, progress=100)
        for name in ("instance_records.requested", "leave_host", "record_outcome"):
            self.useFixture(fixtures.MockPatch(f"nova_lxd_ext.server.taskrecovery.{name}"))
        TaskRecovery(states, lifecycle, mock.Mock(), mock.Mock(), mock.Mock()).recover(None, server, mock.Mock())
        lifecycle.remove.assert_called_once()
        self.assertEqual(vm_states.SHELVED_OFFLOADED, server.vm_state)


class SnapshotTest(testtools.TestCase):
    """Nova itself only clears the task state; to it a server that is paused and ACTIVE is none of its business."""

    def resumed(self, task_state: str, vm_state: str, status: Status | None) -> bool:
        states, power = mock.Mock(), mock.Mock()
        states.find.return_value = status and ContainerState("instance-0000002a", status, {})
        server = records.instance(vm_state=vm_state, task_state=task_state)
        with mock.patch("nova_lxd_ext.server.taskrecovery.clear_task"):
            TaskRecovery(states, mock.Mock(), power, mock.Mock(), mock.Mock()).recover(None, server, mock.Mock())
        return bool(power.unfreeze.called)

    def test_server_that_was_frozen_for_its_snapshot_runs_on(self) -> None:
        for task_state in (task_states.IMAGE_SNAPSHOT, task_states.IMAGE_BACKUP):
            self.assertTrue(self.resumed(task_state, vm_states.ACTIVE, Status.FROZEN))
            for status in (Status.RUNNING, None):
                self.assertFalse(self.resumed(task_state, vm_states.ACTIVE, status))
            self.assertFalse(self.resumed(task_state, vm_states.PAUSED, Status.FROZEN))
