# SPDX-License-Identifier: Apache-2.0
"""Programs that follow their resources: the helper's Follower, and its command "follow"."""

import json
import os
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.engines.spec import Cpu
from containerhost.guest import guest, resources
from tests.unit.containerhost.guest.test_guestnotice import told

ONE, TWO = told(cpu=Cpu(1)), told(cpu=Cpu(2))


class Directory(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.guest.guest.SOCKETS", (str(self.directory / "no-sock"),)))

    def write(self, document: str) -> None:
        new = self.directory / "new"
        new.write_text(document)
        new.replace(self.directory / "resources.json")

    def acknowledged(self) -> int | None:
        file = self.directory / "ack.json"
        return json.loads(file.read_text())["generation"] if file.exists() else None


class FollowerTest(Directory):
    def setUp(self) -> None:
        super().setUp()
        self.applied: list[Any] = []

    def follower(self) -> guest.Follower:
        return guest.Follower(self.applied.append, str(self.directory))

    def test_changes_are_applied_once_and_acknowledged(self) -> None:
        self.write(TWO)
        follower = self.follower()
        self.assertEqual((False, 1), (follower.poll(), self.acknowledged()))
        coming = told(TWO, cpu=Cpu(1))
        self.write(resources.announcing(TWO, coming, 1))
        self.assertEqual((True, False, 2), (follower.poll(), follower.poll(), self.acknowledged()))
        self.write(coming)
        self.assertTrue(follower.poll())
        self.assertEqual([(1, 2), (2, 1), (2, 1)],
                         [(found["generation"], found["cpus"]["count"]) for found in self.applied])

    def test_a_stop_is_announced_with_what_it_has(self) -> None:
        self.write(resources.announcing(TWO, resources.stopping(TWO), 1))
        self.follower()
        self.assertEqual((2, 2, True), tuple(self.applied[-1][key] if key != "cpus" else self.applied[-1][key]["count"]
                                             for key in ("generation", "cpus", "stop")))
        self.assertEqual(["1", ""], [guest.environment(document)["CONTAINERHOST_STOP"] for document in (
            self.applied[-1], resources.parse(TWO) or {})])

    def test_withdrawn_announcement_is_taken_back(self) -> None:
        self.write(resources.announcing(TWO, told(TWO, cpu=Cpu(1)), 1))
        follower = self.follower()
        self.assertEqual(2, self.acknowledged())
        self.write(TWO)
        follower.poll()
        self.assertEqual((1, 2), (self.acknowledged(), self.applied[-1]["cpus"]["count"]))

    def test_failed_change_is_not_acknowledged_and_tried_again(self) -> None:
        self.write(ONE)
        follower = self.follower()
        self.write(told(ONE, cpu=Cpu(2)))
        follower._apply = lambda resources: 1 / 0
        for _ in range(2):
            self.assertRaises(ZeroDivisionError, follower.poll)
            self.assertEqual(1, self.acknowledged())

    def test_program_goes_on_where_nothing_can_be_acknowledged(self) -> None:
        """The file system with the file may be full, as a tenant can make it."""
        (self.directory / "ack.json.new").mkdir()
        self.write(ONE)
        follower = self.follower()
        self.write(told(ONE, cpu=Cpu(2)))
        self.assertEqual((True, None, 2), (follower.poll(), self.acknowledged(), len(self.applied)))
        guest.watch(str(self.directory), [], looks=1)

    def test_allowed_cpus_are_followed_where_the_host_tells_nothing(self) -> None:
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        follower = self.follower()
        self.assertEqual(len(allowed), guest.threads(self.applied[-1]))
        os.sched_setaffinity(0, {min(allowed)})
        self.assertEqual(len(allowed) > 1, follower.poll())
        self.assertEqual((1, None), (guest.threads(self.applied[-1]), self.acknowledged()))

    def test_threads_are_no_more_than_the_cpus(self) -> None:
        self.assertEqual(len(os.sched_getaffinity(0)), guest.threads(json.loads(told(cpu=Cpu(4096)))))

    def test_one_rank_of_several_is_refused(self) -> None:
        for name in guest.RANKS:
            with fixtures.EnvironmentVariable(name, "2"):
                error = self.assertRaises(guest.CannotFollow, self.follower)
                self.assertIn("keeps the ranks", str(error))
        with fixtures.EnvironmentVariable("OMPI_COMM_WORLD_SIZE", "1"):
            self.follower()
