# SPDX-License-Identifier: Apache-2.0
"""Take a line of the shell apart into the commands that it runs."""

import re
import shlex
from collections.abc import Iterator, Sequence

SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PYTHON = re.compile(r"(^|/)python3?$")
BETWEEN = {"|", "||", "&", "&&", ";"}
REDIRECTIONS = {">", ">>", "<", "<<"}
# Programs that run the command behind their own words: how many of these there are, beside options.
RUNNERS = {"sudo": 0, "exec": 0, "env": 0, "ssh": 1}
# Options of those that take a word.
WITH_VALUE = {"-u", "-i", "-p"}


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command, those that another one runs too.

    :raises ValueError: a quotation is not closed
    """
    for inner in SUBSTITUTION.findall(line):
        yield from commands(inner)
    whole = SUBSTITUTION.sub("SUBSTITUTED", line.replace("\\\n", " "))
    words = shlex.shlex(whole, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    yield from _split(list(words))


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    found: list[str] = []
    skipped = False  # the target of a redirection
    for word in (*words, ";"):
        if word in BETWEEN:
            yield from _run(found)
            found = []
        elif word in REDIRECTIONS:
            if found and found[-1].isdigit():
                found.pop()
            skipped = True
        elif skipped:
            skipped = False
        else:
            found.append(word)


def _run(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield a command and the one that it runs."""
    while words and ASSIGNMENT.match(words[0]):
        words = words[1:]
    if not words:
        return
    yield list(words)
    if words[0] in RUNNERS:
        rest = list(words[1:])
        while rest and rest[0].startswith("-"):
            del rest[:2 if rest[0] in WITH_VALUE else 1]
        yield from _run(rest[RUNNERS[words[0]]:])
    elif "--" in words:
        yield from _run(words[words.index("--") + 1:])
    elif PYTHON.search(words[0]) and words[1:] and words[1].endswith(".py"):
        yield from _run(words[1:])
    elif words[1:2] == ["exec"]:  # tools/demo exec COMMAND
        yield from _run(words[2:])
