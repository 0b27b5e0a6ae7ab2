# SPDX-License-Identifier: Apache-2.0
"""Three servers that take turns: one works alone, or two together, and every few seconds one is paused or goes on."""

import time
from collections.abc import Sequence
from typing import Any

from tools.cloud.engine import Engine
from tools.elasticjobs import jobs
from tools.showcase.elasticservers import Servers, Timeline, Worker
from tools.showcase.report import Report
from tools.showcase.story import wait_for

# Which of the three work. From one turn to the next one server is paused or goes on; each shrinks after it was alone.
TURNS = ((0,), (0, 1), (1,), (1, 2), (2,), (2, 0)) * 2
TURN = 5.0  # s
TURN_TIMEOUT = 60.0  # s, for a program that has hardly any of its CPU time


class Trades:
    """:param cores: of this machine, which the servers trade"""

    def __init__(self, servers: Servers, engine: Engine, report: Report, cores: int) -> None:
        self._servers, self._engine, self._report, self._cores = servers, engine, report, cores

    def play(self, kind: str, workers: Sequence[Worker], most: int) -> dict[str, Any]:
        """Let them trade, from all being paused until all are again.

        :param kind: following, or rigid with as many parts as ``most``
        :param most: cores that one has alone
        """
        for worker in workers:
            self._begin(kind, worker, most)
        steps = {worker: self._step(worker) for worker in workers}
        used = {worker: self._servers.cpu(worker) for worker in workers}
        turns = []
        with Timeline(self._engine, workers) as timeline:
            began = time.monotonic()
            working: list[Worker] = []
            for wanted in ([workers[index] for index in turn] for turn in TURNS):
                self._change(working, wanted)
                working = wanted
                cores = min(most, self._cores // len(working))
                for worker in working:
                    self._servers.await_cores(worker, cores)
                turns.append(self._turn(kind, working, cores, began))
            seconds = time.monotonic() - began
        for worker in working:
            self._servers.power(worker, "pause")
        return {"seconds": seconds, "turns": turns, "timeline": timeline.changes,
                "steps": {worker.program.name: self._step(worker) - steps[worker] for worker in workers},
                "cpu": {worker.program.name: self._servers.cpu(worker) - used[worker] for worker in workers},
                "unordered": {worker.program.name: self._check(kind, worker) for worker in workers}}

    def _begin(self, kind: str, worker: Worker, most: int) -> None:
        """Start the program while its server is alone."""
        program = worker.program
        self._servers.power(worker, "unpause")
        self._servers.await_cores(worker, most)
        command = program.following(jobs.FOREVER) if kind == "following" else program.rigid(jobs.FOREVER, most)
        self._report.say(f"{worker.server.name} runs: {command}")
        self._servers.run(worker, command)
        self._servers.await_lines(worker, lambda lines: len(jobs.progress(lines)) > 1, "progress")
        self._servers.power(worker, "pause")

    def _change(self, working: Sequence[Worker], wanted: Sequence[Worker]) -> None:
        for worker in wanted:
            if worker not in working:
                self._servers.power(worker, "unpause")
        for worker in working:
            if worker not in wanted:
                self._servers.power(worker, "pause")

    def _turn(self, kind: str, working: Sequence[Worker], cores: int, origin: float) -> dict[str, Any]:
        """Let them work for a while, when each has printed a line since the change."""
        self._new_lines(working, {worker: self._count(worker) for worker in working}, 0)
        seen = {worker: self._count(worker) for worker in working}
        used = {worker: self._servers.cpu(worker) for worker in working}
        began = time.monotonic()
        self._new_lines(working, seen, TURN)
        seconds = time.monotonic() - began
        found = {}
        for worker in working:
            lines = jobs.progress(self._servers.lines(worker))[seen[worker]:]
            found[worker.program.name] = {
                "cores": cores, "parts": lines[-1].parts if lines else 0,
                "rate": sum(line.rate for line in lines) / max(len(lines), 1),
                "cpu": self._servers.cpu(worker) - used[worker]}
        self._report.say(f"{kind}: " + ", ".join(
            f"{name} on {each['cores']} with {each['parts']} {each['rate']:.1f}/s, {each['cpu'] / seconds:.2f} busy"
            for name, each in found.items()))
        return {"began": began - origin, "seconds": seconds, "servers": found}

    def _new_lines(self, working: Sequence[Worker], seen: dict[Worker, int], seconds: float) -> None:
        """Wait for so long, and until each has printed another line."""
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began >= seconds
                 and all(self._count(worker) > seen[worker] for worker in working), bool, TURN_TIMEOUT)

    def _count(self, worker: Worker) -> int:
        return len(jobs.progress(self._servers.lines(worker)))

    def _step(self, worker: Worker) -> int:
        return jobs.progress(self._servers.lines(worker))[-1].step

    def _check(self, kind: str, worker: Worker) -> str:
        """Return what is wrong with the steps of its program; "" if each was done once."""
        lines = self._servers.lines(worker)
        wrong = lines[-1] if jobs.ended(lines) else jobs.disorder(worker.program, lines)
        self._report.check(worker.server.name, f"{kind}: runs, and has done each step once",
                           wrong or f"{self._step(worker)} {worker.program.unit}", not wrong)
        return wrong
