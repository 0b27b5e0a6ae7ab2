import os
import stat
import subprocess
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import NotSupported
from onedriver.node import context

HOSTILE = {"A": "it's", "B": "$(touch /tmp/x) `y` \\ \"", "C": "two\nlines", "D": "", "E": "''';"}


class ContextTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        self.contexts = context.Contexts(self.state)

    def test_a_shell_reads_exactly_the_values(self) -> None:
        folder = self.contexts.write("one-1", HOSTILE)
        shown = "; ".join(f"printf '%s\\0' \"${key}\"" for key in HOSTILE)
        command = ["sh", "-c", f". {folder / context.FILE}; {shown}"]
        out = subprocess.run(command, capture_output=True, check=True).stdout
        self.assertEqual(list(HOSTILE.values()), out.decode().split("\0")[:-1])

    def test_the_container_may_read_it_and_nobody_else_on_the_host(self) -> None:
        folder = self.contexts.write("one-1", {})
        self.assertEqual([0o700, 0o755, 0o644], [stat.S_IMODE(os.stat(path).st_mode)
                                                 for path in (self.state, folder, folder / context.FILE)])

    def test_written_again_and_removed_twice(self) -> None:
        for value in ("old", "new"):
            folder = self.contexts.write("one-1", {"A": value})
        self.assertEqual([context.FILE], os.listdir(folder))
        self.assertIn("A='new'", (folder / context.FILE).read_text())
        for _ in range(2):
            self.contexts.remove("one-1")
        self.assertEqual([], os.listdir(self.state))

    def test_files_are_refused_before_anything_is_written(self) -> None:
        self.assertRaises(NotSupported, self.contexts.write, "one-1", {"FILES": "/etc/passwd"})
        self.assertFalse(self.state.exists())
