# SPDX-License-Identifier: Apache-2.0
"""Kill the service at each step: the next one finishes the change or starts it again."""

import json
from pathlib import Path
from unittest import mock

import fixtures

from containerhost.elastic.service import Service
from containerhost.engines.contract import Status
from tests.unit.containerhost.elastic.fakes import Killed, World
from tests.unit.containerhost.elastic.servicecase import ServiceCase


class KillTest(ServiceCase):
    """The service is killed at each point of a trade and a new one follows: all come to their sizes."""

    def killed_at(self, point: int, *, listens: bool = False, absent: bool = False) -> bool:
        """Kill the service at a point of a trade.

        :param absent: afterwards the engine lists no container in one round, then one is deleted and none runs
        :returns: whether it was killed: False when the trade has fewer points
        """
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.world = World(self.directory)
        self.engine, self.files = self.world.engine, self.world.files
        self.share_cores()
        if listens:
            self.files.following |= {"a", "b"}
            for name in ("a", "b"):
                self.files.acknowledge(name, 1)
        self.engine.add("c", (2, 4))
        self.engine.kill_at(point)
        try:
            self.world.rounds(self.world.service(), 4)
        except Killed:
            self.engine.hook = lambda what: None
            service = self.world.service()
            if absent:
                self.be_absent(service)
            self.world.rounds(service, 16 if absent else 8)
            return True
        finally:
            self.engine.hook = lambda what: None
        return False

    def test_nobody_loses_anything_at_any_point(self) -> None:
        for listens in (True, False):
            point = 1
            while self.killed_at(point, listens=listens):
                with self.subTest(point=point, listens=listens):
                    self.assert_settled(a=1, b=1, c=2)
                    state = json.loads((self.directory / "state/state.json").read_text())
                    self.assertEqual({}, state["steps"])
                point += 1
            self.assertGreater(point, 10)

    def be_absent(self, service: Service) -> None:
        with mock.patch.object(self.engine, "measured", tuple):
            self.world.rounds(service)
        del self.engine.containers_["c"]
        for status in (Status.STOPPED, Status.RUNNING):
            for each in self.engine.containers_.values():
                each.status = status
            self.world.rounds(service)

    def test_container_that_stops_half_changed_has_what_its_document_says_when_it_runs_again(self) -> None:
        point = 1
        while self.killed_at(point, absent=True):
            with self.subTest(point=point):
                self.assert_settled(a=2, b=2)
            point += 1
        self.assertGreater(point, 10)

    def test_killed_between_announcement_and_reclaim_the_time_of_the_guest_is_not_longer(self) -> None:
        self.share_cores()
        service = self.world.service()
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.engine.add("c", (2, 4))
        self.world.rounds(service)
        until = self.files.document("a")["announced"]["until"]
        self.world.rounds(self.world.service())
        self.assertEqual((2, until), (self.world.counts()["a"], self.files.document("a")["announced"]["until"]))
        self.world.now = until
        self.world.rounds(self.world.service(), 2)
        self.assert_settled(a=1, b=1, c=2)

    def test_guest_has_its_time_after_the_service_was_down_or_the_host_started_again(self) -> None:
        """Killed before anybody was told; told in the boot before."""
        for point, boot in (("write", "1"), ("written", "2")):
            with self.subTest(point):
                self.killed_and_back_later(point, boot)

    def killed_and_back_later(self, point: str, boot: str) -> None:
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.world = World(self.directory)
        self.engine, self.files = self.world.engine, self.world.files
        self.world.write("proc/sys/kernel/random/boot_id", "1\n")
        self.share_cores()
        service = self.world.service()
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.engine.add("c", (2, 4))

        def kill(what: str) -> None:
            if what == point:
                raise Killed

        if point == "written":
            self.world.rounds(service)
        else:
            self.engine.hook = kill
            self.assertRaises(Killed, service.round)
            self.engine.hook = lambda what: None
        self.world.write("proc/sys/kernel/random/boot_id", f"{boot}\n")
        self.world.now += 600
        self.world.rounds(self.world.service(), 2)
        self.assertEqual(2, self.world.counts()["a"])
        self.assertEqual(2, self.files.document("a")["announced"]["generation"])

    def test_killed_in_a_change_that_nobody_needs_any_more(self) -> None:
        """Test that what the engine did is reported before it is undone."""
        self.share_cores()
        self.engine.add("c", (2, 4))

        def kill(what: str) -> None:
            if what == "resized":
                raise Killed

        self.engine.hook = kill
        self.assertRaises(Killed, self.world.service().round)
        self.engine.hook = lambda what: None
        del self.engine.containers_["c"]
        self.world.rounds(self.world.service(), 3)
        self.assert_settled(a=2, b=2)

    def test_state_that_cannot_be_read_loses_nothing(self) -> None:
        self.share_cores()
        for text in ("", "{", "[]", '{"steps": {"fake/a": {}}, "seen": {}}', '{"steps": 3}'):
            (self.directory / "state/state.json").write_text(text)
            self.world.rounds(self.world.service(), 2)
            self.assert_settled(a=2, b=2)
