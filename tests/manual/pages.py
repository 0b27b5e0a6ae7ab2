# SPDX-License-Identifier: Apache-2.0
"""Read the commands of the documentation, and the mark before each block of them (HACKING.md has the marks).

A command stands in a block of the language ``console``, behind ``$`` or, as root, ``#``; or in an indented block,
behind ``$``. What follows it up to the next command is its output. So is a block of another language that begins on the
line after the last one of the commands' block: for output with lines that begin with ``#``.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"\.|build$|.*\.egg-info$")
KINDS = ("run", "tested by", "not run")
FENCE = re.compile(r"( *)```([\w{}-]*)$")
INDENTED = re.compile(r" {4,}(?=\S)")
PROMPT = re.compile(r"([$#]) (.*)$")
MARK = re.compile(r"<!-- *(.*?) *-->$", re.S)
HEAD = re.compile(rf"({'|'.join(KINDS)}): (.+)$")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclasses.dataclass(frozen=True)
class Mark:
    """:ivar kind: one of :data:`KINDS`; empty if the comment is no mark
    :ivar value: where it is run, by what it is tested, or why it is not run
    :ivar details: further lines
    """

    kind: str = ""
    value: str = ""
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Command:
    """:ivar line: its number in the page, from 1
    :ivar text: without the prompt; several lines if it goes on behind a backslash
    """

    line: int
    text: str
    output: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    mark: Mark
    commands: tuple[Command, ...]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.commands[0].line}"


def pages() -> Iterator[Path]:
    """Yield every page of documentation in the repository."""
    for path in sorted(ROOT.rglob("*.md")):
        if not any(HIDDEN.match(part) for part in path.relative_to(ROOT).parts):
            yield path


def blocks(path: Path) -> list[Block]:
    return parse(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))


def parse(text: str, page: str) -> list[Block]:
    lines = text.splitlines()
    found = []
    for begin, end, language in sections(lines):
        body = [line.removeprefix(indent(lines[begin])) for line in lines[begin:end]]
        prompts = "$#" if language == "console" else "$" if language is None else ""
        commands = read(body, begin + 1, prompts)
        if commands and language == "console" and end + 1 < len(lines) and FENCE.match(lines[end + 1]):
            commands[-1] = dataclasses.replace(commands[-1], output=following(lines, end + 1))
        if commands:
            found.append(Block(page, mark(lines[:begin if language is None else begin - 1]), tuple(commands)))
    return found


def sections(lines: Sequence[str]) -> Iterator[tuple[int, int, str | None]]:
    """Yield the first line of each block of code, the line after its last one, and its language: None if indented."""
    number = 0
    while number < len(lines):
        begin = number
        number += 1
        if fence := FENCE.match(lines[begin]):
            while lines[number].strip() != "```":
                number += 1
            yield begin + 1, number, fence[2]
            number += 1
        elif INDENTED.match(lines[begin]) and (begin == 0 or not lines[begin - 1].strip()):
            while number < len(lines) and (INDENTED.match(lines[number]) or not lines[number].strip()):
                number += 1
            while not lines[number - 1].strip():
                number -= 1
            yield begin, number, None


def indent(line: str) -> str:
    return line[:len(line) - len(line.lstrip())]


def following(lines: Sequence[str], fence: int) -> tuple[str, ...]:
    """Return the lines of the block that a fence begins."""
    end = next(number for number in range(fence + 1, len(lines)) if lines[number].strip() == "```")
    return tuple(line.removeprefix(indent(lines[fence])) for line in lines[fence + 1:end])


def read(body: Sequence[str], first: int, prompts: str) -> list[Command]:
    commands: list[Command] = []
    for number, line in enumerate(body, first):
        prompt = PROMPT.match(line)
        if prompt and prompt[1] in prompts:
            commands.append(Command(number, prompt[2]))
        elif commands and commands[-1].text.endswith("\\") and not commands[-1].output:
            commands[-1] = dataclasses.replace(commands[-1], text=f"{commands[-1].text}\n{line.strip()}")
        elif commands:
            commands[-1] = dataclasses.replace(commands[-1], output=(*commands[-1].output, line))
    return commands


def mark(before: Sequence[str]) -> Mark:
    """Return what the comment says that ends the lines before a block."""
    text = "\n".join(before).rstrip()
    found = MARK.match(text[text.rfind("<!--"):]) if text.endswith("-->") else None
    if not found:
        return Mark()
    head, *details = found[1].splitlines()
    said = HEAD.match(head)
    return Mark(said[1], said[2], tuple(line.strip() for line in details)) if said else Mark()


def inline(text: str) -> Iterator[tuple[int, str]]:
    """Yield the code within the prose of a page, with the number of its line."""
    lines = text.splitlines()
    code = {number for begin, end, _ in sections(lines) for number in range(begin, end)}
    for number, line in enumerate(lines):
        if number not in code:
            for found in INLINE.findall(line):
                yield number + 1, found
