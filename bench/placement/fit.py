# SPDX-License-Identifier: Apache-2.0
"""Fit what hpcc cannot measure to rows of the thesis; everything else that ``thesis`` prints is a prediction."""

import statistics
from collections.abc import Sequence

from bench.placement import published, scenarios, simulate, workloads
from bench.placement.contention import Efficiency, Machine
from bench.placement.hpcc import Calibration
from bench.placement.parameters import Parameters
from bench.placement.scenarios import Scenario

ROUNDS = 3


def efficiency() -> Efficiency:
    """Return the efficiencies from the ten CPU-bound jobs.

    Hardly any of them waits for cores, so that the response time is the inverse of the rate.
    """
    scale, granularity = published.CPU_BOUND["scale+groups"], published.CPU_BOUND["granularity+groups"]
    return Efficiency(floating=(1 + scale[1]) / (1 + scale[0]), part=1 / (1 + scale[0]),
                      single=1 / (1 + granularity[0]))


def fit(calibration: Calibration, seeds: Sequence[int]) -> Parameters:
    """Return the length by which "affinity" has its makespan, and the message rate by which "Volcano-like" has its own.
    """
    found = Parameters(calibration, 600.0, efficiency(), calibration.ring_gbytes)
    for _ in range(ROUNDS):
        late = makespan(found, scenarios.AFFINITY, seeds) / published.MAKESPAN["affinity"]
        found = Parameters(calibration, found.seconds / late ** 1.3, found.efficiency, found.core_messages)
    for _ in range(ROUNDS - 1):
        late = makespan(found, scenarios.VOLCANO, seeds) / published.MAKESPAN["Volcano-like"]
        found = Parameters(calibration, found.seconds, found.efficiency, found.core_messages / late)
    return found


def makespan(parameters: Parameters, scenario: Scenario, seeds: Sequence[int]) -> float:
    """Return the median makespan of the mixed jobs."""
    kinds = workloads.benchmarks(parameters.calibration.fft_messages)
    machine: Machine = parameters.machine
    outcomes = simulate.run([simulate.Run(scenario, tuple(workloads.mixed(kinds, seed)), parameters.seconds, machine,
                                          parameters.efficiency) for seed in seeds])
    return statistics.median(outcome.makespan for outcome in outcomes)
