# SPDX-License-Identifier: Apache-2.0
import threading
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedriver.monitor import Type
from onedriver.monitorconfig import DIRECTORIES, MonitorConfig
from onedriver.node import commands
from onedriver.node.poll_loop import PollLoop, ProbeFailed


class PollLoopTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.allocations = Path(self.useFixture(fixtures.TempDir()).path)
        self.state = Path(self.useFixture(fixtures.TempDir()).path)
        self.poll_loop = PollLoop(self.directory, ["lxdone", "3", "node1"], b"", self.allocations, self.state)
        self.sent: list[tuple[Type, bool, str]] = []
        for kind in ("host/system", "host/monitor", "host/beacon", "vm/status"):
            self.probe(kind, f"echo {kind}")

    def probe(self, kind: str, text: str) -> None:
        path = self.directory / kind / "probe"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def send(self, *message: object) -> None:
        self.sent.append(message)

    def test_the_first_round(self) -> None:
        self.assertEqual([("SYSTEM_HOST", "host/system"), ("MONITOR_HOST", "host/monitor"), ("STATE_VM", "vm/status"),
                          ("MONITOR_VM", "")], self.poll_loop.first())

    def test_of_the_vms_a_failure_only_warns_and_of_the_host_it_stops_the_start(self) -> None:
        self.probe("vm/monitor", "echo bad >&2; exit 1")
        self.assertEqual(["SYSTEM_HOST", "MONITOR_HOST", "STATE_VM"], [kind for kind, _ in self.poll_loop.first()])
        self.poll_loop.once(Type.MONITOR_VM, self.send)
        self.assertEqual([(Type.MONITOR_VM, False, "probe failed: bad")], self.sent)
        self.probe("host/monitor", "exit 1")
        self.assertRaises(ProbeFailed, self.poll_loop.first)

    def test_nothing_to_say_is_not_sent(self) -> None:
        for kind in (Type.EXEC_VM, Type.SNAPSHOT_VM, Type.MONITOR_VM):
            self.poll_loop.once(kind, self.send)
        self.assertEqual([], self.sent)

    def test_a_front_end_that_is_away_is_tried_again(self) -> None:
        def away(*message: object) -> None:
            self.sent.append(message)
            raise ConnectionRefusedError("away")

        for _ in range(2):
            self.poll_loop.once(Type.STATE_VM, away)
        self.assertEqual([(Type.STATE_VM, True, "vm/status")] * 2, self.sent)

    def test_outcome_of_a_command_is_acknowledged_after_it_was_sent(self) -> None:
        self.probe("vm/execution", 'echo "VM=[ ID=7 ]"; echo "$@" >> "${0%/*}/../../arguments"')
        away = mock.Mock(side_effect=ConnectionRefusedError("away"))
        for send in (away, self.send, away, self.send):
            self.poll_loop.once(Type.EXEC_VM, send)
        token = commands.token("VM=[ ID=7 ]")
        self.assertEqual(["lxdone 3 node1", "lxdone 3 node1", f"lxdone 3 node1 {token}", "lxdone 3 node1"],
                         (self.directory / "arguments").read_text().splitlines())

    def test_probe_of_outcomes_is_started_only_when_a_command_has_ended(self) -> None:
        self.probe("vm/execution", 'cat "${0%/*}/../../outcome" 2> /dev/null; echo >> "${0%/*}/../../runs"')
        runs = self.directory / "runs"
        for _ in range(2):
            self.poll_loop.once(Type.EXEC_VM, self.send)
        self.assertEqual("\n", runs.read_text())
        (self.directory / "outcome").write_text("VM=[ ID=7 ]")
        (self.state / "one-7").mkdir()
        commands.leave(self.state / "one-7", commands.Outcome("DONE", 0, b"", b""))
        for _ in range(2):
            self.poll_loop.once(Type.EXEC_VM, self.send)
        self.assertEqual(("\n" * 3, 2), (runs.read_text(), len(self.sent)))

    def test_rounds_survive_every_error_and_back_off(self) -> None:
        self.useFixture(fixtures.FakeLogger())
        ended = mock.Mock()
        ended.is_set.side_effect = [False] * 4 + [True]
        send = mock.Mock(side_effect=[ValueError("no such key"), RuntimeError("broken"), None, MemoryError()])
        self.poll_loop._repeat(Type.MONITOR_HOST, 5, send, ended)
        self.assertEqual([10, 20, 5, 10], [call.args[0] for call in ended.wait.call_args_list])

    def test_every_directory_has_rounds_of_its_own_until_the_end(self) -> None:
        ended = threading.Event()

        def send(*message: object) -> None:
            self.sent.append(message)
            if len(self.sent) == 4:
                ended.set()

        self.poll_loop.run(MonitorConfig("x", 1, 3, dict.fromkeys(DIRECTORIES, 1000)), send, ended)
        self.assertEqual({"SYSTEM_HOST", "MONITOR_HOST", "BEACON_HOST", "STATE_VM"}, {kind for kind, *_ in self.sent})

    def test_devices_are_reported_when_an_allocation_changes(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("onedriver.node.poll_loop.WATCH_INTERVAL", 0.01))
        ended = threading.Event()
        begun: list[str] = []

        def send(*message: object) -> None:
            self.sent.append(message)
            if len(self.sent) == 4:  # the first round of every directory
                begun.append("record")
                (self.allocations / "0000:17:00.0.json").write_text("{}")
            elif begun:
                ended.set()

        self.poll_loop.run(MonitorConfig("x", 1, 3, dict.fromkeys(DIRECTORIES, 1000)), send, ended)
        self.assertEqual((Type.SYSTEM_HOST, True, "host/system"), self.sent[4])
