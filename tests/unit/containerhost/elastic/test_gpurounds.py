# SPDX-License-Identifier: Apache-2.0
"""Let the engine or the host fail while a GPU is taken or given: no step is lost, and the round goes on."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation
from containerhost.elastic.changes import BACK_OFF, Changes
from containerhost.elastic.gpuplan import GpuMember, Gpus
from containerhost.elastic.gpurounds import WELL_TIME, GpuRounds
from containerhost.elastic.state import StateFile
from containerhost.guest import resources
from containerhost.inventory.scan import Inventory
from containerhost.linux.sysfs import Host
from tests.unit.containerhost.elastic.test_gpus import A, B, gpu, member, records

KEY = "lxd/c1"


class Engine:
    """An engine of which a test says what fails.

    :ivar error: what the next call raises
    :ivar asked: calls that came to their end
    """

    name = "lxd"

    def __init__(self) -> None:
        self.store = self
        self.allocations: Mapping[str, Allocation] = records(a=State.ATTACHED, b=State.ATTACHED)
        self.devices = [gpu(A, "hung"), gpu(B)]
        self.error: Exception | None = None
        self.begins = False
        self.asked: list[str] = []

    def view(self) -> Any:
        return types.SimpleNamespace(inventory=Inventory(self.devices))

    def records(self) -> Mapping[str, Allocation]:
        if isinstance(self.error, OSError):
            raise self.error
        return self.allocations

    def take(self, member: GpuMember, gpus: Gpus, devices: Any, begin: Callable[[], None], view: Any) -> str:
        if self.begins:
            begin()
        self._fail("take")
        self.allocations = records(a=State.DETACHED, b=State.ATTACHED)
        return resources.exchanged(member.document or "", devices, (), {})

    def give(self, member: GpuMember, gpus: Gpus, more: Any, view: Any) -> str:
        self._fail("give")
        self.allocations = records(a=State.ATTACHED, b=State.ATTACHED)
        return member.document or ""

    def _fail(self, what: str) -> None:
        if self.error:
            raise self.error
        self.asked.append(what)


class Notice:
    """A guest that listens and never acknowledges."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.listens = True

    def begin(self, name: str, before: str, after: str, deadline: float) -> int | None:
        return 2 if self.listens else None

    def acknowledged(self, name: str) -> int:
        return 0

    def notify(self, name: str, document: str) -> bool:
        self.told.append(document)
        return True


class RoundsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = 1000.0
        self.engine, self.notice = Engine(), Notice()
        self.install()

    def install(self) -> None:
        self.file = StateFile(Path(self.useFixture(fixtures.TempDir()).path, "state.json"))
        self.start()

    def start(self) -> None:
        self.changes = Changes({"lxd": self.notice}, 10.0, self.file.path.parent, self.file, Host("/"),
                               lambda: self.now, lambda: self.now)
        self.rounds = GpuRounds({"lxd": self.engine}, self.changes, lambda: self.now)

    def round(self, seconds: float = 1.0, of: GpuMember | None = None) -> GpuMember:
        self.now += seconds
        (after,) = self.rounds.round([of or member(1, A, B)])
        return after

    def announced(self) -> None:
        self.round()
        self.assertEqual((A,), self.changes.steps[KEY].devices)


class TakeTest(RoundsTest):
    def test_one_that_changed_is_looked_at_again_at_once(self) -> None:
        for error in (errors.EngineConflict("changed"), errors.EngineNotFound("c1")):
            with self.subTest(type(error).__name__):
                self.announced()
                self.engine.error = error
                self.assertEqual(member(1, A, B), self.round(20))
                self.assertEqual({}, self.changes.steps)
                self.engine.error = None

    def test_one_whose_engine_is_busy_keeps_its_step(self) -> None:
        for error in (errors.EngineBusy("at work"), errors.DeviceBusy("at work")):
            self.announced()
            self.engine.error = error
            self.round(20)
            self.assertEqual((A,), self.changes.steps[KEY].devices)
        self.engine.error = None
        self.round()
        self.assertNotIn(KEY, self.changes.steps)
        self.assertEqual("take", self.engine.asked[-1])

    def test_unanswered_request_keeps_its_step_for_a_restarted_service(self) -> None:
        for error in (errors.EngineUnavailable("away"), errors.EngineTimeout("late")):
            with self.subTest(type(error).__name__):
                self.install()
                self.announced()
                self.engine.begins, self.engine.error = True, error
                if isinstance(error, errors.EngineUnavailable):
                    self.assertRaises(errors.EngineUnavailable, self.round, 20)
                else:
                    self.round(20)
                self.start()
                self.assertTrue(self.changes.steps[KEY].applying)
                self.engine.error, self.notice.listens = None, False
                document = resources.parse(self.round().document or "")
                self.assertEqual([B], [each["id"] for each in document["devices"]])
                self.assertEqual({("change", "recovered"): 1}, self.changes.done)
                self.engine.allocations, self.notice.listens = records(a=State.ATTACHED, b=State.ATTACHED), True

    def test_one_in_use_stays_and_the_guest_is_told(self) -> None:
        for error, outcome in ((errors.DeviceInUse("open"), "in use"), (errors.HostActionFailed("no"), "failed"),
                               (OSError("no"), "failed")):
            with self.subTest(outcome):
                self.announced()
                self.engine.error = error
                with fixtures.MockPatchObject(self.engine, "records", return_value=self.engine.allocations):
                    self.round(20)
                self.assertEqual(1, self.changes.done.pop(("change", outcome)))
                self.assertEqual([member(1, A, B).document], self.notice.told[-1:])
                self.engine.error = None
                self.round()
                self.assertEqual({}, self.changes.steps)
                self.now += BACK_OFF

    def test_change_of_a_container_that_is_changed_meanwhile_ends(self) -> None:
        self.announced()
        self.round(of=dataclasses.replace(member(1, A, B), mark="another"))
        self.assertEqual({}, self.changes.steps)

    def test_change_that_is_not_needed_any_more_is_withdrawn(self) -> None:
        self.announced()
        self.engine.devices = [gpu(A), gpu(B)]
        self.round()
        self.assertEqual(({}, {("change", "withdrawn"): 1}), (self.changes.steps, self.changes.done))


class GiveTest(RoundsTest):
    def setUp(self) -> None:
        super().setUp()
        self.engine.devices, self.engine.allocations = [gpu(A), gpu(B)], records(a=State.DETACHED, b=State.ATTACHED)
        self.round(of=member(1, B))
        self.now += WELL_TIME

    def given(self, seconds: float = 1.0) -> bool:
        self.round(seconds, of=member(1, B))
        return self.engine.asked.count("give") > 0

    def test_one_that_changed_gets_it_in_the_next_round(self) -> None:
        for error in (errors.EngineConflict("changed"), errors.EngineNotFound("c1"), errors.DeviceBusy("at work")):
            self.engine.error = error
            self.assertFalse(self.given())
        self.engine.error = None
        self.assertTrue(self.given())

    def test_failure_is_repeated_after_a_while(self) -> None:
        for error in (errors.UnsupportedOnHost("no hot plug"), errors.HostActionFailed("no")):
            self.engine.error = error
            self.assertFalse(self.given(BACK_OFF))
            self.engine.error = None
            self.assertFalse(self.given())
        self.assertEqual(2, self.changes.done["change", "failed"])
        self.assertTrue(self.given(BACK_OFF))

    def test_engine_that_is_away_ends_the_round(self) -> None:
        self.engine.error = errors.EngineUnavailable("away")
        self.assertRaises(errors.EngineUnavailable, self.round, 1, member(1, B))


class RoundTest(RoundsTest):
    def test_records_that_cannot_be_read_change_nothing(self) -> None:
        self.engine.error = OSError("no")
        self.assertEqual(member(1, A, B), self.round())
        self.assertEqual(([], {}), (self.engine.asked, self.changes.steps))
