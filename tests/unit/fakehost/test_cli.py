# SPDX-License-Identifier: Apache-2.0
import contextlib
import io

import testtools

from tests.fakehost import cli


class TestArguments(testtools.TestCase):
    def test_the_command_keeps_its_options(self):
        options = cli.parse(["--host", "dgx", "--", "ls", "--host", "x"])
        self.assertEqual(("dgx", ["ls", "--host", "x"]), (options.host, options.command))

    def test_what_cannot_be_meant(self):
        for arguments, word in (
            ([], "no command"),
            (["--name", "lab"], "no command"),
            (["--join", "lab"], "no command"),
            (["--detach"], "--name"),
            (["--name", "lab", "--detach", "--", "ls"], "take no command"),
            (["--stop", "lab", "--", "ls"], "take no command"),
        ):
            output = io.StringIO()
            with contextlib.redirect_stderr(output):
                exited = self.assertRaises(SystemExit, cli.parse, arguments)
            self.assertEqual(2, exited.code)
            self.assertIn(word, output.getvalue())
