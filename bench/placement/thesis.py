# SPDX-License-Identifier: Apache-2.0
"""Run the thesis' scenarios and compare them with what it published."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from bench.placement import published, scenarios, simulate, workloads
from bench.placement.parameters import Parameters
from bench.placement.simulate import Outcome
from bench.placement.workloads import Job

FITTED = {"makespan": ("affinity", "Volcano-like"), "cpu_bound": ("scale+groups", "granularity+groups")}
"""Rows that parameters were fitted to; the others are predictions."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians over the seeds, by scenario.

    :ivar makespan: seconds
    :ivar response: seconds, mean of the jobs
    :ivar cpu_bound: the same of ten CPU-bound jobs
    :ivar spread: smallest and largest change of the response time against "affinity" over the seeds
    """

    makespan: Mapping[str, float]
    response: Mapping[str, float]
    cpu_bound: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    makespan_change: Mapping[str, tuple[float, float]]
    response_change: Mapping[str, tuple[float, float]]
    cpu_bound_change: Mapping[str, tuple[float, float]]


def run(parameters: Parameters, seeds: Sequence[int], spread: float = 0.0, processes: int = 2) -> Result:
    """Simulate every scenario once for each seed.

    :param spread: by which part the lengths of the five benchmarks differ at random
    """
    kinds = workloads.benchmarks(parameters.calibration.fft_messages)
    mixed = {seed: tuple(workloads.mixed(kinds, seed, spread=spread)) for seed in seeds}
    cpu_bound = {seed: tuple(workloads.cpu_bound(kinds, seed)) for seed in seeds}
    small = [scenarios.NONE, scenarios.AFFINITY, scenarios.SCALE, scenarios.GRANULARITY]
    tasks = [(scenario, jobs[seed]) for jobs, which in ((mixed, scenarios.ALL), (cpu_bound, small))
             for scenario in which for seed in seeds]
    outcomes = simulate.run([simulate.Run(scenario, jobs, parameters.seconds, parameters.machine,
                                          parameters.efficiency) for scenario, jobs in tasks], processes)
    makespan: dict[str, list[float]] = {}
    response: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    for (scenario, jobs), outcome in zip(tasks, outcomes, strict=True):
        if len(jobs) == len(mixed[seeds[0]]):
            makespan.setdefault(scenario.name, []).append(outcome.makespan)
            response.setdefault(scenario.name, []).append(_mean_response(outcome, jobs))
        else:
            alone.setdefault(scenario.name, []).append(_mean_response(outcome, jobs))
    against = _changes(response, scenarios.AFFINITY.name)
    return Result(_medians(makespan), _medians(response), _medians(alone),
                  {name: (min(values), max(values)) for name, values in against.items()},
                  _pairs(makespan), _pairs(response), _pairs(alone))


def _mean_response(outcome: Outcome, jobs: Sequence[Job]) -> float:
    return outcome.response(jobs) / len(jobs)


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(found) for name, found in values.items()}


def _changes(values: Mapping[str, Sequence[float]], base: str) -> dict[str, list[float]]:
    return {name: [one / other - 1 for one, other in zip(found, values[base], strict=True)]
            for name, found in values.items()}


def _pairs(values: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Return the median change of each scenario against "affinity" and against "none"; seeds are compared in pairs."""
    first, second = (_medians(_changes(values, base.name)) for base in (scenarios.AFFINITY, scenarios.NONE))
    return {name: (first[name], second[name]) for name in values}


def table(result: Result) -> str:
    """Return the comparison as the tables of the manual."""
    lines = ["| scenario | makespan, thesis | simulated | |", "|---|---:|---:|---|"]
    lines += [f"| {name} | {_seconds(published.MAKESPAN.get(name))} | {seconds:.0f} s | {_origin('makespan', name)} |"
              for name, seconds in result.makespan.items()]
    rows: tuple[tuple[str, Mapping[str, tuple[float, float]], Mapping[str, tuple[float, float]], str], ...] = (
        ("response time, 20 mixed jobs", published.RESPONSE, result.response_change, "response"),
        ("makespan of these", published.MAKESPAN_CHANGE, result.makespan_change, "change"),
        ("response time, 10 CPU-bound jobs", published.CPU_BOUND, result.cpu_bound_change, "cpu_bound"))
    lines += ["", "| change against affinity / none | thesis | simulated | |", "|---|---:|---:|---|"]
    lines += [f"| {what}: {name} | {_percent(pair)} | {_percent(found[name])} | {_origin(key, name)} |"
              for what, known, found, key in rows for name, pair in known.items()]
    return "\n".join(lines)


def _origin(key: str, name: str) -> str:
    return "fitted" if name in FITTED.get(key, ()) else "predicted"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} s"


def _percent(pair: tuple[float, float]) -> str:
    return " / ".join(f"{100 * value:+.0f} %" for value in pair)
