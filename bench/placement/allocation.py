# SPDX-License-Identifier: Apache-2.0
"""Compare policies by the share of a cluster's GPUs that they manage to allocate while tasks of the trace arrive."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from bench.placement import gpupolicies, trace
from bench.placement.gpucluster import Cluster
from bench.placement.gpupolicies import Policy
from bench.placement.trace import Node, Task

RATIO = 1.3
"""Tasks arrive until they ask for so many times the GPUs of the cluster."""

POLICIES: Mapping[str, Callable[[Cluster, Sequence[Task], int], Policy]] = {
    "this project": lambda cluster, tasks, seed: gpupolicies.weigher(cluster),
    "gradient descent": lambda cluster, tasks, seed: gpupolicies.gradient(cluster, tasks),
    "packing": lambda cluster, tasks, seed: gpupolicies.packing(cluster),
    "best fit": lambda cluster, tasks, seed: gpupolicies.best_fit(cluster),
    "fewest servers fit": lambda cluster, tasks, seed: gpupolicies.room_only(cluster),
    "random": lambda cluster, tasks, seed: gpupolicies.random_fit(cluster, seed),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """The allocated share of all GPUs, by how much was asked for (hundredths of all GPUs).

    :ivar refused: tasks that did not fit
    """

    shares: Mapping[int, float]
    refused: int


def curve(nodes: Sequence[Node], tasks: Sequence[Task], policy: str, seed: int) -> Curve:
    """Return how the allocation grows under a policy."""
    cluster = Cluster(nodes)
    place = POLICIES[policy](cluster, tasks, seed)
    asked, refused = 0, 0
    shares: dict[int, float] = {}
    for task in trace.arrivals(tasks, cluster.capacity, RATIO, seed):
        asked += task.demand
        refused += place(task) is None
        shares[100 * asked // cluster.capacity] = cluster.allocated() / cluster.capacity
    return Curve(shares, refused)


def table(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Return the comparison as a table of the manual: medians of the seeds, and the range in the end."""
    lines = ["| policy | 80 % asked for | 90 % | 100 % | 130 % | range | tasks refused |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for name, runs in curves.items():
        shares = [statistics.median(_at(run, percent) for run in runs) for percent in (80, 90, 100, 130)]
        ends = [100 * _at(run, 130) for run in runs]
        lines.append(f"| {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares)
                     + f" | {min(ends):.1f} to {max(ends):.1f} % | "
                     f"{statistics.median(run.refused for run in runs):.0f} |")
    return "\n".join(lines)


def _at(run: Curve, percent: int) -> float:
    return run.shares[max(asked for asked in run.shares if asked <= percent)]
