# SPDX-License-Identifier: Apache-2.0
"""Test how the output of elastic jobs is read and judged."""

import subprocess
from pathlib import Path

import fixtures
import testtools

from tests.waiting import await_that
from tools.elasticjobs import jobs


class JobsTest(testtools.TestCase):
    def test_a_program_starts_anew_and_its_status_is_the_last_line(self) -> None:
        directory = self.useFixture(fixtures.TempDir()).path
        command = [word.replace(jobs.DIRECTORY, f"{directory}/job") for word in jobs.start("echo it is\\'nt; false")]
        subprocess.run(command, check=True, timeout=60)
        output = Path(directory, "job/out")
        await_that(lambda: output.exists() and jobs.ended(output.read_text().splitlines()), "it ends")
        self.assertEqual(["it is'nt", "status 1"], output.read_text().splitlines())
