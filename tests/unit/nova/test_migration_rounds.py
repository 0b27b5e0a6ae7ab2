# SPDX-License-Identifier: Apache-2.0
"""Copy a server to another host while it runs, in rounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import nova.conf
from nova import exception, objects

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.resizelock import resizing
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from tests.unit.nova import records
from tests.unit.nova.fakes import GPU_1
from tests.unit.nova.movescase import MOVE, MovesCase


class CopiedWhileItRunsTest(MovesCase):
    def setUp(self) -> None:
        super().setUp()
        self.transfers.offers = True
        self.transfers.rounds = self.round
        self.seen: list[tuple[bool, Status]] = []
        self.durations = [60.0, 10.0, 1.0]  # s, of the rounds

    def round(self, refresh: bool) -> None:
        self.seen.append((refresh, self.one.engine.statuses[self.server.name]))
        self.time += self.durations[min(len(self.seen), len(self.durations)) - 1]

    def assert_rounds(self, running: int) -> None:
        """It was copied this often while it ran, and once when it was stopped."""
        self.assertEqual([(number > 0, Status.RUNNING) for number in range(running)] + [(True, Status.STOPPED)],
                         self.seen)
        self.assertEqual(str(MOVE), self.two.engine.specs[self.server.name].labels[labels.INCOMING])

    def assert_copied_once(self) -> None:
        """It was copied when it was stopped, as a whole."""
        self.leave()
        self.assertEqual(([], set()), (self.seen, self.transfers.with_snapshots))
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_stopped_when_a_round_is_short(self) -> None:
        self.leave()
        self.assert_rounds(3)
        self.arrive(self.there)
        self.assertEqual({GPU_1: self.server.name}, self.two.held())
        self.assertEqual(Status.RUNNING, self.two.engine.statuses[self.server.name])

    def test_snapshots_go_when_the_server_runs_again(self) -> None:
        """Their removal would lengthen the stop; those of the old host go with the container."""
        self.leave()
        self.assertEqual({"sender", "receiver"}, self.transfers.with_snapshots)
        with mock.patch.object(self.transfers, "drop_snapshots", side_effect=lambda name: self.seen.append(
                (False, self.two.engine.statuses[name]))):
            self.arrive(self.there)
        self.assertEqual((False, Status.RUNNING), self.seen[-1])
        self.go_back()
        self.assertNotIn("sender", self.transfers.with_snapshots)

    def test_snapshots_go_although_the_server_does_not_start(self) -> None:
        self.leave()
        self.two.engine.fail["start"] = errors.EngineError("no")
        self.assertRaises(errors.EngineError, self.arrive, self.there)
        self.assertEqual({"sender"}, self.transfers.with_snapshots)

    def test_snapshots_go_when_the_server_cannot_be_stopped(self) -> None:
        with mock.patch.object(self.one.power, "off", side_effect=errors.EngineError("no")):
            self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertNotIn("sender", self.transfers.with_snapshots)
        self.assert_as_it_was()

    def test_server_that_changes_as_fast_as_it_is_copied(self) -> None:
        self.durations = [60.0, 50.0]
        self.leave()
        self.assert_rounds(2)

    def test_guest_that_listens_has_notice_before_the_last_round(self) -> None:
        self.listen(lambda: self.seen.append((True, Status.FROZEN)))
        self.leave()
        running = [(False, Status.RUNNING), (True, Status.RUNNING), (True, Status.RUNNING)]
        self.assertEqual([*running, (True, Status.FROZEN), (True, Status.RUNNING), (True, Status.STOPPED)], self.seen)

    def test_elastic_service_does_not_overwrite_the_notice(self) -> None:
        def overwrite() -> None:
            with resizing(Path(nova.conf.CONF.lxd.owners_dir), self.server.name, 0):
                self.fail("it may write its own")

        self.listen(lambda: self.assertRaises(errors.EngineBusy, overwrite))
        self.leave()

    def test_host_that_cannot_any_more_after_the_notice(self) -> None:
        self.listen(lambda: setattr(self.transfers, "takes", False))
        self.leave()
        self.assertEqual([Status.RUNNING] * 3, [status for _, status in self.seen])
        self.assertIn(self.server.name, self.two.engine.specs)
        self.assertNotIn("sender", self.transfers.with_snapshots)

    def test_notice_is_withdrawn_when_the_server_stays(self) -> None:
        for at in (3, 4):
            with self.subTest(at):
                self.seen.clear()
                self.listen(lambda: None)
                self.fail_round(at)
                self.assertRaises(exception.InstanceFaultRollback, self.leave)
                announced, last = (json.loads(content)["announced"] for content in self.one.files.written[-2:])
                self.assertEqual((True, None), (announced["stop"], last))
                self.assert_as_it_was()

    def test_notice_is_withdrawn_by_the_next_start(self) -> None:
        class Killed(BaseException):
            pass

        def kill() -> None:
            raise Killed
        self.listen(kill)
        self.assertRaises(Killed, self.leave)
        self.one.files.written.clear()
        self.go_back()
        self.assertEqual([None], [json.loads(content)["announced"] for content in self.one.files.written])
        self.assert_as_it_was()

    def test_rounds_are_limited(self) -> None:
        self.durations = [60.0 / 2 ** number for number in range(20)]
        nova.conf.CONF.set_override("migration_rounds", 2, "lxd")
        self.addCleanup(nova.conf.CONF.clear_override, "migration_rounds", "lxd")
        self.leave()
        self.assert_rounds(2)

    def test_stopped_first_where_nothing_else_is_possible(self) -> None:
        with self.subTest("the new host cannot"), mock.patch.object(self.transfers, "takes", False):
            self.assert_copied_once()
        for words, change in (("no round", mock.patch.object(nova.conf.CONF.lxd, "migration_rounds", 0, create=True)),
                              ("this host cannot", mock.patch.object(self.transfers, "offers", False))):
            with self.subTest(words), change:
                self.go_back()
                self.assert_copied_once()
        with self.subTest("it is off"):
            self.go_back()
            self.one.power.off(self.server)
            self.assert_copied_once()

    def test_fault_before_the_stop_leaves_it_running(self) -> None:
        for at in range(2):
            with self.subTest(at):
                self.seen.clear()
                self.one.engine.asked.clear()
                self.fail_round(at)
                self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.assertEqual(at + 1, len(self.seen))
                self.assertNotIn("stop", self.one.engine.asked)
                self.assertNotIn("kill", self.one.engine.asked)
                self.assert_as_it_was()
                self.assertNotIn("sender", self.transfers.with_snapshots)

    def fail_round(self, number: int) -> None:
        def fail(refresh: bool) -> None:
            self.round(refresh)
            if len(self.seen) == number + 1:
                raise errors.StorageFull("no space left")
        self.transfers.rounds = fail

    def test_daemon_that_goes_away_in_a_round_keeps_no_snapshot(self) -> None:
        down = errors.EngineUnavailable("away")
        self.transfers.rounds = lambda refresh: self.one.engine.fail.update(server=down)
        self.transfers.fault = down

        def withdraw(name: str, original: Callable[[str], None] = self.transfers.withdraw) -> None:
            if "server" in self.one.engine.fail:
                raise down
            original(name)
        with (mock.patch.object(self.transfers, "withdraw", withdraw),
              mock.patch("containerhost.linux.poll.time.sleep", lambda _: self.one.engine.fail.clear())):
            self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertNotIn("sender", self.transfers.with_snapshots)
        self.assert_as_it_was()

    def test_snapshot_that_could_not_be_removed_goes_at_the_next_start(self) -> None:
        self.fail_round(0)
        with mock.patch.object(self.transfers, "withdraw"):
            self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertIn("sender", self.transfers.with_snapshots)
        self.here.purge()
        self.assertEqual([{self.server.name}], self.transfers.purged)

    def test_start_keeps_what_a_copy_needs_whose_server_is_sent_yet(self) -> None:
        def restart(refresh: bool) -> None:
            self.round(refresh)
            self.there.purge()
        self.transfers.rounds = restart
        self.leave()
        self.assertEqual([set()] * len(self.seen), self.transfers.purged)

    def test_fault_after_the_stop_starts_it_again(self) -> None:
        self.fail_round(3)
        self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertEqual((True, Status.STOPPED), self.seen[-1])
        self.assert_as_it_was()
        self.assertNotIn("sender", self.transfers.with_snapshots)

    def test_copy_that_went_meanwhile_is_fetched_anew(self) -> None:
        def lose(refresh: bool) -> None:
            self.round(refresh)
            if len(self.seen) == 3:
                self.two.lifecycle.discard(self.server.name, self.server.uuid)
        self.transfers.rounds = lose
        self.leave()
        self.assertEqual([False, True, True, False], [refresh for refresh, _ in self.seen])

    def test_device_that_goes_at_the_destination_while_it_is_copied(self) -> None:
        for at in range(3):
            with self.subTest(at):
                self.seen.clear()
                self.after_round(at, lambda: self.unplug(True))
                error = self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.assertIn(GPU_1, str(error))
                self.assertEqual([Status.RUNNING] * (at + 1), [status for _, status in self.seen])
                self.assert_as_it_was()
                self.assertNotIn("sender", self.transfers.with_snapshots)
                self.unplug(False)

    def after_round(self, number: int, act: Callable[[], object]) -> None:
        def then(refresh: bool) -> None:
            self.round(refresh)
            if len(self.seen) == number + 1:
                act()
        self.transfers.rounds = then

    def test_engine_of_the_destination_fails_at_any_call(self) -> None:
        """It is back when that is undone."""
        self.leave()
        calls = set(self.two.engine.asked)
        self.go_back()
        self.assertLessEqual({"container", "create"}, calls)
        for call in sorted(calls):
            with self.subTest(call):
                self.two.engine.fail[call] = errors.EngineUnavailable("away")
                with mock.patch("containerhost.linux.poll.time.sleep", lambda _: self.two.engine.fail.clear()):
                    self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.two.engine.fail.clear()
                self.there_restarts()
                self.assert_as_it_was()

    def there_restarts(self) -> None:
        """Nova-compute starts and removes the copies of moves that have failed."""
        self.move.status, self.server.deleted, self.server.host = "error", False, "one"
        with (mock.patch.object(objects.Instance, "get_by_uuid", return_value=self.server),
              mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[self.move])):
            self.incoming.purge("two")
        self.move.status = "migrating"

    def test_nova_compute_of_the_destination_does_not_answer_any_more(self) -> None:
        """It may have been killed before or after the requested change."""
        for number in range(4):
            for done in (False, True):
                with self.subTest(number=number, done=done):
                    self.seen.clear()
                    self.die_at(number, done)
                    self.assertRaises(exception.InstanceFaultRollback, self.leave)
                    self.there_restarts()
                    self.assert_as_it_was()
                    self.assertNotIn("sender", self.transfers.with_snapshots)

    def die_at(self, number: int, done: bool) -> None:
        receive, left = self.incoming.receive_changes, [number]

        def answer(*arguments: Any) -> bool:
            left[0] -= 1
            if left[0] >= 0:
                return receive(*arguments)
            if done:
                receive(*arguments)
            raise exception.MigrationError(reason="nova-compute on two did not answer")
        self.useFixture(fixtures.MockPatchObject(self.incoming, "receive_changes", answer))

    def test_deleted_while_it_is_copied(self) -> None:
        for at in range(4):
            with self.subTest(at):
                self.seen.clear()
                self.after_round(at, lambda: self.one.lifecycle.remove(self.server))
                self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.assertEqual(({}, {}, {}, {}), (self.one.engine.specs, self.two.engine.specs, self.one.held(),
                                                    self.two.held()))
                self.transfers.rounds = self.round
                self.one.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, NOTHING,
                                         True)

    def test_container_that_may_be_the_servers_is_not_refreshed(self) -> None:
        self.two.lifecycle.spawn(None, records.instance(), objects.ImageMeta(id=records.IMAGE), (), None, NOTHING,
                                 False)
        error = self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertIn("has a container", str(error))
        self.assertEqual([], self.seen)
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])
