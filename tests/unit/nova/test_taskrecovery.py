# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import fixtures
import testtools
from nova.compute import task_states, vm_states

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
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.taskrecovery.known.requested"))
        for state, container, removed in (
                (task_states.REBUILDING, object(), False), (task_states.REBUILDING, None, True),
                (task_states.REBUILD_BLOCK_DEVICE_MAPPING, object(), True),
                (task_states.REBUILD_SPAWNING, object(), True)):
            self.assertEqual(removed, self.removed(state, container), state)
