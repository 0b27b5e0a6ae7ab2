# SPDX-License-Identifier: Apache-2.0
import configparser
import shutil
import subprocess
from pathlib import Path

import testtools

from containerhost.operator.cli import main

ROOT = Path(__file__).parents[5]
UNIT = ROOT / "etc/systemd/containerhost-vfs.service"


class UnitTest(testtools.TestCase):
    def test_unit_is_one_and_runs_a_command_that_there_is(self) -> None:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(UNIT)
        program, *words = unit["Service"]["ExecStart"].split()
        self.assertEqual("containerhost", Path(program).name)
        self.assertEqual(["vfs", "apply", "/etc/containerhost/vfs.yaml"], words)
        self.assertIn(words[1], main.get_command(None, words[0]).commands)
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(UNIT)], capture_output=True, text=True,
                                  check=False, timeout=60)
            said = [line for line in done.stderr.splitlines() if UNIT.name in line and "is not executable" not in line]
            self.assertEqual([], said)
