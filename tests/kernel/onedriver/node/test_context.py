# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import fixtures
import testtools

from onedriver.node import context

HOSTILE = {"A": "it's", "B": "$(touch /tmp/x) `y` \\ \"", "C": "two\nlines", "D": "", "E": "''';"}


class ContextTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        self.contexts = context.Contexts(self.state)

    def test_a_shell_reads_exactly_the_values(self) -> None:
        directory = self.contexts.write("one-1", HOSTILE)
        shown = "; ".join(f"printf '%s\\0' \"${key}\"" for key in HOSTILE)
        command = ["sh", "-c", f". {directory / context.FILE}; {shown}"]
        out = subprocess.run(command, capture_output=True, check=True).stdout
        self.assertEqual(list(HOSTILE.values()), out.decode().split("\0")[:-1])
