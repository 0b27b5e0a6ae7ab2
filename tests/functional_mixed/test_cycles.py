# SPDX-License-Identifier: Apache-2.0
"""Devices that come and go again and again leave nothing; bench/cycles.py does it ten thousand times."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import testtools

from tests import levels

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "cycles.py"
CYCLES = 30
TIMEOUT = 240  # s


class CyclesTest(testtools.TestCase):
    def begun(self, cycles: int) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, str(PROGRAM), "--json", "--cycles", str(cycles)], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ended(self, process: subprocess.Popen[str]) -> dict:
        output, progress = process.communicate(timeout=TIMEOUT)
        self.addDetail("progress", testtools.content.text_content(progress))
        found = json.loads(output)
        self.assertIsNone(found["error"])
        self.assertEqual({}, found["left"])
        return found

    @levels.exhaustive("each test of devices looks for what is left; this is the benchmark's program")
    def test_one_that_is_told_to_end_tells_of_what_it_did(self) -> None:
        process = self.begun(100_000)
        for line in process.stderr or ():
            self.addDetail("begun", testtools.content.text_content(line))  # the last line, of a process that has ended
            if " cycles in " in line:
                break
        process.send_signal(signal.SIGTERM)
        found = self.ended(process)
        self.assertGreater(found["done"], 0)
        self.assertLess(found["done"], found["asked"])
