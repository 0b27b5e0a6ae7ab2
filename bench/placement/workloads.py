# SPDX-License-Identifier: Apache-2.0
"""Describe the jobs of the thesis' experiments: five benchmarks, 16 ranks, submitted in the first 20 minutes."""

import dataclasses
import random

RANKS = 16
WINDOW_SECONDS = 1200.0


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Describe a rank's work, in shares of its time when nothing else slows it down.

    :ivar profile: as the planner gets it
    :ivar compute: in its core
    :ivar memory: moving memory at the rate of one core
    :ivar messages: exchanging messages with other ranks through shared memory
    :ivar all_to_all: whether each rank sends to every other; else to its neighbour in a ring of random order
    """

    name: str
    profile: str
    compute: float = 0.0
    memory: float = 0.0
    messages: float = 0.0
    all_to_all: bool = False


def benchmarks(fft_messages: float) -> tuple[Benchmark, ...]:
    """Return the five benchmarks.

    MiniFE is not part of hpcc: that a conjugate gradient solver spends half of its time waiting for memory is an
    assumption.

    :param fft_messages: share of the FFT's time in its transpositions, as hpcc measures it
    """
    return (Benchmark("DGEMM", "cpu", compute=1.0), Benchmark("STREAM", "memory", memory=1.0),
            Benchmark("MiniFE", "cpu+memory", compute=0.5, memory=0.5),
            Benchmark("FFT", "network", compute=1.0 - fft_messages, messages=fft_messages, all_to_all=True),
            Benchmark("RandomRing", "network", messages=1.0))


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of ``RANKS`` ranks.

    :ivar submitted: in seconds
    :ivar length: in parts of the length that all jobs have by default
    """

    number: int
    benchmark: Benchmark
    submitted: float
    length: float = 1.0


def mixed(kinds: tuple[Benchmark, ...], seed: int, each: int = 4, spread: float = 0.0) -> list[Job]:
    """Return ``each`` jobs of every benchmark in random order, evenly distributed over the window.

    :param spread: lengths of benchmarks differ by up to this part, at random
    """
    chance = random.Random(seed)
    length = {kind.name: 1.0 + chance.uniform(-spread, spread) for kind in kinds}
    order = [kind for kind in kinds for _ in range(each)]
    chance.shuffle(order)
    times = sorted(chance.uniform(0.0, WINDOW_SECONDS) for _ in order)
    return [Job(number, kind, time, length[kind.name])
            for number, (kind, time) in enumerate(zip(order, times, strict=True))]


def cpu_bound(kinds: tuple[Benchmark, ...], seed: int, count: int = 10) -> list[Job]:
    """Return ``count`` jobs of the benchmark that computes only."""
    chance = random.Random(seed)
    times = sorted(chance.uniform(0.0, WINDOW_SECONDS) for _ in range(count))
    return [Job(number, kinds[0], time) for number, time in enumerate(times)]
