# SPDX-License-Identifier: Apache-2.0
import configparser
import shutil
import subprocess
from pathlib import Path

import testtools

from containerhost.operator.cli import main
from tests.unit.containerhost.operator.test_elasticcli import ROOT

UNIT = ROOT / "etc/systemd/containerhost-elastic.service"


class UnitTest(testtools.TestCase):
    def test_unit_runs_a_command_that_there_is(self) -> None:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(UNIT)
        program, *words = unit["Service"]["ExecStart"].split()
        self.assertEqual(("containerhost", ["elastic", "run"]), (Path(program).name, words[:2]))
        self.assertIn(words[1], main.get_command(None, words[0]).commands)
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(UNIT)], capture_output=True, text=True,
                                  check=False, timeout=60)
            wrong = [line for line in done.stderr.splitlines() if UNIT.name in line and "not executable" not in line]
            self.assertEqual([], wrong)
