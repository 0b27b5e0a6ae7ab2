#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nova-compute and LXD killed at random steps of random operations of a server with a GPU: nothing may be left.

    sudo .venv/bin/python bench/kills.py [--kills N] [--seed N] [--only OPERATION ...] [--json]

After every kill nova-compute starts again; then the server must have no task state and no move under way, its
allocations in Placement must be those of its flavor, moves that are over must have none, and containers, device records
and nova's claims must agree. Prints what became of the requests: finished, undone, or the server set to ERROR. Exits 1
if anything was left.
"""

import argparse
import json
import sys

import emulated
import testtools

from tests.functional.nova.randomkills import RandomKills


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", nargs="*", default=())
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    emulated.enter()

    RandomKills.wanted, RandomKills.seed, RandomKills.only = chosen.kills, chosen.seed, tuple(chosen.only)
    plain = testtools.TestResult()
    RandomKills("test_kills").run(plain)
    figures = RandomKills.figures
    if chosen.json:
        print(json.dumps({"kills": figures.kills, "outcomes": figures.outcomes, "leftovers": figures.leftovers}))
    else:
        report(figures.kills, figures.outcomes, figures.leftovers)
    for _, trace in (*plain.errors, *plain.failures):
        print(trace.splitlines()[-1], file=sys.stderr)
    return 0 if plain.wasSuccessful() else 1


def report(kills: int, outcomes: dict[str, dict[str, int]], leftovers: list[str]) -> None:
    kinds = ("finished", "undone", "ERROR", "left", "ended")
    print(f"{'operation':44}" + "".join(f"{kind:>10}" for kind in kinds))
    for name, counts in sorted(outcomes.items()):
        print(f"{name:44}" + "".join(f"{counts.get(kind, 0):>10}" for kind in kinds))
    print(f"{kills} kills, {len(leftovers)} left something", *leftovers, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
