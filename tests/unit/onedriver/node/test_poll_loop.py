# SPDX-License-Identifier: Apache-2.0
import threading
from pathlib import Path

import fixtures
import testtools

from onedriver.monitor import Type
from onedriver.monitorconfig import DIRECTORIES, MonitorConfig
from onedriver.node.poll_loop import PollLoop, ProbeFailed


class PollLoopTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.allocations = Path(self.useFixture(fixtures.TempDir()).path)
        self.poll_loop = PollLoop(self.directory, ["lxdone", "3", "node1"], b"", self.allocations)
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
