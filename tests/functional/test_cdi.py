# SPDX-License-Identifier: Apache-2.0
"""`containerhost cdi --output` on an emulated host, with the rights of its unit."""

import json
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.inventory.scan import scan
from containerhost.operator.runtimes import cdi
from tools.units import confined


class CdiUnitTest(testtools.TestCase):
    def test_capabilities_of_the_unit_are_enough(self) -> None:
        file = Path(self.useFixture(fixtures.TempDir()).path) / "containerhost.json"
        done = subprocess.run((*confined("containerhost-cdi"), Path(sys.executable).with_name("containerhost"), "cdi",
                               "--output", file), capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((0, f"{file}: written\n", ""), (done.returncode, done.stdout, done.stderr))
        self.assertEqual(cdi.specification(scan().devices), json.loads(file.read_text()))
