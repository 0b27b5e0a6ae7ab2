# SPDX-License-Identifier: Apache-2.0
import os
import stat
import sys
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import NotSupported
from onedriver.node import context


class ContextCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        self.contexts = context.Contexts(self.state)


class ContextTest(ContextCase):
    def test_the_container_may_read_it_and_nobody_else_on_the_host(self) -> None:
        directory = self.contexts.write("one-1", {})
        self.assertEqual([0o700, 0o755, 0o644], [stat.S_IMODE(os.stat(path).st_mode)
                                                 for path in (self.state, directory, directory / context.FILE)])

    def test_password_never_readable_by_others_while_written(self) -> None:
        found, watched = [], [True]

        def look(event: str, arguments: tuple[object, ...]) -> None:
            """At every step on the file: one with the password must be its owner's alone."""
            if watched and event in ("os.chmod", "os.chown", "os.rename", "os.truncate"):
                found.extend(oct(path.stat().st_mode) for path in self.state.rglob("*")
                             if path.is_file() and b"secret" in path.read_bytes() and path.stat().st_mode & 0o077)

        sys.addaudithook(look)  # for the life of the process
        self.addCleanup(watched.clear)
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        for _ in range(2):
            directory = self.contexts.write("one-1", {"PASSWORD": "secret"}, (os.getuid(), os.getgid()))
        self.assertEqual([], found)
        self.assertEqual(0o600, stat.S_IMODE((directory / context.FILE).stat().st_mode))

    def test_written_again_and_removed_twice(self) -> None:
        for value in ("old", "new"):
            directory = self.contexts.write("one-1", {"A": value})
        self.assertEqual([context.FILE], os.listdir(directory))
        self.assertIn("A='new'", (directory / context.FILE).read_text())
        for _ in range(2):
            self.contexts.remove("one-1")
        self.assertEqual([], os.listdir(self.state))

    def test_files_are_refused_before_anything_is_written(self) -> None:
        self.assertRaises(NotSupported, self.contexts.write, "one-1", {"FILES": "/etc/passwd"})
        self.assertFalse(self.state.exists())
