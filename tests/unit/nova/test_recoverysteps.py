# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import testtools
from nova import objects
from nova.compute import task_states, vm_states

from nova_lxd_ext.server.recoveryrecords import is_under_way
from nova_lxd_ext.server.recoverysteps import Step, elsewhere, here


class MovesTest(testtools.TestCase):
    def test_a_move_that_is_over_is_not_taken_for_the_one_under_way(self) -> None:
        """A host keeps records of servers that have left it since."""
        before, now = objects.Migration(id=1), objects.Migration(id=2)
        for context, under_way in ((SimpleNamespace(migration_id=2), [now]), (None, [])):
            server = SimpleNamespace(migration_context=context)
            self.assertEqual(under_way, [move for move in (before, now) if is_under_way(server, move)])


class HereTest(testtools.TestCase):
    def step(self, state: str | None, *methods: str, vm_state: str = vm_states.ACTIVE, moves: bool = True,
             unbegun: bool = False) -> Step:
        return here(state, vm_state, methods, moves=moves, unbegun=unbegun)

    def test_server_without_lost_request_is_left_alone(self) -> None:
        for state in (None, task_states.RESIZE_PREP, task_states.RESCUING):
            self.assertEqual(Step.NOTHING, self.step(state))

    def test_resize_on_this_host_that_has_not_begun_is_forgotten(self) -> None:
        for state, step in ((None, Step.FORGET_MOVE), (task_states.RESIZE_PREP, Step.FORGET_MOVE),
                            (task_states.RESIZE_MIGRATING, Step.NOTHING)):
            self.assertEqual(step, self.step(state, unbegun=True))

    def test_move_is_undone_before_the_server_left_and_finished_after(self) -> None:
        for state, step in ((task_states.RESIZE_PREP, Step.UNDO_MOVE), (task_states.RESIZE_MIGRATING, Step.UNDO_MOVE),
                            (task_states.RESIZE_MIGRATED, Step.FINISH_MOVE),
                            (task_states.RESIZE_FINISH, Step.FINISH_MOVE),
                            (task_states.RESIZE_REVERTING, Step.REVERT_MOVE)):
            self.assertEqual(step, self.step(state, "resize_instance"))
            self.assertEqual(Step.RECOVER_TASK, self.step(state, "resize_instance", moves=False))

    def test_confirmation_of_move(self) -> None:
        self.assertEqual(Step.CONFIRM_MOVE, self.step(None, "confirm_resize"))
        self.assertEqual(Step.NOTHING, self.step(None, "confirm_resize", moves=False))

    def test_evacuation_is_finished_whose_server_is_here_already(self) -> None:
        """Nova records the end of the move last."""
        for methods, evacuates, step in ((("rebuild_instance",), True, Step.FINISH_EVACUATION),
                                         (("rebuild_instance",), False, Step.NOTHING), ((), True, Step.NOTHING)):
            self.assertEqual(step, here(None, vm_states.ACTIVE, methods, moves=True, unbegun=False,
                                        evacuates=evacuates))

    def test_other_requests(self) -> None:
        self.assertEqual(Step.RECOVER_TASK, self.step(task_states.RESCUING, "rescue_instance"))
        self.assertEqual(Step.LEAVE_HOST, self.step(None, "shelve_offload_instance", moves=False,
                                                    vm_state=vm_states.SHELVED_OFFLOADED))


class ElsewhereTest(testtools.TestCase):
    def step(self, state: str | None, *methods: str, others: tuple[str, ...] = (), evacuates: bool = False,
             leaving: bool = True, vm_state: str = vm_states.ACTIVE) -> Step:
        return elsewhere(state, vm_state, methods, others, evacuates=evacuates, leaving=leaving)

    def test_every_request(self) -> None:
        for step, state, method in (
                (Step.FORGET_MOVE, task_states.RESIZE_PREP, "prep_resize"),
                (Step.FINISH_MOVE, task_states.RESIZE_MIGRATED, "resize_instance"),
                (Step.REVERT_MOVE, task_states.RESIZE_REVERTING, "revert_resize"),
                (Step.REVERT_MOVE, task_states.RESIZE_REVERTING, "finish_revert_resize"),
                (Step.CONFIRM_MOVE, None, "confirm_resize")):
            self.assertEqual(step, self.step(state, method))
            self.assertEqual(Step.NOTHING if state else step, self.step(None, method))

    def test_resize_is_forgotten_whose_task_state_the_old_host_has_cleared(self) -> None:
        """The old host's nova-compute started between the claim on this host and this host's start."""
        self.assertEqual(Step.FORGET_MOVE, self.step(None, "prep_resize", leaving=False))
        self.assertEqual(Step.NOTHING, self.step(None, "prep_resize", leaving=True))
        self.assertEqual(Step.NOTHING, self.step(task_states.REBOOTING, "prep_resize", leaving=False))

    def test_evacuation_is_undone_and_rebuild_is_not(self) -> None:
        self.assertEqual(Step.UNDO_EVACUATION, self.step(task_states.REBUILDING, "rebuild_instance", evacuates=True))
        self.assertEqual(Step.NOTHING, self.step(task_states.REBUILDING, "rebuild_instance"))

    def test_evacuation_whose_server_runs_is_finished(self) -> None:
        """Nova records the end of the rebuild first, and the new host then."""
        self.assertEqual(Step.FINISH_EVACUATION, self.step(None, "rebuild_instance", evacuates=True))
        self.assertEqual(Step.UNDO_EVACUATION, self.step(None, "rebuild_instance", evacuates=True,
                                                         vm_state=vm_states.ERROR))
        self.assertEqual(Step.NOTHING, self.step(None, "rebuild_instance"))

    def test_move_that_the_other_host_finishes_is_left_to_it(self) -> None:
        self.assertEqual(Step.NOTHING, self.step(task_states.RESIZE_MIGRATED, "resize_instance",
                                                 others=("finish_resize",)))
