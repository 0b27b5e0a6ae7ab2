# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import testtools

from tests.unit.onedock.test_scripts import ETC


class ScriptsTest(testtools.TestCase):
    def test_command_prints_usage_when_arguments_are_missing(self) -> None:
        done = subprocess.run([sys.executable, "-m", "onedock", "vmm"], env={"PYTHONPATH": str(ETC.parent)},
                              capture_output=True, text=True, check=False)
        self.assertEqual((2, ""), (done.returncode, done.stdout))
        self.assertIn("usage: onedock", done.stderr)
