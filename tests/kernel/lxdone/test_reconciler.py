# SPDX-License-Identifier: Apache-2.0
"""A VM that an action has locked, or whose container is gone, delays no other VM; few processes save VMs at once."""

import contextlib
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.contract import ContainerState, Status
from containerhost.errors import EngineNotFound
from lxdone.root.reconciler import Reconciler
from onedriver.node import monitored, names, vmlock
from onedriver.node.names import LABEL
from tests.kernel.onedriver.node.test_vmlock import held


class ReconcilerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path)
        self.calls = mock.MagicMock()
        self.containers = {number: ContainerState(names.name(number), Status.STOPPED, labels={LABEL: str(number)})
                           for number in (1, 2)}
        self.calls.engine.containers.return_value = tuple(self.containers.values())
        self.calls.engine.container.side_effect = lambda name: self.containers[int(name.removeprefix(names.PREFIX))]
        self.calls.contexts.home.side_effect = lambda name: self.state / name
        self.calls.writeback.is_over.return_value = False
        self.calls.consoles.dead.return_value = ()
        self.reconciler = Reconciler(*(getattr(self.calls, part) for part in (
            "engine", "writeback", "disks", "contexts", "consoles", "devices")), self.state, self.calls.forget)

    def saved(self) -> list[str]:
        self.reconciler.reconcile()
        return [call.args[0] for call in self.calls.writeback.save.call_args_list]

    def test_vm_that_an_action_works_on_is_left_to_it(self) -> None:
        with held(self.state, 1):
            self.assertEqual(["one-2"], self.saved())

    def test_container_that_was_removed_meanwhile_keeps_nothing_from_the_others(self) -> None:
        first = self.containers.pop(1)
        self.calls.engine.containers.return_value = (first, *self.containers.values())
        self.calls.engine.container.side_effect = [EngineNotFound("one-1"), self.containers[2]]
        self.assertEqual(["one-2"], self.saved())

    def test_what_vms_left_that_are_over_goes_where_no_action_works_on_them(self) -> None:
        self.calls.writeback.is_over.return_value = True
        with held(self.state, 1):
            self.reconciler.remove_ended()
        self.assertEqual([mock.call(2)], self.calls.forget.call_args_list)

    def test_running_container_of_a_deleted_vm_is_named_and_runs_on(self) -> None:
        self.calls.writeback.is_ended.return_value = True
        self.calls.writeback.is_over.return_value = True
        running = ContainerState("one-3", Status.RUNNING, labels={LABEL: "3"})
        self.calls.engine.containers.return_value = (*self.containers.values(), running)
        self.calls.writeback.is_unsaved.side_effect = lambda home: home.name == "one-1"
        self.assertEqual(["one-1", "one-3"], [state.name for state in self.reconciler.orphans()])
        self.reconciler.reconcile()
        self.assertNotIn(mock.call(3), self.calls.forget.call_args_list)

    def test_few_processes_save_vms_at_once(self) -> None:
        with contextlib.ExitStack() as others:
            for _ in range(vmlock.MOST_WORKERS):
                self.assertTrue(others.enter_context(vmlock.worker(self.state)))
            self.assertEqual([], self.saved())
        self.assertEqual(["one-1", "one-2"], self.saved())

    def test_no_further_process_is_started_for_vms_that_one_works_on(self) -> None:
        def started(over: tuple[int, ...] = ()) -> int:
            self.calls.writeback.is_over.side_effect = lambda home: int(home.name.removeprefix(names.PREFIX)) in over
            with mock.patch.object(monitored, "start_reconciling") as start:
                self.reconciler.monitored()
            return start.call_count

        self.calls.devices.pending.return_value = ()
        self.calls.writeback.is_ended.return_value = False
        self.assertEqual(1, started())
        with vmlock.held(self.state, 1, 0), vmlock.held(self.state, 2, 0):
            self.assertEqual(0, started())
        with contextlib.ExitStack() as others:
            for _ in range(vmlock.MOST_WORKERS):
                others.enter_context(vmlock.worker(self.state))
            self.assertEqual((0, 1), (started(), started(over=(2,))))
