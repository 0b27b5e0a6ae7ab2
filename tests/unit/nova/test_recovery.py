# SPDX-License-Identifier: Apache-2.0
import dataclasses
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import oslo_messaging as messaging
import testtools
from nova import exception, objects
from nova.compute import instance_actions, task_states, vm_states

from containerhost.engines.contract import ContainerState, Status
from nova_lxd_ext.server.lostrequests import Lost
from nova_lxd_ext.server.recovery import Recovery
from tests.unit.nova import records
from tests.unit.nova.fakes import Deferred, unreachable_placement

HOST, NODE = "one", "node-uuid"
MOVE, OTHER = "8f2b6a0c-5c56-4b0e-9b5e-0a6f1f6d9a02", "8f2b6a0c-5c56-4b0e-9b5e-0a6f1f6d9a03"


class RecoveryTest(testtools.TestCase):
    """Nova's database and Placement are fakes; the server is on this host, or deleted."""

    def setUp(self) -> None:
        super().setUp()
        self.server = records.instance(host=HOST, vm_state=vm_states.ACTIVE, task_state=task_states.RESIZE_PREP,
                                       deleted=False, migration_context=None, new_flavor=None)
        self.move = objects.Migration(id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute=HOST,
                                      dest_compute=None, status="pre-migrating", migration_type="resize")
        self.move.save = mock.Mock()
        self.placement, self.deferred = mock.Mock(), Deferred()
        self.placement.get_allocations_for_resource_provider.return_value = SimpleNamespace(
            allocations={records.UUID: {}, MOVE: {}, OTHER: {}})
        self.placement.get_allocs_for_consumer.return_value = {"allocations": {NODE: {}}}
        for kind, method, answer in (
                (objects.InstanceActionList, "get_by_instance_uuid", []),
                (objects.ComputeNodeList, "get_all_by_host", [SimpleNamespace(uuid=NODE)]),
                (objects.InstanceList, "get_by_filters", []),
                (objects.RequestSpec, "get_by_instance_uuid", SimpleNamespace(flavor=self.server.flavor))):
            self.useFixture(fixtures.MockPatchObject(kind, method, return_value=answer))
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", side_effect=self.read))
        self.useFixture(fixtures.MockPatchObject(objects.MigrationList, "get_by_filters", side_effect=self.moves))
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.moverecovery.record_outcome"))

    def read(self, context: Any, uuid: str, expected_attrs: Any) -> objects.Instance:
        if uuid != records.UUID or (self.server.deleted and context.read_deleted != "yes"):
            raise exception.InstanceNotFound(instance_id=uuid)
        return self.server

    def moves(self, context: Any, filters: Any, **how: Any) -> list[objects.Migration]:
        """Nova marks the moves of a deleted server as deleted."""
        return [self.move] if context.read_deleted == "yes" or not self.server.deleted else []

    def recover(self, *servers: objects.Instance) -> None:
        self.recovery(mock.Mock()).recover(HOST, servers)

    def recovery(self, requests: mock.Mock, states: mock.Mock | None = None) -> Recovery:
        return Recovery(states or mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), self.deferred, lambda: requests,
                        lambda: self.placement)

    def test_resize_that_no_host_has_claimed_returns_its_allocations(self) -> None:
        """Nova clears the task state alone, and does not start with the allocations of both sizes."""
        self.recover(self.server)
        self.placement.move_allocations.assert_called_once_with(mock.ANY, MOVE, records.UUID)
        self.assertEqual(("failed", None), (self.move.status, self.server.task_state))

    def test_move_is_not_ended_while_placement_does_not_answer(self) -> None:
        """Its allocation would stay the move's until a later start: the server would hold nothing on this host."""
        answering, self.placement = self.placement, unreachable_placement()
        self.recover(self.server)
        self.assertEqual(("pre-migrating", task_states.RESIZE_PREP), (self.move.status, self.server.task_state))
        self.placement = answering
        self.test_resize_that_no_host_has_claimed_returns_its_allocations()

    def test_start_goes_on_while_placement_does_not_answer(self) -> None:
        """A server that is about to be unshelved may have been allocated resources here."""
        unplaced = records.instance(host=None, vm_state=vm_states.SHELVED_OFFLOADED, task_state=task_states.SPAWNING)
        self.placement = unreachable_placement()
        with mock.patch.object(objects.InstanceList, "get_by_filters", return_value=[unplaced]):
            self.recover()

    def test_nothing_is_moved_because_placement_failed_once(self) -> None:
        """The server's own allocation, which the answer did not show, would be replaced by the move's."""
        self.server.task_state, self.move.status = None, "error"
        self.placement.get_allocs_for_consumer.side_effect = exception.ConsumerAllocationRetrievalFailed(
            consumer_uuid=records.UUID, error="503")
        self.recover(self.server)
        self.placement.move_allocations.assert_not_called()

    def test_conductor_without_the_api_database_keeps_no_move_from_being_undone(self) -> None:
        self.useFixture(fixtures.MockPatchObject(objects.RequestSpec, "get_by_instance_uuid",
                                                 side_effect=messaging.RemoteError("CantStartEngineError")))
        self.test_resize_that_no_host_has_claimed_returns_its_allocations()

    def test_move_that_another_host_has_claimed_goes_on(self) -> None:
        for kind, host in (("evacuation", None), ("resize", "two")):
            self.move.migration_type, self.move.dest_compute = kind, host
            with self.subTest(kind):
                self.recover(self.server)
                self.placement.move_allocations.assert_not_called()

    def test_killed_while_it_copied_a_running_server_nothing_of_it_is_disconnected(self) -> None:
        """Nova's revert has the new host delete the attachments of the server's volumes."""
        self.move.dest_compute = "two"
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id)
        states, requests = mock.Mock(), mock.Mock()
        for status, state, reverts, task_state in (
                (Status.RUNNING, task_states.RESIZE_MIGRATING, False, task_states.RESIZE_MIGRATING),
                (Status.STOPPED, task_states.RESIZE_MIGRATING, True, task_states.RESIZE_REVERTING)):
            states.find.return_value = ContainerState(self.server.name, status, {})
            self.server.task_state, self.server.new_flavor = state, records.flavor(root_gb=8)
            self.move.status = "migrating"
            self.placement.reset_mock()
            requests.reset_mock()
            with self.subTest(status), mock.patch(
                    "nova_lxd_ext.server.lostrequests.of", return_value=Lost(
                        SimpleNamespace(action=instance_actions.RESIZE, user_id="tenant", request_id="req-1"),
                        frozenset({"resize_instance"}), frozenset({"prep_resize"}), frozenset({"prep_resize"}))):
                self.recovery(requests, states).recover(HOST, [self.server])
            self.assertEqual((reverts, task_state), (requests.revert_resize.called, self.server.task_state))
            if not reverts:
                self.placement.move_allocations.assert_called_once_with(mock.ANY, MOVE, records.UUID)
                self.assertEqual(("failed", self.move.id, None), (
                    self.move.status, self.server.migration_context.migration_id, self.server.new_flavor))

    def test_killed_while_it_undid_a_move_the_revert_that_has_begun_is_not_sent_again(self) -> None:
        """The new host would disconnect volumes of the server, which its own host has started again."""
        self.move.dest_compute, self.server.task_state = "two", task_states.RESIZE_REVERTING
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id)
        requests = mock.Mock()
        for begun in (frozenset(), frozenset({"revert_resize"})):
            requests.reset_mock()
            self.move.status = "reverted" if begun else "reverting"
            with self.subTest(begun), mock.patch(
                    "nova_lxd_ext.server.lostrequests.of", return_value=Lost(
                        SimpleNamespace(action=instance_actions.RESIZE, user_id="tenant", request_id="req-1"),
                        frozenset({"resize_instance"}), frozenset({"prep_resize"}) | begun,
                        frozenset({"prep_resize"}) | begun)):
                self.recovery(requests).recover(HOST, [self.server])
            self.assertEqual((not begun, bool(begun)), (requests.revert_resize.called, bool(self.deferred.calls)))

    def test_killed_at_the_end_of_a_revert_it_is_repeated_only_if_its_second_half_never_begins(self) -> None:
        """That may be in the queue: then the repeated first half would stop a server that is back."""
        self.move.dest_compute, self.server.task_state = HOST, task_states.RESIZE_REVERTING
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id)
        requests = mock.Mock()
        for status, later, at_once, repeated in (
                ("reverting", frozenset(), True, True), ("reverted", frozenset(), False, True),
                ("reverted", frozenset({"finish_revert_resize"}), False, False)):
            requests.reset_mock()
            self.move.status = status
            lost = Lost(SimpleNamespace(action=instance_actions.REVERT_RESIZE, user_id="tenant", request_id="req-1"),
                        frozenset({"revert_resize"}), frozenset(), frozenset())
            with self.subTest(status, later=later), mock.patch(
                    "nova_lxd_ext.server.lostrequests.of", side_effect=lambda *_, lost=lost: lost):
                self.recovery(requests).recover(HOST, [self.server])
                self.assertEqual(at_once, requests.revert_resize.called)
                lost = dataclasses.replace(lost, others=later)
                with mock.patch("nova_lxd_ext.server.lostrequests.of", return_value=lost):
                    self.deferred.minutes_pass()
                self.assertEqual(repeated, requests.revert_resize.called)
                requests.finish_revert_resize.assert_not_called()

    def test_killed_at_the_end_of_a_resize_its_second_half_is_sent_again_only_if_it_never_begins(self) -> None:
        """It may be in the queue, and nova fails a server for which it comes twice."""
        self.move.status, self.server.task_state = "post-migrating", task_states.RESIZE_MIGRATED
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id)
        self.server.old_flavor = None
        for host, later, repeated in ((HOST, frozenset(), True), ("two", frozenset(), True),
                                      ("two", frozenset({"finish_resize"}), False)):
            requests, self.move.dest_compute, self.server.host = mock.Mock(), host, host
            lost = Lost(SimpleNamespace(action=instance_actions.RESIZE, user_id="tenant", request_id="req-1"),
                        frozenset({"resize_instance"}), frozenset({"prep_resize"}), frozenset({"prep_resize"}))
            with self.subTest(host, later=later):
                with mock.patch("nova_lxd_ext.server.lostrequests.of", return_value=lost):
                    self.recovery(requests).recover(HOST, [self.server] if host == HOST else [])
                requests.finish_resize.assert_not_called()
                lost = dataclasses.replace(lost, others=lost.others | later)
                with mock.patch("nova_lxd_ext.server.lostrequests.of", return_value=lost):
                    self.deferred.minutes_pass()
                self.assertEqual(repeated, requests.finish_resize.called)

    def test_move_to_this_host_whose_server_did_something_else_since_is_dropped(self) -> None:
        """The server's host cleared the task state at its start while this one, which prepared the move, was down."""
        self.move.source_compute, self.move.dest_compute, self.server.task_state = "two", HOST, None
        for action, host, called in (
                (instance_actions.RESIZE, "two", []),
                (instance_actions.REBUILD, "two", [mock.call.move_allocations(mock.ANY, MOVE, records.UUID)]),
                (instance_actions.SHELVE, None, [mock.call.delete_allocation_for_instance(
                    mock.ANY, MOVE, consumer_type="migration", force=True)])):
            self.server.host, self.move.status = host, "pre-migrating"
            self.placement.reset_mock()
            with self.subTest(action), mock.patch(
                    "nova_lxd_ext.server.lostrequests.of", return_value=Lost(
                        SimpleNamespace(action=action), frozenset(), frozenset(), frozenset())):
                self.recover()
                self.assertEqual("failed" if called else "pre-migrating", self.move.status)
                changes = [call for call in self.placement.method_calls if not call[0].startswith("get_")]
                self.assertEqual(called, changes[:len(called)] or changes)

    def test_move_to_this_host_that_a_later_one_followed_is_over(self) -> None:
        self.move.source_compute, self.move.dest_compute, self.server.host = "two", HOST, "two"
        later = objects.Migration(id=8, uuid=OTHER, instance_uuid=records.UUID, source_compute="two",
                                  dest_compute=None, status="pre-migrating", migration_type="resize")
        with mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[later, self.move]):
            self.recover()
        self.assertEqual(("failed", "pre-migrating"), (self.move.status, later.status))

    def test_killed_before_it_claimed_a_second_move_the_first_goes_on(self) -> None:
        """The server's old host had cleared the first one's task state at a start, so nova permitted the second."""
        self.move.source_compute, self.move.dest_compute, self.move.status = "two", HOST, "post-migrating"
        self.server.task_state = task_states.RESIZE_MIGRATED
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id)
        self.server.old_flavor = None
        later = objects.Migration(id=8, uuid=OTHER, instance_uuid=records.UUID, source_compute="two",
                                  dest_compute=None, status="pre-migrating", migration_type="resize")
        later.save = mock.Mock()
        actions = [SimpleNamespace(id=number, action=instance_actions.MIGRATE, user_id="tenant",
                                   request_id=f"req-{number}") for number in (2, 1)]
        events = {2: [event("prep_resize", HOST, None)],
                  1: [event("prep_resize", HOST, "Success"), event("resize_instance", "two", "Success")]}
        requests = mock.Mock()
        outcome = self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.moverecovery.record_outcome")).mock
        with (mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[later, self.move]),
              mock.patch.object(objects.InstanceActionList, "get_by_instance_uuid", side_effect=[actions] * 9),
              mock.patch.object(objects.InstanceActionEventList, "get_by_action",
                                side_effect=lambda _, number: events[number])):
            self.recovery(requests).recover(HOST, [self.server])
            self.assertEqual(("post-migrating", "failed", task_states.RESIZE_MIGRATED),
                             (self.move.status, later.status, self.server.task_state))
            self.assertEqual("req-2", outcome.call_args.args[2].action.request_id)
            requests.finish_resize.assert_not_called()  # it may be in the queue
            self.deferred.minutes_pass()
        self.assertIs(self.move, requests.finish_resize.call_args.args[2])

    def test_move_that_another_one_has_overtaken_is_dropped(self) -> None:
        """A request for a move that had failed came late, and nova claimed for that while it made another one."""
        self.move.dest_compute, self.server.task_state = HOST, None
        for status, made, called in (("post-migrating", 8, True), ("post-migrating", self.move.id, False),
                                     ("finished", self.move.id, False), ("confirming", 8, False)):
            self.move.status = status
            self.server.migration_context = objects.MigrationContext(migration_id=made)
            self.placement.reset_mock()
            with self.subTest(status, made=made):
                self.recover(self.server)
                self.assertEqual("failed" if called else status, self.move.status)
                self.assertEqual([mock.call(mock.ANY, MOVE, records.UUID)] if called else [],
                                 self.placement.move_allocations.call_args_list)

    def test_evacuation_whose_server_has_come_back_is_completed_before_nova_removes_it(self) -> None:
        """Nova completes it at the host's start, which may come before its end: then it is done once more."""
        recovery = self.recovery(mock.Mock())
        self.move.migration_type, self.move.status = "evacuation", "done"
        recovery.complete_evacuations(HOST, [])
        self.assertEqual("done", self.move.status)
        recovery.complete_evacuations(HOST, [self.server])
        self.assertEqual("completed", self.move.status)
        self.move.save.assert_called_once_with()

    def test_evacuation_whose_server_is_on_its_way_back_is_completed_before_nova_removes_what_arrived(self) -> None:
        recovery = self.recovery(mock.Mock())
        self.move.migration_type, self.move.status = "evacuation", "done"
        later = objects.Migration(id=8, instance_uuid=records.UUID, dest_compute="two")
        with mock.patch.object(objects.MigrationList, "get_by_filters", side_effect=lambda context, filters: [
                self.move] if "status" in filters else [self.move, later]):
            recovery.complete_evacuations(HOST, [])
            self.assertEqual("done", self.move.status)
            later.dest_compute = HOST
            recovery.complete_evacuations(HOST, [])
        self.assertEqual("completed", self.move.status)

    def test_unclaimed_move_of_a_server_that_was_evacuated_is_dropped(self) -> None:
        """The request was lost on its way to the new host, and nova evacuates servers in any task state."""
        evacuation = objects.Migration(id=8, uuid=OTHER, instance_uuid=records.UUID, source_compute=HOST,
                                       dest_compute="two", status="completed", migration_type="evacuation")
        for host, status in ((HOST, "pre-migrating"), (None, "pre-migrating"), ("two", "failed")):
            self.server.host, self.server.task_state = host, None
            with (self.subTest(host),
                  mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[evacuation, self.move])):
                self.recover()
                self.assertEqual(status, self.move.status)
        self.assertIn(mock.call(mock.ANY, MOVE, consumer_type="migration", force=True),
                      self.placement.delete_allocation_for_instance.call_args_list)
        self.placement.move_allocations.assert_not_called()

    def test_server_that_was_evacuated_to_a_third_host_has_nothing_on_the_new_one(self) -> None:
        """Nova's scheduler adds what it allocates to what the server has."""
        self.move.dest_compute = "two"
        freed = self.placement.remove_provider_tree_from_instance_allocation
        evacuation = objects.Migration(id=8, uuid=OTHER, instance_uuid=records.UUID, source_compute=HOST,
                                       migration_type="evacuation")
        for host, status, task_state, expected in (
                ("three", "done", None, True), ("two", "done", None, False),
                ("three", "done", task_states.RESIZE_PREP, False)):
            self.server.host, self.server.task_state = host, task_state
            evacuation.status, evacuation.dest_compute = status, host
            for before in ("pre-migrating", "migrating"):
                self.move.status = before
                freed.reset_mock()
                with (self.subTest(host, before=before, task_state=task_state), mock.patch.object(
                        objects.MigrationList, "get_by_filters", return_value=[evacuation, self.move])):
                    self.recover()
                    self.assertEqual([mock.call(mock.ANY, records.UUID, NODE)] if expected else [],
                                     freed.call_args_list)

    def test_unclaimed_move_of_a_server_whose_evacuation_failed_is_dropped(self) -> None:
        evacuation = objects.Migration(id=8, uuid=OTHER, instance_uuid=records.UUID, source_compute=HOST,
                                       dest_compute="two", status="failed", migration_type="evacuation")
        self.server.task_state = None
        with mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[evacuation, self.move]):
            self.recover(self.server)
        self.placement.move_allocations.assert_called_once_with(mock.ANY, MOVE, records.UUID)
        self.assertEqual("failed", self.move.status)

    def test_task_state_of_a_server_that_leaves_is_kept(self) -> None:
        """Its evacuation was refused, which is its latest action."""
        self.server.task_state, self.move.migration_type, self.move.status = (
            task_states.MIGRATING, "evacuation", "failed")
        with mock.patch("nova_lxd_ext.server.lostrequests.of", return_value=Lost(
                SimpleNamespace(action=instance_actions.EVACUATE), frozenset(), frozenset({"rebuild_instance"}),
                frozenset({"rebuild_instance"}), frozenset({"rebuild_instance"}))):
            for host, after in ((HOST, task_states.MIGRATING), ("three", None)):
                self.move.source_compute = host
                self.recover()
                self.assertEqual(after, self.server.task_state)

    def freed(self) -> list[str]:
        self.placement.delete_allocation_for_instance.reset_mock()
        self.recover()
        return [call.args[1] for call in self.placement.delete_allocation_for_instance.call_args_list]

    def test_allocations_of_move_of_deleted_server_are_freed(self) -> None:
        self.assertEqual([], self.freed())
        self.server.deleted = True
        self.assertEqual([MOVE], self.freed())

    def test_allocation_of_a_failed_move_is_its_servers(self) -> None:
        """Placement was away when nova undid it, or nova-compute was killed before it gave the allocation back."""
        self.server.task_state = None
        self.placement.get_allocs_for_consumer.return_value = {"allocations": {"the other host's": {}}}
        for kind in ("live-migration", "migration", "resize"):
            self.move.migration_type, self.move.status = kind, "error"
            self.placement.move_allocations.reset_mock()
            with self.subTest(kind):
                self.recover(self.server)
                self.placement.move_allocations.assert_called_once_with(mock.ANY, MOVE, records.UUID)
                self.placement.delete_allocation_for_instance.assert_not_called()

    def test_server_whose_evacuation_failed_has_nothing_here(self) -> None:
        """The start of its own host has cleared the task state since, and nova-compute was killed here."""
        self.move = objects.Migration(id=7, uuid=MOVE, instance_uuid=records.UUID, source_compute="two",
                                      dest_compute=HOST, status="failed", migration_type="evacuation")
        self.server.host, self.server.vm_state, self.server.task_state = "two", vm_states.ERROR, None
        with mock.patch("nova_lxd_ext.server.lostrequests.of", return_value=Lost(
                SimpleNamespace(action=instance_actions.EVACUATE, user_id="tenant", request_id="req-1"),
                frozenset({"rebuild_instance"}), frozenset(), frozenset())):
            self.recover()
        self.placement.remove_provider_tree_from_instance_allocation.assert_called_once_with(
            mock.ANY, records.UUID, NODE)

    def test_move_that_was_overtaken_while_this_host_prepared_it_is_dropped(self) -> None:
        """The allocation in Placement and the new flavor are those of the other resize."""
        self.move.source_compute, self.move.dest_compute = "two", HOST
        self.server.host, self.server.vm_state, self.server.task_state = "two", vm_states.RESIZED, None
        self.server.new_flavor = self.server.flavor
        self.server.migration_context = objects.MigrationContext(migration_id=self.move.id + 1)
        answering, self.placement = self.placement, unreachable_placement()
        self.recover()
        self.assertEqual("pre-migrating", self.move.status)
        self.placement = answering
        self.recover()
        self.assertEqual("failed", self.move.status)
        self.assertIn(mock.call(mock.ANY, MOVE, consumer_type="migration", force=True),
                      self.placement.delete_allocation_for_instance.call_args_list)
        self.placement.move_allocations.assert_not_called()
        self.assertIsNotNone(self.server.new_flavor)

    def test_allocations_without_evidence_stay(self) -> None:
        """Nova may have moved the records of a server to another table, or not have made them yet."""
        with mock.patch.object(objects.Instance, "get_by_uuid",
                               side_effect=exception.InstanceNotFound(instance_id=records.UUID)):
            self.assertEqual([], self.freed())


def event(method: str, host: str, result: str | None) -> SimpleNamespace:
    return SimpleNamespace(event=f"compute_{method}", host=host, finish_time=result, result=result)
