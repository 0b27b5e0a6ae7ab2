# SPDX-License-Identifier: Apache-2.0
"""Test the real oned. A scenario is a function that raises where something is not as it should be, and returns what was
seen; what it leaves on the nodes or in oned fails it too."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tools.oned.machine import MachineFailed
from tools.oned.stage import DRIVERS, Driver, Stage

Scenario = Callable[[Stage], str | None]
KNOWN: dict[str, Scenario] = {}


class Result(NamedTuple):
    """:ivar problem: empty if it passed
    :ivar seen: what it says it saw
    :ivar left: what was there afterwards that was not there before
    """

    name: str
    seconds: float
    problem: str
    seen: str
    left: list[str]

    @property
    def passed(self) -> bool:
        return not self.problem and not self.left


def scenario(function: Scenario) -> Scenario:
    KNOWN[function.__name__] = function
    return function


def for_each_driver(function: Callable[[Stage, Driver], str | None]) -> Callable[[Stage, Driver], str | None]:
    for driver in DRIVERS:
        KNOWN[f"{driver.name}.{function.__name__}"] = lambda stage, driver=driver: function(stage, driver)
    return function


def known() -> Mapping[str, Scenario]:
    """Every scenario by its name, in the order in which they are tried."""
    from tools.oned.scenarios import devices, disks, elastic, faults, images, input, life, moves, mpi, network  # noqa: F401, PLC0415

    return KNOWN


def chosen(names: tuple[str, ...]) -> Mapping[str, Scenario]:
    """:param names: of scenarios, or what several begin or end with; none are all
    :raises ValueError: there is none of such a name
    """
    found = {name: function for name, function in known().items()
             if not names or any(name == wanted or name.startswith(f"{wanted}.") or name.endswith(f".{wanted}")
                                 for wanted in names)}
    missing = [wanted for wanted in names if not any(
        name == wanted or name.startswith(f"{wanted}.") or name.endswith(f".{wanted}") for name in found)]
    if missing:
        raise ValueError(f"there is no scenario {missing[0]}; there are {', '.join(known())}")
    return found


def run(scenarios: Mapping[str, Scenario], stage: Stage, say: Callable[[str], None]) -> list[Result]:
    results = []
    for place, (name, function) in enumerate(scenarios.items(), 1):
        say(f"{place}/{len(scenarios)} {name}")
        results.append(one(name, function, stage))
        say(line(results[-1]))
    return results


def one(name: str, function: Scenario, stage: Stage) -> Result:
    before, started, problem, seen = stage.things(), time.monotonic(), "", ""
    try:
        seen = function(stage) or ""
    except (AssertionError, MachineFailed) as error:
        problem = " ".join(str(error).split()) or "failed"
    except Exception as error:  # a mistake in one scenario must not hide what the others came to
        problem = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    if problem:
        stage.clear()
    return Result(name, seconds, problem, seen, stage.left(before))


def line(result: Result) -> str:
    words = result.problem or (f"left {len(result.left)}: {'; '.join(result.left)}" if result.left else "passed")
    return f"{'ok ' if result.passed else 'NOT'} {result.name} ({result.seconds:.1f} s): {words}" \
           f"{f'; {result.seen}' if result.seen else ''}"
