# SPDX-License-Identifier: Apache-2.0
"""Read the mark before a block of commands: how each is run, by what it is tested, or why neither."""

import ast
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.fakehost.description import HOSTS
from tests.manual import programs, shell
from tests.manual.pages import ROOT, Block, Command, Mark
from tools.oned import scenarios

FEWEST_WORDS = 4  # of a reason
REPLACED = re.compile(r"s(?P<by>[/|])(?P<old>.+?)(?P=by)(?P<new>.*)(?P=by)$")
BEFORE = re.compile(r"\$ (.+)$")
NOT_RUN = re.compile(r"not run: (?P<start>.+?): (?P<reason>.+)$")
STATUS = re.compile(r"status (?P<status>\d+): (?P<start>.+)$")
# Where the programs below tools/ have their code.
SOURCES = {"tools/demo": ("tools/showcase", "tools/cloud"), "tools/opennebula": ("tools/oned",),
           "tools/devstack": ("tools/devstackrun", "devstack"), "tools/tempest": ("tools/tempestrun", "tools/cloud")}
# The words behind these select a command's action; a test may call a library instead of the client.
VERBS = {"add", "create", "delete", "remove", "set", "show"}
CLIENTS = re.compile(r"(openstack|apt|pip|glance|nova-manage|lxc|docker|one[a-z]+|lxdone.*|onedock.*)$")
WORD = re.compile(r"[a-z][a-z-]*$")
IMPORTED = re.compile(r"^(?:from|import) ((?:tests|tools)[.\w]*)(?: import (.*))?", re.M)


class BadMark(Exception):
    """A mark that says nothing, or nothing true."""


@dataclasses.dataclass
class Details:
    """:ivar replaced: what stands in the page, and what is run and expected instead
    :ivar before: commands that are run before those of the block
    :ivar not_run: beginnings of commands that are left out, and why
    :ivar status: beginnings of commands, and their exit status where it is not 0
    """

    replaced: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    before: list[str] = dataclasses.field(default_factory=list)
    not_run: dict[str, str] = dataclasses.field(default_factory=dict)
    status: dict[str, int] = dataclasses.field(default_factory=dict)

    def is_run(self, command: Command) -> bool:
        return not command.text.startswith(tuple(self.not_run))

    def expected_status(self, command: Command) -> int:
        return next((status for start, status in self.status.items() if command.text.startswith(start)), 0)

    def replace(self, text: str) -> str:
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text


def details(mark: Mark) -> Details:
    """:raises BadMark: a line that is none of a mark's"""
    found = Details()
    for line in mark.details:
        if said := REPLACED.match(line):
            found.replaced.append((said["old"], said["new"]))
        elif said := BEFORE.match(line):
            found.before.append(said[1])
        elif said := NOT_RUN.match(line):
            found.not_run[said["start"]] = _reason(said["reason"])
        elif said := STATUS.match(line):
            found.status[said["start"]] = int(said["status"])
        else:
            raise BadMark(f"is no line of a mark: {line}")
    return found


def check(block: Block) -> None:
    """Check that a block's mark is there and true.

    :raises BadMark: what is wrong
    """
    mark, said = block.mark, details(block.mark)
    _check_details(block, said)
    match mark.kind:
        case "run":
            if mark.value not in environments():
                raise BadMark(f"{mark.value} is none of {', '.join(environments())}")
        case "tested by":
            _check_tested(mark.value, filter(said.is_run, block.commands))
        case "not run":
            _reason(mark.value)
        case _:
            raise BadMark("there is no mark before the block: see HACKING.md, Mark a command")


def _check_details(block: Block, said: Details) -> None:
    text = "\n".join(line for command in block.commands for line in (command.text, *command.output))
    for start in (*said.not_run, *said.status):
        if not any(command.text.startswith(start) for command in block.commands):
            raise BadMark(f"no command of the block begins with: {start}")
    for old, _ in said.replaced:
        if old not in text:
            raise BadMark(f"is not in the block: {old}")


def _check_tested(value: str, commands: Iterable[Command]) -> None:
    text = "\n".join(source for name in value.split(", ") for source in sources(name))
    for command in commands:
        for word in _named(command):
            if not re.search(rf"(?<![A-Za-z]){word.replace('-', '[-_]')}(?![A-Za-z])", text):
                raise BadMark(f"{value} has nothing of {word!r}: {command.text}")


def environments() -> tuple[str, ...]:
    """Return where commands can be run: the emulated hosts."""
    return tuple(sorted(path.stem for path in HOSTS.glob("*.yaml")))


def sources(name: str) -> Iterator[str]:
    """Yield the text of a test or tool, and of what it uses.

    :param name: ``tests.package.module.Class.test``, or a tool with its words; a scenario of ``tools/opennebula`` is
        named behind it
    :raises BadMark: there is none of that name
    """
    tool, *words = name.split()
    if tool in SOURCES:
        try:
            if tool == "tools/opennebula":
                scenarios.chosen(tuple(words))
            else:
                programs.check(name.split())
        except programs.Incomplete:
            pass  # only the name
        except (ValueError, programs.Wrong) as error:
            raise BadMark(f"{name}: {error}") from error
        yield (ROOT / tool).read_text(encoding="utf-8")
        yield from _below(*SOURCES[tool])
    else:
        yield from _test(name)


@functools.cache
def _below(*directories: str) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for directory in directories for path in (ROOT / directory).rglob("*")
                 if path.is_file() and path.suffix in (".py", ".sh", ""))


def _test(name: str) -> Iterator[str]:
    parts = name.split(".")
    path, rest = next(((path, parts[count:]) for count in range(len(parts), 0, -1)
                       if (path := ROOT.joinpath(*parts[:count]).with_suffix(".py")).is_file()), (None, []))
    if path is None or not rest or not parts[-1].startswith("test_"):
        raise BadMark(f"{name} is no test: tests.MODULE.CLASS.test_NAME, or one of {', '.join(SOURCES)}")
    within: ast.AST | None = ast.parse(path.read_text(encoding="utf-8"))
    for part in rest:
        within = next((node for node in ast.iter_child_nodes(within)
                       if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part), None)
        if within is None:
            raise BadMark(f"{name}: there is no {part} in {path.relative_to(ROOT)}")
    yield from _with_imports(path, set())


def _with_imports(path: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the text of a file of tests or tools, and of those that it imports."""
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    yield text
    for module, names in IMPORTED.findall(text):
        for imported in (module, *(f"{module}.{name.strip()}" for name in names.split(","))):
            helper = ROOT.joinpath(*imported.split(".")).with_suffix(".py")
            if helper not in seen and helper.is_file():
                yield from _with_imports(helper, seen)


def _named(command: Command) -> Iterator[str]:
    """Yield each program that is this project's or a cloud's, and the words before the first option or name."""
    for path, *rest in shell.commands(command.text):
        program = Path(path).name
        if not programs.known(path) and not CLIENTS.match(program):
            continue
        if program != "openstack":
            yield program
        limit = 3 if program == "openstack" else 1
        yield from (word for word in itertools.takewhile(WORD.match, rest[:limit]) if word not in VERBS)


def _reason(text: str) -> str:
    if len(text.split()) < FEWEST_WORDS:
        raise BadMark(f"is no reason in words: {text}")
    return text
