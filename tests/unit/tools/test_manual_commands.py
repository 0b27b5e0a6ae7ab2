# SPDX-License-Identifier: Apache-2.0
"""Test that every command in the documentation is run by a test or marked, and that its program still takes it."""

import os
import re
from collections.abc import Iterator

import testtools

from tests.manual import marks, pages, programs, shell

# Blocks in which no prompt marks a line as a command.
UNPROMPTED = re.compile(
    r"(?:sudo |# )?(?:\S*/)?(openstack|containerhost|hpcjob|glance|nova-manage|lxc|pip|apt|systemctl|tools/\w+"
    r"|one(?:vm|host|image|template|datastore|vnet)|(?:lxdone|onedock)-install) [a-z-]")
NO_SHELL = {"ini", "python", "c", "yaml", "json"}


def every_block() -> Iterator[pages.Block]:
    for path in pages.pages():
        yield from pages.blocks(path)


class MarksTest(testtools.TestCase):
    def test_every_block_of_commands_has_a_true_mark(self) -> None:
        bad = []
        for block in every_block():
            try:
                marks.check(block)
            except marks.BadMark as error:
                bad.append(f"{block.where}: {error}")
        self.assertEqual("", "\n".join(bad))

    def test_commands_stand_behind_a_prompt(self) -> None:
        bad = []
        for path in pages.pages():
            lines = path.read_text(encoding="utf-8").splitlines()
            for begin, end, language in pages.sections(lines):
                if language != "console" and language not in NO_SHELL:
                    bad += [f"{path.relative_to(pages.ROOT)}:{number + 1}: {lines[number]}"
                            for number in range(begin, end) if UNPROMPTED.match(lines[number].strip())]
        self.assertEqual("", "\n".join(bad))

    def test_bad_marks_are_found(self) -> None:
        for comment, words in (
                ("", "no mark"), ("<!-- any other comment -->", "no mark"), ("<!-- run: moon -->", "moon is none of"),
                ("<!-- not run: too short -->", "no reason"), ("<!-- run: small\nnonsense\n-->", "no line of a mark"),
                ("<!-- run: small\nstatus 1: containerhost vfs\n-->", "no command of the block begins with"),
                ("<!-- run: small\ns/nowhere/x/\n-->", "is not in the block"),
                ("<!-- run: small\nnot run: containerhost: why -->", "no reason"),
                ("<!-- tested by: tests.unit.tools.test_gone.Gone.test_it -->", "is no test"),
                ("<!-- tested by: tests.unit.tools.test_manual.Manual.test_gone -->", "no test_gone"),
                ("<!-- tested by: tools/opennebula lxdone.gone -->", "no scenario"),
                ("<!-- tested by: tools/demo gone -->", "No such command"),
                ("<!-- tested by: tests.unit.tools.test_manual.Sources.test_docstrings_come_first -->",
                 "has nothing of 'list'")):
            (block,) = pages.parse(f"Words:\n\n{comment}\n```console\n$ containerhost list\n```\n", "page.md")
            self.assertIn(words, str(self.assertRaises(marks.BadMark, marks.check, block)))

    def test_good_marks_are_taken(self) -> None:
        for comment in ("<!-- run: small -->", "<!-- run: broken\nnot run: containerhost l: it takes a week\n-->",
                        "<!-- not run: it needs another machine -->",
                        "<!-- tested by: tests.functional.test_package.PackageTest."
                        "test_commands_pages_completion_and_units_are_there_and_nothing_is_left_of_them -->"):
            (block,) = pages.parse(f"Words:\n\n{comment}\n```console\n$ containerhost list\n```\n", "page.md")
            marks.check(block)


class PagesTest(testtools.TestCase):
    def test_indented_blocks_lists_and_output_that_begins_like_a_command(self) -> None:
        first, second, third = pages.parse("""
Words.

<!-- run: small -->

    $ one \\
        more
    said
    # is no command here

1. In a list:

   <!-- run: mixed
   s/a/b/
   -->
   ```console
   # two
   $ three
   ```
   ```ini
   # is no command
   ```

```console
$ four
```
""", "page.md")
        self.assertEqual([("one \\\nmore", ("said", "# is no command here"))],
                         [(command.text, command.output) for command in first.commands])
        self.assertEqual([("two", ()), ("three", ("# is no command",))],
                         [(command.text, command.output) for command in second.commands])
        self.assertEqual([("run", "small", ()), ("run", "mixed", ("s/a/b/",)), ("", "", ())],
                         [(block.mark.kind, block.mark.value, block.mark.details) for block in (first, second, third)])
        self.assertEqual([6, 17, 25], [block.commands[0].line for block in (first, second, third)])


class ProgramsTest(testtools.TestCase):
    def test_every_command_of_a_block_is_taken_by_its_program(self) -> None:
        bad = []
        for block in every_block():
            for command in block.commands:
                bad += [f"{block.page}:{command.line}: {words}" for words in refused(command.text)]
        self.assertEqual("", "\n".join(bad))

    def test_programs_of_the_checkout_are_executable(self) -> None:
        found = {match[1] for block in every_block() for command in block.commands
                 if (match := re.match(r"(?:sudo )?((?:examples|tools)/\S+)", command.text))}
        self.assertIn("examples/drain/drain.py", found)
        self.assertEqual([], sorted(name for name in found if not os.access(pages.ROOT / name, os.X_OK)))

    def test_every_command_in_prose_is_taken_as_far_as_it_goes(self) -> None:
        bad, seen = [], 0
        for path in pages.pages():
            for line, code in pages.inline(path.read_text(encoding="utf-8")):
                try:
                    list(shell.commands(code))
                except ValueError:
                    continue  # no line of the shell
                seen += 1
                bad += [f"{path.relative_to(pages.ROOT)}:{line}: {words}" for words in refused(code, prose=True)]
        self.assertEqual("", "\n".join(bad))
        self.assertGreater(seen, 1000)

    def test_renamed_commands_and_options_are_found(self) -> None:
        for command in ("openstack server create --flavor f --image i --network n --number 4 x",
                        "openstack serfer list", "tools/demo mpii",
                        "openstack image create x --disk-format lxd", "sudo containerhost drain x --reasons y",
                        "ssh node1 containerhost confic nova | sh", "hpcjob start nova job.yaml",
                        "sudo tools/opennebula run --from x", "sudo tools/fakehost --hosts x -- ls", "tools/test lnt",
                        "sudo tools/fakehost -- containerhost lst", "a=$(containerhost topology --png)",
                        "lxdone-install frontend", "containerhost-guest folow",
                        "nova-lxd-ext-status upgrade check --jsn",
                        "sudo .venv/bin/python bench/taskgroups.py --hosts many"):
            self.assertNotEqual([], list(refused(command)), command)


def refused(text: str, prose: bool = False) -> Iterator[str]:
    """Yield what programs refuse of a line.

    :param prose: a command alone, or without all that it needs, is only named there
    """
    for words in shell.commands(text):
        if not programs.known(words[0]) or (prose and len(words) == 1):
            continue
        try:
            programs.check(words)
        except programs.Wrong as error:
            if not (prose and isinstance(error, programs.Incomplete)):
                yield f"{' '.join(words)}: {error}"
