# SPDX-License-Identifier: Apache-2.0
"""Run the commands of a page in their order, as one session of bash, and compare what they print with the page.

Of the output that a page shows each line must be printed, in that order; other lines may stand between them. ``…`` and
``...`` stand for anything, and blanks for any number of them.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.manual import marks
from tests.manual.pages import Block

# Ends what a command printed: nothing prints this control character.
END = "\x1e"
PRELUDE = r"""
set -o pipefail
run() {
    eval "$3" < /dev/null 2>&1
    status=$?
    printf '\n\036%s %s\n' "$1" "$status"
    [ "$status" = "$2" ] || exit 0
}
"""
OMITTED = re.compile(r"…|\.\.\.")


@dataclasses.dataclass(frozen=True)
class Step:
    """A command as it is run.

    :ivar where: page and line, for messages
    :ivar output: lines that it must print
    """

    where: str
    text: str
    status: int = 0
    output: tuple[str, ...] = ()


def steps(blocks: Iterable[Block], environment: str) -> list[Step]:
    """Return what is run of a page in an environment."""
    found = []
    for block in blocks:
        if (block.mark.kind, block.mark.value) != ("run", environment):
            continue
        said = marks.details(block.mark)
        found += [Step(f"before {block.where}", command) for command in said.before]
        found += [Step(f"{block.page}:{command.line}", said.replace(command.text), said.expected_status(command),
                       tuple(map(said.replace, command.output)))
                  for command in block.commands if said.is_run(command)]
    return found


def complaints(steps: Sequence[Step], run: Callable[[str], str], prelude: str = "") -> list[str]:
    """Run the steps up to the first that fails; what is not as the page says.

    :param run: runs a script of bash and returns what it prints
    :param prelude: begins the script, for instance by functions that the commands call
    """
    lines = [f"run {number} {step.status} {shlex.quote(step.text)}" for number, step in enumerate(steps)]
    printed = run("\n".join((PRELUDE, prelude, *lines, "")))
    found = []
    for step, (output, status) in zip(steps, _results(printed), strict=False):
        if status != step.status:
            return [*found, f"{step.where}: status {status}, not {step.status}: {step.text}\n{output}"]
        found += [f"{step.where}: {step.text}: prints no line {missing!r}:\n{output}"
                  for missing in unprinted(step.output, output)]
    if printed.count(END) < len(steps):
        found.append(f"{steps[printed.count(END)].where}: came to no end: {printed[-2000:]}")
    return found


def unprinted(expected: Iterable[str], output: str) -> Iterator[str]:
    """Yield the first line of the page that is not printed behind those before it."""
    printed = iter(output.splitlines())
    for line in expected:
        if OMITTED.sub("", line).strip() and not any(matches(line, other) for other in printed):
            yield line
            return


def matches(expected: str, line: str) -> bool:
    pattern = ".*".join(r"\s+".join(re.escape(word) for word in re.split(r"\s+", part))
                        for part in OMITTED.split(expected.strip()))
    return re.fullmatch(pattern, line.strip()) is not None


def _results(printed: str) -> Iterator[tuple[str, int]]:
    """Yield the output and the status of each command."""
    *parts, rest = printed.split(END)
    ends = [re.match(r"\d+ (\d+)\n", part) for part in (*parts[1:], rest)]
    for number, (part, end) in enumerate(zip(parts, ends, strict=True)):
        assert end is not None
        before = ends[number - 1] if number else None
        yield part[before.end() if before else 0:].strip("\n"), int(end[1])
