# SPDX-License-Identifier: Apache-2.0
"""Figures of the elastic story from what was measured, which is "elastic" of its --json. Pure, but for the command

    python -m tools.showcase.elasticfigures FILE.json

which prints the manual's tables of such a file, and draws its plot anew beside it (.svg).
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.elasticjobs.jobs import TRADERS
from tools.showcase import elasticplot

FIXED, RIGID, FOLLOWING = KINDS = ("fixed", "rigid", "following")
STATIC, ELASTIC = WAYS = ("static", "elastic")
Record = Mapping[str, Any]


def figures(trades: Record, finish: Record, cores: int) -> dict[str, Any]:
    """Return what the tables have.

    :param trades: kind -> what :class:`tools.showcase.elastictrades.Trades` measured
    :param finish: way -> what :class:`tools.showcase.elasticfinish.Finish` measured
    """
    rates = one_core_rates(trades)
    return {"trades": {kind: of_kind(trade, trades[FIXED], rates, cores) for kind, trade in trades.items()},
            "finish": {way: {name: round(each[name], 2) for name in ("makespan", "mean_time_to_finish", "utilisation")}
                       for way, each in finish.items()}}


def one_core_rates(trades: Record) -> dict[str, float]:
    """Return the steps a second of each program on one core: what the fixed servers did."""
    names = trades[FIXED]["steps"]
    return {name: statistics.median(found["rate"] for _, found in turns(trades[FIXED], name)) for name in names}


def of_kind(trade: Record, fixed: Record, rates: Mapping[str, float], cores: int) -> dict[str, Any]:
    """:param rates: of each program on one core"""
    return {
        # In units of a fixed server, for the whole time: that of changes too.
        "throughput": round(sum(steps / max(rates[name], 1e-9) for name, steps in trade["steps"].items())
                            / trade["seconds"], 2),
        "utilisation": round(sum(trade["cpu"].values()) / trade["seconds"] / cores, 2),
        "alone": {name: round(statistics.median(found["rate"] for _, found in turns(trade, name, alone=True))
                              / max(rates[name], 1e-9), 3) for name in rates},
        "after_a_shrink": {name: round(shrunk(trade, name) / max(shrunk(fixed, name), 1e-9), 4) for name in rates}}


def turns(trade: Record, name: str, alone: bool | None = None) -> Iterator[tuple[int, Record]]:
    """Yield the turns in which a program worked: their number, and what it did."""
    for number, turn in enumerate(trade["turns"]):
        if name in turn["servers"] and alone in (None, len(turn["servers"]) == 1):
            yield number, turn["servers"][name]


def shrunk(trade: Record, name: str) -> float:
    """Return the steps for each second of CPU time, in the turns after those in which a program was alone."""
    after = {number + 1 for number, _ in turns(trade, name, alone=True)}
    return statistics.median(
        found["rate"] * trade["turns"][number]["seconds"] / max(found["cpu"], 1e-9)
        for number, found in turns(trade, name) if number in after)


def tables(found: Record, finish: Record) -> str:
    """Return the manual's tables, in Markdown.

    :param found: what :func:`figures` returns
    :param finish: as :func:`figures` has it
    """
    names = [program.name for program in TRADERS]
    return "\n".join([
        *table(["servers", "throughput", "utilisation", *(f"{name}: alone" for name in names),
                *(f"{name}: after a shrink" for name in names)],
               [[kind, each["throughput"], each["utilisation"], *(each["alone"][name] for name in names),
                 *(each["after_a_shrink"][name] for name in names)] for kind, each in found["trades"].items()]), "",
        *table(["allocation", *(f"{name} ends" for name in names), "mean time to finish", "all have ended",
                "utilisation"],
               [[way, *(f"{finish[way]['jobs'][name]['ended']:.1f} s" for name in names),
                 f"{each['mean_time_to_finish']:.1f} s", f"{each['makespan']:.1f} s", each["utilisation"]]
                for way, each in found["finish"].items()])])


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def plot(elastic: Record) -> bytes:
    """:param elastic: that of the JSON file"""
    rates, cores = one_core_rates(elastic["trades"]), elastic["cores"]
    return elasticplot.draw(
        [elasticplot.Panel(kind, trade["timeline"], [
            elasticplot.Bar(turn["began"], turn["seconds"],
                            {name: found["rate"] / max(rates[name], 1e-9) for name, found in turn["servers"].items()})
            for turn in trade["turns"]]) for kind, trade in elastic["trades"].items()],
        [elasticplot.Panel(way, found["timeline"], []) for way, found in elastic["finish"].items()],
        [program.name for program in TRADERS], cores)


def main() -> None:
    path = Path(sys.argv[1])
    elastic = json.loads(path.read_text())["elastic"]
    print(tables(figures(elastic["trades"], elastic["finish"], elastic["cores"]), elastic["finish"]))
    path.with_suffix(".svg").write_bytes(plot(elastic))


if __name__ == "__main__":
    main()
