# SPDX-License-Identifier: Apache-2.0
"""Test how the output of elastic jobs is read and judged."""


import testtools

from tools.elasticjobs import image, jobs
from tools.elasticjobs.jobs import LAMMPS, OPENMP, PYTORCH, WORKERS, Progress

THREADS = ["2 threads 100.5 steps/s step 100 loss 0.3606", "1 threads 50.0 steps/s step 150 loss 0.2", "status 0"]
RANKS = ["2 ranks 90.0 steps/s step 80", "2 ranks: steps 0-100", "1 ranks 40.0 steps/s step 140",
         "1 ranks: steps 100-150", "status 0"]


class JobsTest(testtools.TestCase):
    def test_progress_among_other_lines(self) -> None:
        self.assertEqual([Progress(2, 54218, 54218)],
                         jobs.progress(["WARNING: 2 threads", "2 threads 54218 regions/s region 54218"]))
        self.assertEqual([Progress(2, 100.5, 100), Progress(1, 50, 150)], jobs.progress(THREADS))
        self.assertEqual([80, 140], [found.step for found in jobs.progress(RANKS)])

    def test_each_step_once(self) -> None:
        self.assertEqual("", jobs.complaint(PYTORCH, THREADS, 150))
        self.assertEqual("", jobs.complaint(LAMMPS, RANKS, 150))

    def test_steps_that_are_missing_or_lost_or_repeated(self) -> None:
        for program, lines, words in (
                (PYTORCH, [], "not ended"), (PYTORCH, THREADS[:-1], "not ended"),
                (PYTORCH, [*THREADS[:-1], "status 1"], "status 1"), (PYTORCH, THREADS[1:2] + THREADS[:1] + THREADS[2:],
                                                                      "step 100 was done after step 150"),
                (PYTORCH, [THREADS[0], THREADS[-1]], "of 150"), (LAMMPS, RANKS[:2] + RANKS[-1:], "of 150"),
                (LAMMPS, [line.replace("100-150", "120-150") for line in RANKS], "began at step 120"),
                (LAMMPS, [line.replace("100-150", "80-150") for line in RANKS], "began at step 80"),
                (LAMMPS, ["status 0"], "of 150")):
            self.assertIn(words, jobs.complaint(program, lines, 150))

    def test_commands_name_programs_that_are_in_the_image(self) -> None:
        examples = {file.name for file in image.EXAMPLES.iterdir()} | {"openmp"}
        for program in (*jobs.TRADERS, WORKERS):
            for command in (program.rigid(7, 2), program.following(7)):
                (name,) = (word for word in command.split() if word.startswith(f"/{image.PROGRAMS}/"))
                self.assertIn(name.rpartition("/")[2], examples)
                self.assertIn("7", command)
        self.assertIn("OMP_NUM_THREADS=2", OPENMP.rigid(7, 2))
