# SPDX-License-Identifier: Apache-2.0
"""Describe the scenarios of the thesis: how each divides a job into containers, and which scheduler it has."""

import dataclasses

from bench.placement.contention import Machine
from bench.placement.loop import Request
from bench.placement.workloads import RANKS, Benchmark
from hpcplan import plan


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A way to run the jobs.

    :ivar policy: of the planner, or "" where every job has the same containers
    :ivar containers: of a job, without a policy
    """

    name: str
    policy: str = ""
    containers: int = 1
    affinity: bool = True

    @property
    def task_groups(self) -> bool:
        """Tell whether this project's filter and weigher place the job."""
        return bool(self.policy)

    def request(self, benchmark: Benchmark, machine: Machine) -> Request:
        """Return the containers of a job."""
        if self.policy:
            return planned(benchmark, machine, self.policy)
        return Request((RANKS // self.containers,) * self.containers, affinity=self.affinity)


NONE = Scenario("none", affinity=False)
AFFINITY = Scenario("affinity")
KUBEFLOW = Scenario("Kubeflow-like")
VOLCANO = Scenario("Volcano-like", containers=RANKS)
SCALE = Scenario("scale+groups", policy="scale")
GRANULARITY = Scenario("granularity+groups", policy="granularity")
ALL = (NONE, AFFINITY, KUBEFLOW, VOLCANO, SCALE, GRANULARITY)


def planned(benchmark: Benchmark, machine: Machine, policy: str) -> Request:
    """Return the containers that the project's planner divides a job into."""
    nodes = plan.Nodes(len(machine.hosts), machine.cores, len(machine.sockets))
    found = plan.plan(RANKS, plan.Profile(benchmark.profile), nodes, plan.Policy(policy))
    return Request(found.containers, found.nodes)
