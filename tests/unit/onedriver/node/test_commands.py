# SPDX-License-Identifier: Apache-2.0
"""Test what of commands needs no container: words, input, and how outcomes are reported."""

import base64
import os
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import BadInput
from onedriver.node import commands
from onedriver.node.commands import Commands, Outcome

DONE = Outcome("DONE", 3, b'say "hi"\n', b"\0err")


class CommandsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path)

    def test_words_are_split_as_a_shell_does_and_nothing_else(self) -> None:
        for text, words in (("echo hi", ["echo", "hi"]), ("sh -c 'a; b $x'", ["sh", "-c", "a; b $x"]),
                            ('x "a b" c\\ d', ["x", "a b", "c d"])):
            self.assertEqual(words, commands.words(text))
        for text in ("", "  ", "echo 'x"):
            self.assertRaises(BadInput, commands.words, text)

    def test_input_is_base64(self) -> None:
        self.assertEqual(b"", commands.decoded(""))
        self.assertEqual(b"x\n", commands.decoded("eAo="))
        for text in ("x", "eAo", "e'Ao="):
            self.assertRaises(BadInput, commands.decoded, text)

    def test_outcome_is_reported_until_two_rounds_have_sent_it(self) -> None:
        (self.state / "one-7").mkdir()
        commands.leave(self.state / "one-7", DONE)
        stdout, stderr = (base64.b64encode(part).decode() for part in (DONE.stdout, DONE.stderr))
        line = f'VM=[ ID="7", STATUS="DONE", RETURN_CODE="3", STDOUT="{stdout}", STDERR="{stderr}" ]'
        for sent in ((), (), (commands.token(line),), ("lxdone", "3")):
            self.assertEqual(line, commands.unreported(self.state, sent))
        self.assertEqual("", commands.unreported(self.state, ["3", commands.token(line)]))
        self.assertEqual([], list((self.state / "one-7").iterdir()))

    def test_outcome_that_nobody_acknowledges_is_not_reported_for_ever(self) -> None:
        (self.state / "one-7").mkdir()
        commands.leave(self.state / "one-7", DONE)
        os.utime(self.state / "one-7" / commands.FILE, (0, 0))
        self.assertIn('ID="7"', commands.unreported(self.state))  # the clock may have jumped before the first report
        self.assertEqual("", commands.unreported(self.state))
        self.assertEqual([], list((self.state / "one-7").iterdir()))

    def test_outcome_that_came_after_a_report_is_not_forgotten_with_it(self) -> None:
        for name in ("one-1", "one-2"):
            (self.state / name).mkdir()
            commands.leave(self.state / name, DONE)
            sent = [commands.token(line) for line in commands.unreported(self.state).splitlines()]
        for _ in range(2):
            left = commands.unreported(self.state, sent[:1])
        self.assertIn('ID="2"', left)
        self.assertNotIn('ID="1"', left)

    def test_outcome_changes_the_directory_that_monitoring_may_see(self) -> None:
        (self.state / "one-7").mkdir()
        os.utime(self.state, (0, 0))
        commands.leave(self.state / "one-7", DONE)
        self.assertNotEqual(0, self.state.stat().st_mtime_ns)

    def test_outcomes_of_many(self) -> None:
        for name in ("one-1", "one-2", "other"):
            (self.state / name).mkdir()
            commands.leave(self.state / name, DONE)
        self.assertEqual(['VM=[ ID="1"', 'VM=[ ID="2"'],
                         [line.partition(",")[0] for line in commands.unreported(self.state).splitlines()])

    def test_of_a_vm_that_has_ended_nothing_is_left(self) -> None:
        commands.leave(self.state / "one-9", DONE)
        self.assertEqual([], list(self.state.iterdir()))

    def test_a_cancelled_one_is_not_told(self) -> None:
        (self.state / "one-7").mkdir()
        commands.leave(self.state / "one-7", DONE)
        commands.unreported(self.state, [commands.token(commands.unreported(self.state))])
        Commands(self.state, "x").cancel("one-7")
        self.assertEqual("", commands.unreported(self.state))
