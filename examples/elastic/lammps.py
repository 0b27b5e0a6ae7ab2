#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run molecular dynamics (LAMMPS, by mpirun) with as many ranks as there are cores: lammps.py STEPS [RANKS]

An MPI program keeps its ranks until it ends. So at each change this script lets the program write a restart file and
end, and starts it from there with other ranks. It prints each second the ranks, the steps done in it and the last step,
and "RANKS ranks: steps FIRST-LAST" of each part, and ends with status 1 if one does not begin at the step at which the
one before ended. With RANKS it keeps as many. Files are in the working directory.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from containerhost_guest import Follower, threads

INPUT, STOP, LOG = Path(__file__).with_name("melt.lammps"), Path("stop"), Path("log.lammps")
END_TIMEOUT = 20  # s, shorter than the host waits for an acknowledgement
POLL_INTERVAL = 0.1  # s
CELLS, EVERY = 12, 20  # size of the crystal; steps between two checks of STOP, which are in the log
STEP = re.compile(r"^ *([0-9]+) +-?[0-9.]+(?:e[-+][0-9]+)? *$", re.MULTILINE)


class Simulation:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._process: subprocess.Popen[bytes] | None = None
        self._ranks = self._done = 0

    def fit(self, resources: dict[str, Any]) -> None:
        self.end()
        if self._done < self._steps:
            self.start(threads(resources))

    def start(self, ranks: int) -> None:
        LOG.unlink(missing_ok=True)
        self._ranks = ranks
        self._process = subprocess.Popen(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
             "lmp", "-in", str(INPUT), "-log", str(LOG), "-screen", "none", "-var", "steps", str(self._steps),
             "-var", "every", str(EVERY), "-var", "cells", str(CELLS)], env={**os.environ, "OMP_NUM_THREADS": "1"})

    def end(self) -> None:
        """Let the program write its restart file and end, and compare where it began with what is done."""
        if self._process is None:
            return
        STOP.touch()
        try:
            status = self._process.wait(END_TIMEOUT)
        finally:
            self._process.terminate()
            STOP.unlink()
        steps = self.logged()
        if status != 0 or not steps or steps[0] != self._done:
            sys.exit(f"LAMMPS ended with status {status} and did steps {steps[:1]}-{steps[-1:]} after {self._done}")
        print(f"{self._ranks} ranks: steps {self._done}-{steps[-1]}", flush=True)
        self._process, self._done = None, steps[-1]

    def logged(self) -> list[int]:
        """Return the steps that LAMMPS has noted since its start: every so many, and the first and the last one."""
        return [int(step) for step in STEP.findall(LOG.read_text())] if LOG.exists() else []

    def tell(self, before: int, seconds: float) -> int:
        """Print how fast it was since a step, and return the last one."""
        last = max([before, *self.logged()])
        print(f"{self._ranks} ranks {(last - before) / seconds:.1f} steps/s step {last}", flush=True)
        return last

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def main() -> None:
    simulation = Simulation(int(sys.argv[1]))
    follower = None
    if len(sys.argv) > 2:
        simulation.start(int(sys.argv[2]))
    else:
        follower = Follower(simulation.fit)
    told, last = time.monotonic(), 0
    while simulation.is_running():
        time.sleep(POLL_INTERVAL)
        if follower:
            follower.poll()
        if (seconds := time.monotonic() - told) >= 1:
            last = simulation.tell(last, seconds)
            told = time.monotonic()
    simulation.end()


if __name__ == "__main__":
    main()
