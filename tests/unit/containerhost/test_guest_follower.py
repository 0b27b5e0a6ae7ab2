# SPDX-License-Identifier: Apache-2.0
"""Programs that follow their resources: the helper's Follower, and its command "follow"."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.inside import guest, resources
from containerhost.spec import Cpu
from tests.unit.containerhost.test_guestnotice import told
from tests.waiting import await_that

ONE, TWO = told(cpu=Cpu(1)), told(cpu=Cpu(2))
# Notes its threads, and ends itself at the second start.
JOB = """trap 'echo asked to end >> "$0"; exit 0' TERM
grep -qs '^[0-9]' "$0"; again=$?
echo $OMP_NUM_THREADS >> "$0"; [ $again != 0 ] || exit 7
sleep 60 & wait"""


class Directory(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.inside.guest.SOCKETS", (str(self.directory / "no-sock"),)))

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


class FollowTest(Directory):
    def command(self, *words: str) -> list[str]:
        return [sys.executable, guest.__file__, "--directory", str(self.directory), "follow", "--", *words]

    def test_command_is_ended_and_started_again_at_a_change(self) -> None:
        notes = self.directory / "notes"
        before = told(TWO, cpu=Cpu(3))
        self.write(before)
        follow = subprocess.Popen(self.command("sh", "-c", JOB, str(notes)))
        self.addCleanup(follow.wait, 60)
        self.addCleanup(follow.terminate)
        await_that(lambda: self.acknowledged() == 2, "it has begun")
        await_that(notes.exists, "the command runs")
        self.write(resources.announcing(before, told(before, cpu=Cpu(1)), 1))
        self.assertEqual(7, follow.wait(60))
        most = str(min(3, len(os.sched_getaffinity(0))))
        self.assertEqual([most, "asked to end", "1"], notes.read_text().split("\n")[:-1])
        self.assertEqual(3, self.acknowledged())

    def test_command_ends_with_its_follower(self) -> None:
        notes = self.directory / "notes"
        self.write(ONE)
        follow = subprocess.Popen(self.command("sh", "-c", JOB, str(notes)))
        await_that(lambda: notes.exists() and notes.read_text(), "the command runs")
        follow.terminate()
        self.assertEqual(128 + 15, follow.wait(60))
        self.assertEqual(["1", "asked to end", ""], notes.read_text().split("\n"))

    def test_mpi_launchers_are_refused_with_the_reason(self) -> None:
        self.write(ONE)
        for launcher in ("mpirun", "/usr/bin/mpiexec.openmpi", "srun"):
            done = subprocess.run(self.command(launcher, "-np", "2", "x"), capture_output=True, text=True, check=False)
            self.assertEqual(2, done.returncode)
            self.assertIn(f"{Path(launcher).name}: an MPI program keeps the ranks", done.stderr)
        self.assertIsNone(self.acknowledged())
