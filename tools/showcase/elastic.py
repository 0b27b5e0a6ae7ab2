# SPDX-License-Identifier: Apache-2.0
"""The story of three servers that trade cores: programs that follow their cores, ones that do not, and fixed sizes.

The elastic service divides the cores of this machine. What a program does after a shrink is compared by its work for
each second of CPU time that it had, so that other load of the machine makes little difference.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.cloud.cloud import Cloud
from tools.elasticjobs import image, jobs
from tools.elasticjobs.jobs import AIM, OPENMP, PYTORCH, TRADERS, WORKERS
from tools.showcase import elasticfigures
from tools.showcase.elasticfigures import ELASTIC, FIXED, FOLLOWING, RIGID, STATIC
from tools.showcase.elasticfinish import Finish
from tools.showcase.elasticservers import Servers, Worker
from tools.showcase.elastictrades import Trades
from tools.showcase.report import Report

IMAGE = "elastic-jobs"
FLAVORS = FLAVOR, FIXED_FLAVOR, BELOW = "elastic", "elastic.fixed", "elastic.below"
MEMORY, DISK = 768, 2  # MiB, GiB
# Seconds of work of each job on one core, in the order in which they start.
SECONDS = {"openmp": 40, "pytorch": 60, "lammps": 50}
WORKERS_SECONDS = 30


class ElasticStory:
    def __init__(self, cloud: Cloud, report: Report) -> None:
        self._cloud, self._report = cloud, report
        self._admin = cloud.connect("admin")
        self._cores = len(os.sched_getaffinity(0))
        self._found: dict[str, Any] = {"cores": self._cores, "trades": {}, "finish": {}}

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        if self._cores < 2:
            raise RuntimeError("This machine has one core, so there is none to trade.")
        self._report.setting["elastic"] = self._found
        self.offer()
        self._servers = Servers(self._cloud, self._report, IMAGE)
        arguments = self._servers, self._cloud.engine, self._report, self._cores
        with service(self._cloud, self._report):
            self._trades, self._finish = Trades(*arguments), Finish(*arguments)
            fixed = self.create(FIXED_FLAVOR)
            self.trade(FIXED, fixed, 1)
            rates = elasticfigures.one_core_rates(self._found["trades"])
            steps = {name: max(1, round(rates[name] * seconds)) for name, seconds in SECONDS.items()}
            # Now, because this deletes the fixed servers: the host has no room for six.
            self.finish(STATIC, fixed, steps)
            elastic = self.create(FLAVOR)
            for kind in (RIGID, FOLLOWING):
                self.trade(kind, elastic, self._cores)
            self.change_workers(elastic[1]._replace(program=WORKERS), elastic[0], round(rates[PYTORCH.name]))
            self.finish(ELASTIC, elastic, steps)
        self.compare()
        self.refuse()

    def offer(self) -> None:
        self._report.chapter("An image with the programs, and flavors")
        with self._report.timed("image"):
            path = image.recipe().unified(self._report.say)
            self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                     visibility="public", wait=True, timeout=300)
        for name, vcpus, least in zip(FLAVORS, (self._cores, 1, 1), (1, 1, 2), strict=True):
            self._report.command(f"openstack flavor create {name} --vcpus {vcpus} --ram {MEMORY} --disk {DISK} "
                                 f"--property hpc:vcpus_min={least}")
            flavor = self._admin.compute.create_flavor(name=name, vcpus=vcpus, ram=MEMORY, disk=DISK)
            self._admin.compute.create_flavor_extra_specs(flavor, {"hpc:vcpus_min": str(least)})

    def create(self, flavor: str) -> list[Worker]:
        """Create a server for each program, and pause it: a paused one has no cores."""
        self._report.chapter(f"Three servers of the flavor {flavor}")
        workers = []
        with self._report.timed(f"servers, {flavor}"):
            for program in TRADERS:
                workers.append(self._servers.create(f"{flavor}-{program.name}", flavor, program))
                self._servers.power(workers[-1], "pause")
        return workers

    def trade(self, kind: str, workers: list[Worker], most: int) -> None:
        self._report.chapter(f"Trades: {kind}")
        with self._report.timed(f"trades, {kind}"):
            self._found["trades"][kind] = self._trades.play(kind, workers, most)

    def finish(self, way: str, workers: list[Worker], steps: dict[str, int]) -> None:
        self._report.chapter(f"Time to finish: {way}")
        with self._report.timed(f"time to finish, {way}"):
            self._found["finish"][way] = self._finish.play(way, workers, steps, following=way == ELASTIC)

    def change_workers(self, worker: Worker, other: Worker, rate: int) -> None:
        """Let workers of torch.distributed come and go with the cores of their server.

        :param worker, other: paused servers
        :param rate: steps a second
        """
        self._report.chapter(WORKERS.title)
        steps = max(20, rate * WORKERS_SECONDS)
        self._servers.power(worker, "unpause")
        self._servers.await_cores(worker, self._cores)
        self._report.say(f"{worker.server.name} runs: {WORKERS.following(steps)}")
        self._servers.run(worker, WORKERS.following(steps))
        self._await_parts(worker, self._cores)
        self._servers.power(other, "unpause")
        self._await_parts(worker, self._cores // 2)
        self._servers.power(other, "pause")
        self._await_parts(worker, self._cores)
        self._servers.await_lines(worker, jobs.ended, "its status", 300)
        lines = self._servers.lines(worker)
        wrong = jobs.complaint(WORKERS, lines, steps)
        parts = [line for line in lines if jobs.PART.fullmatch(line)]
        self._found["workers"] = {"steps": steps, "parts": parts, "complaint": wrong}
        self._report.check(worker.server.name, "has ended, each step done once by as many workers as cores",
                           wrong or "; ".join(parts), not wrong)
        self._servers.power(worker, "pause")

    def _await_parts(self, worker: Worker, count: int) -> None:
        """Wait for progress by so many workers."""
        self._servers.await_lines(worker, lambda lines: [line.parts for line in jobs.progress(lines)[-1:]] == [count],
                                  f"progress of {count} workers")

    def compare(self) -> None:
        self._report.chapter("What came of it")
        found = elasticfigures.figures(self._found["trades"], self._found["finish"], self._cores)
        self._found["figures"] = found
        for line in elasticfigures.tables(found, self._found["finish"]).splitlines():
            self._report.say(line)
        self._report.drawing = elasticfigures.plot(self._found)
        rigid, following = (found["trades"][kind]["after_a_shrink"] for kind in (RIGID, FOLLOWING))
        self._report.check(OPENMP.name, f"does at least {AIM} of the fixed one's work after a shrink if it follows",
                           str(following[OPENMP.name]), following[OPENMP.name] >= AIM)
        self._report.check(OPENMP.name, "does less than that if it does not", str(rigid[OPENMP.name]),
                           rigid[OPENMP.name] < following[OPENMP.name])

    def refuse(self) -> None:
        self._report.chapter("A job below its minimum")
        worker = self._servers.create("below", BELOW, OPENMP, "ERROR")
        self._report.check("below", "is refused", worker.server.status, worker.server.status == "ERROR")
        self._report.say((worker.server.fault or {}).get("message", ""))
        self._servers.delete([worker])


def service(cloud: Cloud, report: Report) -> "Service":
    words = ["elastic", "run", "--engine", f"lxd={cloud.engine.socket}", "--interval", "1", "--notice", "10"]
    report.command(f"containerhost {' '.join(words)}")
    return Service.begun(cloud.layout.logs / "elastic.log", [
        str(Path(sys.executable).with_name("containerhost")), *words, "--owners", str(cloud.owners), "--state",
        str(cloud.layout.run / "elastic")])


class Service(subprocess.Popen[bytes]):
    """A process that ends with the block, as a service does."""

    @classmethod
    def begun(cls, log: Path, command: Sequence[str]) -> "Service":
        with log.open("wb") as file:
            return cls(command, stdout=file, stderr=file)

    def __exit__(self, *error: object) -> None:
        self.terminate()
        self.wait(60)
