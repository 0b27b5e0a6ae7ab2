# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools


class CommandTest(testtools.TestCase):
    def test_host_without_devices_is_told_and_warnings_of_libraries_are_not(self) -> None:
        empty = self.useFixture(fixtures.TempDir()).path
        command = Path(sys.executable).with_name("containerhost")
        done = subprocess.run([command, "config", "nova", "--root", empty], capture_output=True, text=True, check=True)
        self.assertIn("[pci]", done.stdout)
        self.assertEqual(["This host has no device that servers could be given; `containerhost list` and "
                          "`containerhost doctor` show what it has."], done.stderr.splitlines())
