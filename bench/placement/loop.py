# SPDX-License-Identifier: Apache-2.0
"""Queue jobs, place them when they fit, and free what they had. Knows no clock."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bench.placement.workloads import Job


@dataclasses.dataclass(frozen=True)
class Request:
    """Describe a job's request: containers, in the order of ranks, each with as many cores as ranks.

    :ivar containers: the number of ranks in each
    :ivar groups: into how many task groups they are divided; 0 is none
    :ivar affinity: whether containers get cores of their own; else they float over all cores of the host
    """

    containers: tuple[int, ...]
    groups: int = 0
    affinity: bool = True


class Scheduler(Protocol):
    """Place the containers of a job on hosts, and remember what is taken."""

    def place(self, job: Job, request: Request) -> Sequence[str] | None:
        """Return the host of each container, or None if not all fit now; then nothing is taken."""

    def release(self, job: Job) -> None:
        """Free what the job had."""


class Loop:
    """Place jobs in the order of submission; one that does not fit waits, and later ones may overtake it.

    That is what the batch schedulers of Kubernetes do: they reserve nothing for a job that does not fit.
    """

    def __init__(self, scheduler: Scheduler, request: Callable[[Job], Request]) -> None:
        self._scheduler = scheduler
        self._request = request
        self.waiting: list[Job] = []

    def submit(self, job: Job) -> Mapping[Job, Sequence[str]]:
        """Return the jobs that start now, with the host of each of their containers."""
        self.waiting.append(job)
        return self._start([job])

    def finish(self, job: Job) -> Mapping[Job, Sequence[str]]:
        """Free what the job had, and return the jobs that start now."""
        self._scheduler.release(job)
        return self._start(self.waiting)

    def _start(self, candidates: Sequence[Job]) -> dict[Job, Sequence[str]]:
        started: dict[Job, Sequence[str]] = {}
        refused: set[Request] = set()
        for job in list(candidates):
            request = self._request(job)
            if request in refused:  # it has become no emptier since
                continue
            hosts = self._scheduler.place(job, request)
            if hosts is None:
                refused.add(request)
            else:
                started[job] = hosts
                self.waiting.remove(job)
        return started
