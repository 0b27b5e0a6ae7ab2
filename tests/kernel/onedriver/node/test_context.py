# SPDX-License-Identifier: Apache-2.0
import subprocess

from onedriver.node import context

HOSTILE = {"A": "it's", "B": "$(touch /tmp/x) `y` \\ \"", "C": "two\nlines", "D": "", "E": "''';"}
from tests.unit.onedriver.node.test_context import ContextCase


class ContextTest(ContextCase):
    def test_a_shell_reads_exactly_the_values(self) -> None:
        directory = self.contexts.write("one-1", HOSTILE)
        shown = "; ".join(f"printf '%s\\0' \"${key}\"" for key in HOSTILE)
        command = ["sh", "-c", f". {directory / context.FILE}; {shown}"]
        out = subprocess.run(command, capture_output=True, check=True).stdout
        self.assertEqual(list(HOSTILE.values()), out.decode().split("\0")[:-1])
