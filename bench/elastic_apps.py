#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare applications whose containers shrink from two cores to one: rigid ones, and those that follow.

The shares are of the same application begun on one core (ideal). Aim: following >= 0.85 for OpenMP.

    sudo .venv/bin/python bench/elastic_apps.py [--rounds N] [--packages DIR] [--json]

    .venv/bin/pip install --target DIR -r examples/elastic/requirements.txt  # what needs them is measured with it

Three containers on LXD for each application. All are there at the same time, but only one runs at any moment: they take
turns, and the others are frozen, so that what else the machine does meets them alike. The shrink is announced,
acknowledged and done as by a live resize. Medians of what the applications print each second; the shares are medians of
those of each round.
"""

import argparse
import json
import operator
import os
import re
import statistics
import sys
import unittest
from pathlib import Path
from typing import Any

import emulated

emulated.enter()

from containerhost.engines.spec import ContainerSpec, Cpu, Memory, Mount  # noqa: E402  (after the entry)
from tests.functional import elasticapps  # noqa: E402
from tests.waiting import await_that  # noqa: E402

AIM = 0.85
RATE = re.compile(r"^([0-9]+) threads ([0-9.]+) ")
PACKAGES = emulated.REPOSITORY / ".cache/bench/elastic"
# With spinning threads, which OpenMP programs on cores of their own are tuned to have.
OPENMP = f"env OMP_WAIT_POLICY=active {elasticapps.HELPER} run -- /tools/openmp"
PYTHON = f"{elasticapps.HELPER} run -- /usr/bin/python3 /tools"
APPLICATIONS = {"OpenMP": (OPENMP, "rigid"), "numpy": (f"{PYTHON}/numpy_training.py", "--rigid"),
                "PyTorch": (f"{PYTHON}/torch_training.py", "--rigid"),
                "TensorFlow": (f"{PYTHON}/tensorflow_training.py", "--rigid")}
TURN = 3  # lines that a container prints in a turn; the first also counts the time it was frozen


class Measured(elasticapps.ElasticCase):
    rounds = 5
    packages = PACKAGES
    found: dict[str, dict[str, Any]]

    def runTest(self) -> None:
        type(self).found = {}
        for application, (command, rigid) in APPLICATIONS.items():
            if application == "OpenMP" or self.packages.exists():
                self.found[application] = self.measured(command, rigid)
                for container in self.engine.containers():
                    self.engine.delete(container.name)

    def measured(self, command: str, rigid: str) -> dict[str, Any]:
        core = min(os.sched_getaffinity(0))
        two, one = Cpu(2), Cpu(1, frozenset({core}))
        for name, cpu, words in (("rigid", two, f"{command} {rigid}"), ("following", two, command),
                                 ("ideal", one, command)):
            self.begin(self.small(name, cpu), words)
            self.await_line("threads", name)
            self.engine.freeze(name)
        before = self.turns("rigid", "following")
        for name in ("rigid", "following"):
            self.engine.unfreeze(name)
            asked = self.resize(self.small(name, one))
            self.engine.freeze(name)
            print(f"{name}: {'acknowledged' if asked else 'not asked'}", file=sys.stderr)
        after = self.turns("rigid", "following", "ideal")
        shares = {name: statistics.median(map(operator.truediv, after[name][1], after["ideal"][1]))
                  for name in ("rigid", "following")}
        sides = {"before": before["following"], **after}
        return {"shares": shares, **{name: (threads, statistics.median(rates))
                                     for name, (threads, rates) in sides.items()}}

    def small(self, name: str, cpu: Cpu) -> ContainerSpec:
        site = (Mount("site", str(self.packages), "/site"),) if self.packages.exists() else ()
        return self.spec(name, cpu=cpu, memory=Memory(2 << 30), mounts=site)

    def turns(self, *names: str) -> dict[str, tuple[int, list[float]]]:
        """Return the threads of each container, and its rate in each round."""
        rates: dict[str, list[float]] = {name: [] for name in names}
        threads = dict.fromkeys(names, 0)
        for _ in range(self.rounds):
            for name in names:
                seen = len(self.lines(name))
                self.engine.unfreeze(name)
                await_that(lambda: len(self.lines(name)) > seen + TURN, f"{name} works", limit=300)  # noqa: B023
                self.engine.freeze(name)
                found = [RATE.match(line) for line in self.lines(name)[seen + 1:]]
                threads[name] = int(found[-1][1])
                rates[name].append(statistics.median(float(each[2]) for each in found))
        return {name: (threads[name], rates[name]) for name in names}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=Measured.rounds)
    options.add_argument("--packages", type=Path, default=PACKAGES)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    Measured.rounds, Measured.packages = chosen.rounds, chosen.packages.absolute()
    done = unittest.TextTestRunner(stream=sys.stderr).run(Measured("runTest"))
    if not done.wasSuccessful():
        return 1
    if chosen.json:
        print(json.dumps(Measured.found))
    else:
        for application, found in Measured.found.items():
            print(f"{application}: " + ", ".join(
                f"{name} {found[name][0]} threads {found[name][1]:.1f}/s" for name in
                ("before", "rigid", "following", "ideal"))
                + f"; of the ideal rigid {found['shares']['rigid']:.3f}, following {found['shares']['following']:.3f}")
    return int(Measured.found["OpenMP"]["shares"]["following"] < AIM)


if __name__ == "__main__":
    sys.exit(main())
