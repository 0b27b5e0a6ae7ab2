# SPDX-License-Identifier: Apache-2.0
"""Test that the commands which run a command in a cloud pass its words on as they are."""

import testtools

from tools.devstackrun import __main__ as devstack
from tools.oned import __main__ as opennebula
from tools.showcase import __main__ as demo
from tools.tempestrun import __main__ as tempest

WORDS = ("lxc", "exec", "one", "--", "ls", "--on", "-l", "--root")


class ExecTest(testtools.TestCase):
    def test_words_of_the_command_are_kept(self) -> None:
        for module in (demo, devstack, opennebula, tempest):
            with module.execute.make_context("exec", [*WORDS]) as context:
                self.assertEqual(WORDS, context.params["command"], module.__name__)
