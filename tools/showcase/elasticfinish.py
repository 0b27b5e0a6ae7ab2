# SPDX-License-Identifier: Apache-2.0
"""Three jobs of a fixed number of steps on a machine with room for two: how long until each has ended."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tools.cloud.engine import Engine
from tools.elasticjobs import jobs
from tools.showcase.elasticservers import Servers, Timeline, Worker
from tools.showcase.report import Report

ROOM = 2  # jobs at a time
LONGEST = 900.0  # s
POLL_INTERVAL = 0.25  # s


class Finish:
    def __init__(self, servers: Servers, engine: Engine, report: Report, cores: int) -> None:
        self._servers, self._engine, self._report, self._cores = servers, engine, report, cores

    def play(self, kind: str, workers: Sequence[Worker], steps: Mapping[str, int], following: bool) -> dict[str, Any]:
        """Let each do its steps, in the order given; each is deleted when it has.

        :param workers: paused ones
        :param steps: of each program
        :raises RuntimeError: they have not ended after a long time
        """
        waiting, running = list(workers), dict[str, Worker]()
        found: dict[str, dict[str, Any]] = {}
        with Timeline(self._engine, workers) as timeline:
            began = time.monotonic()
            while waiting or running:
                while waiting and len(running) < ROOM:
                    worker = waiting.pop(0)
                    running[worker.program.name] = worker
                    started, used = time.monotonic() - began, self._servers.cpu(worker)
                    self._start(worker, steps[worker.program.name], following)
                    found[worker.program.name] = {"began": started, "cpu": -used, "steps": steps[worker.program.name]}
                for name, worker in list(running.items()):
                    lines = self._servers.lines(worker)
                    if jobs.ended(lines):
                        found[name]["ended"] = time.monotonic() - began
                        found[name]["cpu"] += self._servers.cpu(worker)
                        found[name]["complaint"] = self._check(kind, worker, lines, steps[name])
                        self._servers.delete([running.pop(name)])
                if time.monotonic() - began > LONGEST:
                    raise RuntimeError(f"{', '.join(running)} have not ended after {LONGEST:.0f} s")
                time.sleep(POLL_INTERVAL)
        makespan = max(each["ended"] for each in found.values())
        return {"jobs": found, "makespan": makespan, "timeline": timeline.changes,
                "utilisation": sum(each["cpu"] for each in found.values()) / makespan / self._cores,
                "mean_time_to_finish": sum(each["ended"] for each in found.values()) / len(found)}

    def _start(self, worker: Worker, steps: int, following: bool) -> None:
        self._servers.power(worker, "unpause")
        program = worker.program
        self._servers.run(worker, program.following(steps) if following else program.rigid(steps, 1))

    def _check(self, kind: str, worker: Worker, lines: Sequence[str], steps: int) -> str:
        wrong = jobs.complaint(worker.program, lines, steps)
        self._report.check(worker.server.name, f"{kind}: has ended, each step done once",
                           wrong or f"{steps} {worker.program.unit}", not wrong)
        return wrong
