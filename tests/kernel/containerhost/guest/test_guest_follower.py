# SPDX-License-Identifier: Apache-2.0
"""Programs that follow their resources: the command ``containerhost-guest follow``."""

import os
import subprocess
import sys
from pathlib import Path

from containerhost.engines.spec import Cpu
from containerhost.guest import guest, resources
from tests.commands import ROOT
from tests.unit.containerhost.guest.test_guest_follower import ONE, TWO, Directory
from tests.unit.containerhost.guest.test_guestnotice import told
from tests.waiting import await_that

# Notes its threads, and ends itself at the second start.
JOB = """trap 'echo asked to end >> "$0"; exit 0' TERM
grep -qs '^[0-9]' "$0"; again=$?
echo $OMP_NUM_THREADS >> "$0"; [ $again != 0 ] || exit 7
sleep 60 & wait"""

# Gets the signal as soon as its command runs.
ENDED_AT_START = """
import os, signal, subprocess, sys
from containerhost.guest import guest
start = subprocess.Popen
def started(*words, **options):
    job = start(*words, **options)
    print(job.pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return job
guest.subprocess.Popen = started
sys.exit(guest.follow(["sleep", "60"], sys.argv[1]))
"""


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

    def test_command_does_not_run_while_a_stop_is_announced(self) -> None:
        notes = self.directory / "notes"
        self.write(TWO)
        follow = subprocess.Popen(self.command("sh", "-c", JOB, str(notes)))
        self.addCleanup(follow.wait, 60)
        self.addCleanup(follow.terminate)
        await_that(lambda: notes.exists() and notes.read_text(), "the command runs")
        self.write(resources.announcing(TWO, resources.stopping(TWO), 1))
        await_that(lambda: self.acknowledged() == 2, "it has ended")
        self.assertEqual("asked to end", notes.read_text().split("\n")[-2])
        self.write(TWO)
        self.assertEqual(7, follow.wait(60), "started again when the stop does not come about")

    def test_command_ends_with_its_follower(self) -> None:
        notes = self.directory / "notes"
        self.write(ONE)
        follow = subprocess.Popen(self.command("sh", "-c", JOB, str(notes)))
        await_that(lambda: notes.exists() and notes.read_text(), "the command runs")
        follow.terminate()
        self.assertEqual(128 + 15, follow.wait(60))
        self.assertEqual(["1", "asked to end", ""], notes.read_text().split("\n"))

    def test_command_ends_with_a_follower_that_has_just_started_it(self) -> None:
        self.write(ONE)
        done = subprocess.run([sys.executable, "-c", ENDED_AT_START, str(self.directory)], stdout=subprocess.PIPE,
                              text=True, timeout=60, check=False, cwd=ROOT)
        self.assertEqual(128 + 15, done.returncode)
        self.assertRaises(ProcessLookupError, os.kill, int(done.stdout), 0)

    def test_mpi_launchers_are_refused_with_the_reason(self) -> None:
        self.write(ONE)
        for launcher in ("mpirun", "/usr/bin/mpiexec.openmpi", "srun"):
            done = subprocess.run(self.command(launcher, "-np", "2", "x"), capture_output=True, text=True, check=False)
            self.assertEqual(2, done.returncode)
            self.assertIn(f"{Path(launcher).name}: an MPI program keeps the ranks", done.stderr)
        self.assertIsNone(self.acknowledged())
