# SPDX-License-Identifier: Apache-2.0
"""Test that containers are made, started, stopped, renamed and deleted, and that what cannot be is told."""

import functools
import os
import signal
import threading
from typing import ClassVar

from containerhost import errors
from containerhost.engines.contract import Status
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import TIMEOUT
from tests.waiting import await_that


@levels.exhaustive(frame.REPEATED, when=frame.INCUS, tests=(
    "test_soft_stop_asks_the_first_program", "test_soft_stop_of_one_that_does_not_answer_says_so_in_time",
    "test_restart_gives_a_new_first_process", "test_delete_works_from_every_state",
    "test_two_deletions_at_once_both_succeed", "test_what_cannot_be_is_told_apart_and_changes_nothing",
    "test_name_of_a_running_container_is_taken_until_it_is_deleted", "test_renamed_container_leaves_its_name_free"))
class Life(frame.DeviceFrame):
    """:cvar last_words: what the first program prints when it is asked to end
    """

    last_words: ClassVar[bytes]

    def test_from_nothing_to_running_and_back(self):
        self.engine.create(self.spec())
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIsNone(self.engine.container("c1").last_used)
        self.assertEqual(b"", self.engine.console_log("c1"))
        self.engine.start("c1")
        (state,) = self.engine.containers()
        self.assertEqual(("c1", Status.RUNNING, {self.label: "of-c1"}), (state.name, state.status, dict(state.labels)))
        self.assertIsNotNone(self.engine.container("c1").last_used)
        self.engine.delete("c1")
        self.assertEqual((), self.engine.containers())
        self.assertEqual([], self.left())

    def test_labels_are_set_and_removed_while_it_runs(self):
        self.running()
        for labels, left in (({"one": "1", "two": "2"}, {"one": "1", "two": "2"}), ({"one": None}, {"two": "2"}),
                             ({"one": None, "two": "3"}, {"two": "3"})):
            self.engine.relabel("c1", labels)
            state = self.engine.container("c1")
            self.assertEqual((Status.RUNNING, left), (state.status, {key: text for key, text in state.labels.items()
                                                                     if key in ("one", "two")}))

    def test_power_calls_may_be_repeated(self):
        self.running()
        for action, status in (
            (lambda: self.engine.start("c1"), Status.RUNNING),
            (lambda: self.engine.freeze("c1"), Status.FROZEN),
            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
            (lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True), Status.STOPPED),
            (lambda: self.engine.start("c1"), Status.RUNNING),
        ):
            action()
            action()
            self.assertEqual(status, self.engine.container("c1").status)

    def test_soft_stop_asks_the_first_program(self):
        for prepare in (lambda: None, lambda: self.engine.freeze("c1")):
            self.running()
            self.up()
            prepare()
            self.engine.stop("c1", timeout=TIMEOUT)
            self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
            await_that(lambda: self.last_words in self.engine.console_log("c1"),  # liblxc writes it after its stop hook
                       lambda: f"{self.last_words!r} in {self.engine.console_log('c1')!r}")
            self.engine.delete("c1")

    def test_soft_stop_of_one_that_does_not_answer_says_so_in_time(self):
        self.running()
        self.up()
        os.kill(self.engine.pid("c1"), signal.SIGSTOP)
        self.addCleanup(self.engine.stop, "c1", timeout=TIMEOUT, force=True)
        error = self.assertRaises(errors.EngineTimeout, self.engine.stop, "c1", timeout=1)
        self.assertIn("within 1 s", str(error))
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_restart_gives_a_new_first_process(self):
        self.running()
        for force in (False, True):
            self.up()
            before = self.engine.metrics("c1").pid
            self.restart(force=force)
            self.assertNotIn(self.engine.metrics("c1").pid, (before, None))

    def test_delete_works_from_every_state(self):
        def frozen() -> None:
            self.running()
            self.engine.freeze("c1")

        for prepare in (lambda: None, lambda: self.engine.create(self.spec()), self.running, frozen):
            prepare()
            for _ in range(2):
                self.engine.delete("c1")
            self.assertFalse(self.engine.exists("c1"))
        self.assertEqual([], self.left())

    def test_two_deletions_at_once_both_succeed(self):
        self.running()
        failures = []

        def delete() -> None:
            try:
                self.engine.delete("c1")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=delete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(([], False), (failures, self.engine.exists("c1")))

    def test_what_cannot_be_is_told_apart_and_changes_nothing(self):
        self.engine.create(self.spec())
        before = self.engine.container("c1")
        engine = self.engine
        for wanted, action, *arguments in (
            (errors.EngineNotFound, engine.start, "c2"),
            (errors.EngineNotFound, engine.container, "c2"),
            (errors.EngineNotFound, engine.console_log, "c2"),
            (errors.EngineNotFound, engine.metrics, "c2"),
            (errors.EngineNotFound, engine.create, self.spec("c2", image="no-such-image")),
            (errors.EngineConflict, engine.create, self.spec()),
            (errors.EngineError, engine.create, self.spec("not/a name")),
            (errors.EngineConflict, engine.verify, "c1", ()),
            (errors.EngineError, functools.partial(engine.execute, timeout=1), "c1", ["true"], b""),
        ):
            self.assertRaises(wanted, action, *arguments)
        self.assertEqual([("c1", before)], [(state.name, self.engine.container("c1")) for state in
                                            self.engine.containers()])

    def test_name_of_a_running_container_is_taken_until_it_is_deleted(self):
        self.running()
        pid = self.engine.pid("c1")
        self.assertRaises(errors.EngineConflict, self.engine.create, self.spec())
        self.assertEqual((Status.RUNNING, pid), (self.engine.container("c1").status, self.engine.pid("c1")))
        for _ in range(2):
            self.engine.delete("c1")
            self.engine.create(self.spec())

    def test_renamed_container_leaves_its_name_free(self):
        self.engine.create(self.spec())
        self.engine.rename("c1", "old")
        self.running()
        self.engine.start("old")
        self.assertEqual({"c1", "old"}, {state.name for state in self.engine.containers()})

    def test_containers_run_on_while_the_daemon_is_restarted_or_killed(self):
        grants = self.acquired("c1", self.requests())
        self.up()
        pid = self.engine.pid("c1")
        for end in (self.daemon.stop, self.daemon.kill):
            end()
            try:
                self.assertRaises(errors.EngineUnavailable, self.engine.containers)
                self.assertRaises(errors.EngineUnavailable, self.engine.delete, "c1")
            finally:
                self.daemon.start()
            self.assertEqual((Status.RUNNING, pid), (self.engine.container("c1").status, self.another().pid("c1")))
            self.engine.verify("c1", grants)
            self.assertEqual((0, "on\n"), self.inside("c1", "echo", "on"))
        self.engine.stop("c1", timeout=TIMEOUT)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_server_describes_itself(self):
        server = self.engine.server()
        kernel = os.uname()
        self.assertEqual((kernel.machine, kernel.release), (server.architectures[0], server.kernel))
        self.assertRegex(server.version, r"[0-9]+\.[0-9]+")
