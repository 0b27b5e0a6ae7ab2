# SPDX-License-Identifier: Apache-2.0
"""Run each program of the image, read what it prints, and check that it did each step once. Pure.

Each line of progress is "PARTS threads|ranks|workers RATE regions|steps/s region|step LAST"; a program that goes on
from checkpoints also prints "PARTS ranks: steps FIRST-LAST" of each part. The last line of a program that ended is
"status NUMBER".
"""

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tools.elasticjobs.image import PROGRAMS

DIRECTORY = "/root/job"
OUTPUT = f"{DIRECTORY}/out"
FOREVER = 10**9  # steps
AIM = 0.85  # least work of a program that follows after a shrink, of that of fixed size, for each second of CPU time
LINE = re.compile(r"([0-9]+) (?:threads|ranks|workers) ([0-9.]+) (?:regions|steps)/s (?:region|step) ([0-9]+)\b.*")
PART = re.compile(r"[0-9]+ (?:ranks|workers): steps ([0-9]+)-([0-9]+)")
STATUS = re.compile(r"status ([0-9]+)")
WORK = 200_000  # iterations of a region: some hundred microseconds, in which a second core is of use


class Progress(NamedTuple):
    """:ivar parts: threads, ranks or workers
    :ivar rate: steps a second, since the line before
    :ivar step: the last one
    """

    parts: int
    rate: float
    step: int


class Program(NamedTuple):
    """:ivar rigid: steps and parts -> the command that keeps its parts
    :ivar following: steps -> the command that has as many parts as cores
    :ivar restarts: whether a change of parts ends it, and it goes on from its checkpoint
    """

    name: str
    title: str
    unit: str
    rigid: Callable[[int, int], str]
    following: Callable[[int], str]
    restarts: bool = False


OPENMP = Program(
    "openmp", "OpenMP, threads that spin", "regions",
    lambda steps, parts: f"env OMP_WAIT_POLICY=active OMP_NUM_THREADS={parts} /{PROGRAMS}/openmp rigid regions={steps} "
                         f"work={WORK}",
    lambda steps: f"env OMP_WAIT_POLICY=active containerhost-guest run -- /{PROGRAMS}/openmp regions={steps} "
                  f"work={WORK}")
PYTORCH = Program(
    "pytorch", "PyTorch, training on the CPU", "steps",
    lambda steps, parts: f"env OMP_NUM_THREADS={parts} /{PROGRAMS}/torch_training.py --rigid --steps {steps}",
    lambda steps: f"containerhost-guest run -- /{PROGRAMS}/torch_training.py --steps {steps}")
LAMMPS = Program(
    "lammps", "LAMMPS, molecular dynamics by MPI", "steps",
    lambda steps, parts: f"/{PROGRAMS}/lammps.py {steps} {parts}",
    lambda steps: f"/{PROGRAMS}/lammps.py {steps}", restarts=True)
WORKERS = Program(
    "workers", "PyTorch, workers of torch.distributed", "steps",
    lambda steps, parts: f"env OMP_NUM_THREADS={parts} /{PROGRAMS}/torch_elastic.py {steps}",
    lambda steps: f"containerhost-guest follow -- /{PROGRAMS}/torch_elastic.py {steps}", restarts=True)
TRADERS = (OPENMP, PYTORCH, LAMMPS)


def start(command: str) -> list[str]:
    """Return a command for a container's root that starts a program anew and returns at once.

    :param command: what a :class:`Program` returns
    """
    begun = f"{command}; echo status $?"
    return ["sh", "-c", f"rm -rf {DIRECTORY}; mkdir -p {DIRECTORY}; cd {DIRECTORY}; "
                        f"setsid sh -c {shlex.quote(begun)} > {OUTPUT} 2>&1 < /dev/null &"]


def progress(lines: Iterable[str]) -> list[Progress]:
    found = map(LINE.fullmatch, lines)
    return [Progress(int(match[1]), float(match[2]), int(match[3])) for match in found if match]


def ended(lines: Sequence[str]) -> bool:
    return bool(lines and STATUS.fullmatch(lines[-1]))


def complaint(program: Program, lines: Sequence[str], steps: int) -> str:
    """Return why a program that ended did not do each step once; "" if it did.

    The programs compare what they computed with their number of steps, and end with another status than 0 where that
    differs; here their steps are compared with each other.
    """
    if not ended(lines):
        return f"it has not ended: {' '.join(lines[-1:])}"
    if lines[-1] != "status 0":
        return "; ".join(lines[-3:])
    return disorder(program, lines) or last_step(program, lines, steps)


def disorder(program: Program, lines: Iterable[str]) -> str:
    """Return which of the steps so far was lost or done twice; "" if none was."""
    lines = list(lines)
    done = [found.step for found in progress(lines)]
    for before, after in itertools.pairwise(done):
        if after < before:
            return f"step {after} was done after step {before}"
    last = 0
    for match in filter(None, map(PART.fullmatch, lines)) if program.restarts else ():
        if int(match[1]) != last:
            return f"a part began at step {match[1]}, and the one before ended at step {last}"
        last = int(match[2])
    return ""


def last_step(program: Program, lines: Iterable[str], steps: int) -> str:
    """Return the number of the last step, if it is not the requested one."""
    lines = list(lines)
    parts = [int(match[2]) for match in map(PART.fullmatch, lines) if match]
    done = parts if program.restarts else [found.step for found in progress(lines)]
    return "" if done[-1:] == [steps] else f"it ended after step {done[-1:]} of {steps}"
