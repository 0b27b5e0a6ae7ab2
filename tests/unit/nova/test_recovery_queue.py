# SPDX-License-Identifier: Apache-2.0
"""Requests that may wait in this host's queue, or were lost on their way from there."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import testtools
from nova import exception, objects
from nova.compute import instance_actions, power_state, task_states, vm_states

from containerhost import errors
from nova_lxd_ext.server.recovery import Recovery
from nova_lxd_ext.server.recoverysteps import Step
from tests.unit.nova import records
from tests.unit.nova.fakes import Deferred, unreachable_placement

HOST, NODE = "one", "node-uuid"
MOVE = "8f2b6a0c-5c56-4b0e-9b5e-0a6f1f6d9a02"


class RebuildTest(testtools.TestCase):
    """Nova sets a server with a rebuild to ERROR at its start, unless it is, and refuses a rebuild whose task state is
    gone: that leaves the server in the task state."""

    def setUp(self) -> None:
        super().setUp()
        self.server = records.instance(host=HOST, vm_state=vm_states.ACTIVE, task_state=task_states.REBUILDING)
        self.action = SimpleNamespace(id=1, action=instance_actions.REBUILD, user_id="tenant", request_id="req-1")
        self.events: list[Any] = []
        self.deferred = Deferred()
        for kind, method, answer in (
                (objects.InstanceActionList, "get_by_instance_uuid", [self.action]),
                (objects.InstanceActionEventList, "get_by_action", self.events),
                (objects.MigrationList, "get_by_filters", []), (objects.ComputeNodeList, "get_all_by_host", []),
                (objects.InstanceList, "get_by_filters", []),
                (objects.Instance, "get_by_uuid", self.server)):
            self.useFixture(fixtures.MockPatchObject(kind, method, return_value=answer))
        self.fault = self.useFixture(fixtures.MockPatch("nova.compute.utils.add_instance_fault_from_exc")).mock

    def recover(self) -> None:
        Recovery(mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), self.deferred).recover(HOST, [self.server])

    def states(self) -> tuple[str, str | None]:
        return self.server.vm_state, self.server.task_state

    def begin(self) -> None:
        self.events.append(SimpleNamespace(event="compute_rebuild_instance", host=HOST, finish_time=None, result=None))

    def test_rebuild_that_waits_in_the_queue_goes_on(self) -> None:
        self.recover()
        self.assertEqual((vm_states.ERROR, task_states.REBUILDING), self.states())
        self.begin()
        self.deferred.minutes_pass()
        self.assertEqual((vm_states.ERROR, task_states.REBUILDING), self.states())

    def test_rebuild_that_never_begins_is_ended(self) -> None:
        self.recover()
        self.deferred.minutes_pass()
        self.assertEqual((vm_states.ERROR, None), self.states())
        self.fault.assert_called_once()

    def test_rebuild_that_was_refused_is_ended(self) -> None:
        """The record is of an earlier release."""
        self.server.vm_state = vm_states.ERROR
        self.events.append(SimpleNamespace(event="compute_rebuild_instance", host=HOST, finish_time=1, result="Error"))
        self.recover()
        self.deferred.minutes_pass()
        self.assertEqual((vm_states.ERROR, None), self.states())

    def test_evacuation_that_has_not_begun_is_left_to_the_other_host(self) -> None:
        self.action.action = instance_actions.EVACUATE
        self.recover()
        self.assertEqual((vm_states.ACTIVE, task_states.REBUILDING), self.states())
        self.assertEqual([], self.deferred.calls)

    def test_task_state_of_late_evacuation_is_cleared(self) -> None:
        """It began after the old host had returned and the server was rescued there."""
        self.action.action, self.server.vm_state = instance_actions.RESCUE, vm_states.ERROR
        self.events.append(SimpleNamespace(event="compute_rescue_instance", host=HOST, finish_time=1, result="Success"))
        self.recover()
        self.assertEqual((vm_states.ERROR, None), self.states())

    def test_evacuation_of_server_in_error_that_never_begins_is_ended(self) -> None:
        """Nova leaves servers in ERROR as they are, also when their host returns."""
        self.action.action, self.server.vm_state = instance_actions.EVACUATE, vm_states.ERROR
        self.recover()
        self.deferred.minutes_pass()
        self.assertEqual((vm_states.ERROR, None), self.states())


class QueueTest(testtools.TestCase):
    """Requests that were lost between the queue and their first event, or that failed when nova-compute was killed."""

    def setUp(self) -> None:
        super().setUp()
        self.action = SimpleNamespace(id=1, action=instance_actions.RESCUE, user_id="tenant", request_id="req-1")
        self.events: list[Any] = []
        self.moves: list[objects.Migration] = []
        self.requests, self.states, self.placement = mock.Mock(), mock.Mock(), mock.Mock()
        self.placement.get_allocs_for_consumer.return_value = {"allocations": {NODE: {}}}
        self.lifecycle = mock.Mock()
        self.deferred = Deferred()
        for kind, method, answer in (
                (objects.InstanceActionList, "get_by_instance_uuid", [self.action]),
                (objects.InstanceActionEventList, "get_by_action", self.events),
                (objects.MigrationList, "get_by_filters", self.moves), (objects.ComputeNodeList, "get_all_by_host", []),
                (objects.InstanceList, "get_by_filters", [])):
            self.useFixture(fixtures.MockPatchObject(kind, method, return_value=answer))
        self.fault = self.useFixture(fixtures.MockPatch("nova.compute.utils.add_instance_fault_from_exc")).mock

    def recover(self, task_state: str | None, vm_state: str = vm_states.ACTIVE, **values: Any) -> None:
        self.server = records.instance(host=HOST, vm_state=vm_state, task_state=task_state, **values)
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", return_value=self.server))
        self.recovery = Recovery(self.states, self.lifecycle, mock.Mock(), mock.Mock(), self.deferred,
                                 lambda: self.requests, lambda: self.placement)
        self.recovery.recover(HOST, [self.server])

    def unshelving(self, error: Exception | None) -> list[objects.Instance]:
        """Recover a server that is being unshelved, of which the container cannot be removed.

        :returns: the servers that nova looks at afterwards
        """
        self.events.append(SimpleNamespace(event="compute_unshelve_instance", host=HOST, finish_time=None, result=None))
        self.lifecycle.remove.side_effect = error
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.instance_records.requested"))
        self.recover(task_states.SPAWNING, vm_states.SHELVED_OFFLOADED)
        return list(self.recovery.queue_reboots(mock.ANY, objects.InstanceList(objects=[self.server])))

    def test_server_that_cannot_be_recovered_is_kept_from_nova(self) -> None:
        """Nova would set one that is being unshelved to ERROR, on this host and without a container."""
        self.assertEqual([], self.unshelving(errors.EngineError("it fails")))
        self.assertEqual(task_states.SPAWNING, self.server.task_state)

    def test_unshelving_is_not_undone_while_placement_does_not_answer(self) -> None:
        """The shelved server would keep resources of a host that it is not on."""
        self.placement = unreachable_placement()
        self.assertEqual([], self.unshelving(None))
        self.assertEqual((HOST, task_states.SPAWNING), (self.server.host, self.server.task_state))

    def test_start_ends_where_the_engine_is_away(self) -> None:
        self.assertRaises(errors.EngineUnavailable, self.unshelving, errors.EngineUnavailable("it restarts"))

    def test_revert_of_an_undone_resize_that_never_begins_is_sent_again(self) -> None:
        """The action is the resize, of which methods have begun."""
        self.events += [SimpleNamespace(event=f"compute_{method}", host=HOST, finish_time=1, result="Error")
                        for method in ("prep_resize", "resize_instance")]
        self.action.action = instance_actions.RESIZE
        self.moves.append(objects.Migration(
            id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute=HOST, dest_compute=HOST, status="reverting",
            migration_type="resize"))
        with mock.patch.object(objects.RequestSpec, "get_by_instance_uuid",
                               side_effect=exception.RequestSpecNotFound(instance_uuid=records.UUID)):
            self.recover(task_states.RESIZE_REVERTING,
                         migration_context=objects.MigrationContext(migration_id=7, instance_uuid=records.UUID))
            self.deferred.minutes_pass()
        self.requests.revert_resize.assert_called_once_with(mock.ANY, self.server, self.moves[0], HOST, None)

    def test_request_that_never_begins_is_ended(self) -> None:
        for task_state in (task_states.RESCUING, task_states.UNRESCUING, task_states.PAUSING, task_states.SHELVING):
            with self.subTest(task_state):
                self.recover(task_state)
                self.assertEqual(task_state, self.server.task_state)
                self.deferred.minutes_pass()
                self.assertIsNone(self.server.task_state)

    def test_request_that_was_sent_meanwhile_goes_on(self) -> None:
        self.recover(task_states.RESCUING)
        self.action.request_id = "req-2"
        self.deferred.minutes_pass()
        self.assertEqual(task_states.RESCUING, self.server.task_state)

    def test_task_state_of_request_that_failed_is_cleared(self) -> None:
        """Nova ends the event first."""
        self.events.append(SimpleNamespace(event="compute_rescue_instance", host=HOST, finish_time=1, result="Error"))
        self.recover(task_states.RESCUING, vm_states.ERROR)
        self.assertIsNone(self.server.task_state)

    def test_power_off_of_server_in_error_is_ended(self) -> None:
        """Nova leaves servers in ERROR as they are."""
        self.events.append(SimpleNamespace(event="compute_stop_instance", host=HOST, finish_time=None, result=None))
        event_end = self.useFixture(fixtures.MockPatchObject(objects.InstanceActionEvent, "event_finish_with_failure"))
        self.recover(task_states.POWERING_OFF, vm_states.ERROR)
        self.assertIsNone(self.server.task_state)
        event_end.mock.assert_called_once()

    def resized(self) -> None:
        """Recover a server whose resize is being confirmed."""
        self.move = objects.Migration(id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute=HOST,
                                      dest_compute="two", status="confirming", migration_type="resize")
        self.move.save = mock.Mock()
        self.moves.append(self.move)
        self.recover(None, vm_states.RESIZED,
                     migration_context=objects.MigrationContext(migration_id=7, instance_uuid=records.UUID))

    def test_confirmation_that_never_begins_is_sent_again(self) -> None:
        self.resized()
        self.requests.confirm_resize.assert_not_called()
        self.deferred.minutes_pass()
        self.requests.confirm_resize.assert_called_once_with(mock.ANY, self.server, self.move, HOST)

    def test_confirmation_is_sent_again_when_nova_compute_has_started(self) -> None:
        """A start that fails is repeated, and nova fails a second confirmation, which finds no migration context."""
        self.events.append(SimpleNamespace(event="compute_confirm_resize", host=HOST, finish_time=None, result=None))
        self.resized()
        self.requests.confirm_resize.assert_not_called()
        self.deferred.minutes_pass()
        self.requests.confirm_resize.assert_called_once_with(mock.ANY, self.server, self.move, HOST)

    def test_confirmed_move_stays_unended_until_its_allocation_is_deleted(self) -> None:
        """Its host would keep the resources: nothing looks for the allocation of a confirmed migration."""
        self.resized()
        server = records.instance(host=HOST, vm_state=vm_states.RESIZED, migration_context=None,
                                  power_state=power_state.RUNNING)

        def confirm() -> None:
            self.recovery._moves.recover(mock.Mock(), HOST, Step.CONFIRM_MOVE, server, self.move, mock.Mock())

        answering, self.placement = self.placement, unreachable_placement()
        self.assertRaises(exception.PlacementAPIConnectFailure, confirm)
        answering.delete_allocation_for_instance.side_effect = exception.AllocationDeleteFailed(
            consumer_uuid=MOVE, error="a conflict")
        self.placement = answering
        self.assertRaises(exception.AllocationDeleteFailed, confirm)
        self.assertEqual(("confirming", vm_states.RESIZED), (self.move.status, server.vm_state))
        answering.delete_allocation_for_instance.side_effect = None
        confirm()
        self.assertEqual(("confirmed", vm_states.ACTIVE), (self.move.status, server.vm_state))

    def test_evacuation_that_never_begins_is_ended(self) -> None:
        """nova-compute was killed between the queue and the first event. Only a user names the new host before that."""
        self.action.action = instance_actions.EVACUATE
        node = SimpleNamespace(uuid=NODE)
        self.useFixture(fixtures.MockPatchObject(objects.ComputeNodeList, "get_all_by_host", return_value=[node]))
        self.placement.get_allocations_for_resource_provider.return_value = SimpleNamespace(allocations={})
        for named, allocated, ended in ((HOST, {}, True), (None, {NODE: {}}, True), (None, {}, False)):
            with self.subTest(named=named, allocated=allocated):
                self.placement.get_allocs_for_consumer.return_value = {"allocations": allocated}
                self.moves[:] = [objects.Migration(
                    id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute="two", dest_compute=named,
                    status="accepted", migration_type="evacuation")]
                self.moves[0].save = mock.Mock()
                self.recover(task_states.REBUILDING, migration_context=None)
                self.server.host = "two"
                self.recovery.recover(HOST, [])
                self.deferred.minutes_pass()
                self.assertEqual(("failed", None) if ended else ("accepted", task_states.REBUILDING),
                                 (self.moves[0].status, self.server.task_state))

    def test_evacuation_that_was_failing_is_ended(self) -> None:
        """nova-compute was killed while it handled an error, at whose end nova clears the task state."""
        self.action.action = instance_actions.EVACUATE
        node = SimpleNamespace(uuid=NODE)
        self.useFixture(fixtures.MockPatchObject(objects.ComputeNodeList, "get_all_by_host", return_value=[node]))
        self.placement.get_allocations_for_resource_provider.return_value = SimpleNamespace(allocations={})
        self.placement.get_allocs_for_consumer.return_value = {"allocations": {}}
        self.events.append(SimpleNamespace(event="compute_rebuild_instance", host=HOST, finish_time=None, result=None))
        self.moves[:] = [objects.Migration(
            id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute="two", dest_compute=HOST, status="failed",
            migration_type="evacuation")]
        self.moves[0].save = mock.Mock()
        self.useFixture(fixtures.MockPatchObject(objects.InstanceActionEvent, "event_finish_with_failure"))
        for task_state, ended in ((task_states.REBUILD_SPAWNING, True), (None, False)):
            with self.subTest(task_state):
                self.lifecycle.remove.reset_mock()
                self.recover(None, migration_context=None)
                self.server.host, self.server.task_state = "two", task_state
                self.recovery.recover(HOST, [])
                self.assertEqual((vm_states.ERROR if ended else vm_states.ACTIVE, None),
                                 (self.server.vm_state, self.server.task_state))
                self.assertEqual(ended, self.lifecycle.remove.called)
        removed = self.placement.remove_provider_tree_from_instance_allocation
        removed.assert_called_once_with(mock.ANY, records.UUID, NODE)

    def test_prepared_move_that_its_host_never_begins_is_ended(self) -> None:
        """Nova clears the task state alone."""
        move = objects.Migration(id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute=HOST, dest_compute="two",
                                 status="pre-migrating", migration_type="resize")
        move.save = mock.Mock()
        self.moves.append(move)
        self.events.append(SimpleNamespace(event="compute_prep_resize", host="two", finish_time=1, result="Success"))
        self.recover(task_states.RESIZE_PREP,
                     migration_context=objects.MigrationContext(migration_id=7, instance_uuid=records.UUID))
        self.server.task_state, self.server.drop_migration_context = None, mock.Mock()
        with mock.patch("nova_lxd_ext.server.moverecovery.resize_request_spec"):
            self.deferred.minutes_pass()
        self.assertEqual("failed", move.status)
        self.placement.move_allocations.assert_called_once_with(mock.ANY, MOVE, records.UUID)

    def test_reboot_that_nova_repeats_is_queued(self) -> None:
        """Keep a reboot that fails from ending the start of nova-compute."""
        running, off = power_state.RUNNING, power_state.SHUTDOWN
        for task_state, power, kind in ((task_states.REBOOT_PENDING, running, "SOFT"),
                                        (task_states.REBOOT_PENDING, off, "HARD"),
                                        (task_states.REBOOT_STARTED_HARD, off, "HARD"),
                                        (task_states.REBOOT_STARTED_HARD, running, None),
                                        (None, off, None)):
            with self.subTest(task_state, power=power):
                self.recover(task_state)
                self.states.power.return_value = SimpleNamespace(state=power)
                self.requests.reset_mock()
                left = self.recovery.queue_reboots(None, [self.server])
                self.assertEqual([] if kind else [self.server], list(left))
                self.assertEqual([kind] if kind else [],
                                 [call.args[3] for call in self.requests.reboot_instance.call_args_list])
