# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import fixtures
import subunit
import testtools

TALLY = Path(__file__).parents[3] / "tools/tally.py"


class TallyTest(testtools.TestCase):
    def tally(self, *options: str) -> tuple[int, str]:
        """Tally a suite in which one test passed, and one that could not be imported."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        with (directory / "good.subunit").open("wb") as file:
            result = subunit.StreamResultToBytes(file)
            for status in ("inprogress", "success"):
                result.status(test_id="one", test_status=status)
        (directory / "broken.subunit").touch()
        done = subprocess.run([sys.executable, str(TALLY), *options, *map(str, sorted(directory.iterdir()))],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_suite_that_did_not_run_has_failed(self) -> None:
        status, output = self.tally("--whole")
        self.assertEqual(1, status)
        self.assertIn("none of the suite broken ran", output)
        self.assertEqual("1 passed, 1 failed, 0 skipped", output.splitlines()[-1])

    def test_filter_may_leave_a_suite_empty(self) -> None:
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped\n"), self.tally())
