# SPDX-License-Identifier: Apache-2.0
import datetime
import subprocess
import sys
from pathlib import Path

import fixtures
import subunit
import testtools

TALLY = Path(__file__).parents[3] / "tools/tally.py"
BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class TallyTest(testtools.TestCase):
    def tally(self, *options: str) -> tuple[int, str]:
        """Tally a suite in which one test of 2.5 s passed, and one that could not be imported."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        with (directory / "good.subunit").open("wb") as file:
            result = subunit.StreamResultToBytes(file)
            for status, after in (("inprogress", 0.0), ("success", 2.5)):
                result.status(test_id="one", test_status=status, timestamp=BEGAN + datetime.timedelta(seconds=after))
        (directory / "good.times").write_text("3.21 4.00 1.00\n")
        (directory / "broken.subunit").touch()
        done = subprocess.run([sys.executable, str(TALLY), *options, *map(str, sorted(directory.glob("*.subunit")))],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_suite_that_did_not_run_has_failed(self) -> None:
        status, output = self.tally("--whole")
        self.assertEqual(1, status)
        self.assertIn("none of the suite broken ran", output)
        self.assertEqual("1 passed, 1 failed, 0 skipped", output.splitlines()[-1])

    def test_filter_may_leave_a_suite_empty(self) -> None:
        status, output = self.tally()
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped"), (status, output.splitlines()[-1]))

    def test_slowest_tests_and_the_time_of_each_suite_are_shown(self) -> None:
        _, output = self.tally()
        lines = [" ".join(line.split()) for line in output.splitlines()]
        self.assertIn("2.5 s good: one", lines)
        self.assertIn("3 s 5 s of processors 1 tests good", lines)
