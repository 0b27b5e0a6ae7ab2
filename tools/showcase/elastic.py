# SPDX-License-Identifier: Apache-2.0
"""The story of three servers that trade cores: a program that follows its cores, one that does not, and fixed sizes.

The elastic service divides the cores of this machine. Two servers come and go every few seconds by nova's start and
stop, and take cores from the first one and give them back. What is compared is the first one's work for each second of
CPU time that it had, so that other load of the machine makes no difference.
"""

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openstack.compute.v2.server import Server

from tools.cloud import image
from tools.cloud.cloud import Cloud
from tools.cloud.engine import Output
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT
from tools.showcase import elasticplot
from tools.showcase.elasticplot import Point
from tools.showcase.report import Report
from tools.showcase.story import wait_for

IMAGE = "busybox"
ELASTIC, FIXED, BELOW = "elastic", "fixed", "elastic.below"
PROGRAM = CHECKOUT / "examples/elastic/openmp.c"
TRADES = 6
TURN = 6.0  # s of work between two trades
AIM = 0.85  # of the fixed one's work
NANOSECONDS = 10**9
LINE = re.compile(r"([0-9]+) threads ([0-9]+) regions/s")
START = """cd /root; pkill openmp; export OMP_WAIT_POLICY=active OMP_NUM_THREADS=$1
setsid ./openmp $2 >> out 2>&1 < /dev/null &"""


class Turn(NamedTuple):
    """Hold the measurements of the first server between two trades.

    :ivar regions: parallel regions
    :ivar cpu: seconds of CPU time
    :ivar busy: those of all servers
    :ivar seconds: of the wall clock
    """

    cores: int
    regions: float
    cpu: float
    busy: float
    seconds: float


class ElasticStory:
    def __init__(self, cloud: Cloud, report: Report) -> None:
        self._cloud, self._report = cloud, report
        self._admin, self._tenant = cloud.connect("admin"), cloud.connect(TENANT)
        self._cores = len(os.sched_getaffinity(0))
        self._program = cloud.layout.run / "openmp"
        self._turns: dict[str, list[Turn]] = {}

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        if self._cores < 2:
            raise RuntimeError("This machine has one core, so there is none to trade.")
        self.offer()
        with self._service():
            for kind, flavor, words in (("fixed", FIXED, "rigid"), ("rigid", ELASTIC, "rigid"),
                                        ("following", ELASTIC, "")):
                self.trade(kind, flavor, words)
        self.compare()
        self.refuse()

    def offer(self) -> None:
        self._report.chapter("A program, an image, and flavors")
        self._report.command(f"gcc -O2 -fopenmp -static {PROGRAM.relative_to(CHECKOUT)} -o openmp")
        subprocess.run(["gcc", "-O2", "-fopenmp", "-static", str(PROGRAM), "-o", str(self._program)], check=True,
                       timeout=120)
        path = image.build(self._cloud.layout.run / "busybox.tar.gz")
        self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                 visibility="public", wait=True, timeout=60)
        for name, vcpus, keys in ((ELASTIC, self._cores, {"hpc:vcpus_min": "1"}), (FIXED, self._cores // 2, {}),
                                  (BELOW, 1, {"hpc:vcpus_min": "2"})):
            properties = "".join(f" --property {key}={value}" for key, value in keys.items())
            self._report.command(f"openstack flavor create {name} --vcpus {vcpus} --ram 128 --disk 1{properties}")
            flavor = self._admin.compute.create_flavor(name=name, vcpus=vcpus, ram=128, disk=1)
            self._admin.compute.create_flavor_extra_specs(flavor, keys)

    def _service(self) -> "Service":
        words = ["elastic", "run", "--engine", f"lxd={self._cloud.engine.socket}", "--interval", "1", "--notice", "10"]
        self._report.command(f"containerhost {' '.join(words)}")
        with (self._cloud.layout.logs / "elastic.log").open("wb") as log:
            return Service([str(Path(sys.executable).with_name("containerhost")), *words, "--owners",
                            str(self._cloud.owners), "--state", str(self._cloud.layout.run / "elastic")],
                           stdout=log, stderr=log)

    def trade(self, kind: str, flavor: str, words: str) -> None:
        """Let two servers come and go beside one that works."""
        self._report.chapter(f"Trades: {kind}")
        servers = [self._create(f"{kind}-{number}", flavor) for number in range(3)]
        first, *others = servers
        for server in others:
            self._power(server, "stop", "SHUTOFF")
        self._await_cores(first, self._cores if flavor == ELASTIC else self._cores // 2)
        self._work(first, words)
        self._turns[kind] = [self._turn(kind, first, None)]
        for other in itertools.islice(itertools.cycle(others), TRADES // 2):
            self._power(other, "start", "ACTIVE")
            self._await_cores(first, self._cores // 2)
            self._work(other, "")
            self._turns[kind].append(self._turn(kind, first, other))
            self._power(other, "stop", "SHUTOFF")
            self._await_cores(first, self._cores if flavor == ELASTIC else self._cores // 2)
            self._turns[kind].append(self._turn(kind, first, None))
        self._report.check(first.name, "has run through all trades", f"{TRADES}", self._alive(first))
        for server in servers:
            self._tenant.compute.delete_server(server)
        wait_for(lambda: self._cloud.engine.query("/1.0/instances"), lambda left: not left)

    def compare(self) -> None:
        self._report.chapter("What came of it")
        fixed = self._rate("fixed", self._cores // 2)
        work = sum(turn.regions for turn in self._turns["fixed"])
        rows: dict[str, Any] = {}
        for kind, turns in self._turns.items():
            seconds = sum(turn.seconds for turn in turns)
            regions = sum(turn.regions for turn in turns)
            rows[kind] = {
                "regions": round(regions), "regions_per_second": round(regions / seconds),
                "seconds_for_the_fixed_ones_work": round(work / max(regions / seconds, 1e-9), 1),
                "utilisation": round(sum(turn.busy for turn in turns) / seconds / self._cores, 2),
                "after_a_shrink": round(self._rate(kind, self._cores // 2) / fixed, 4),
                "turns": [turn._asdict() for turn in turns]}
            self._report.say(f"{kind.ljust(10)} {rows[kind]['regions_per_second']:>8} regions/s in all, the fixed "
                             f"one's work in {rows[kind]['seconds_for_the_fixed_ones_work']} s, utilisation "
                             f"{rows[kind]['utilisation']:.2f}, after a shrink {rows[kind]['after_a_shrink']:.4f} of "
                             "the fixed one's work for each second of CPU time")
            self._report.say(f"{'':10} cores over time: {' '.join(str(turn.cores) for turn in turns)}")
        self._report.setting["elastic"] = rows
        self._report.drawing = elasticplot.draw({
            kind: [Point(turn.cores, turn.regions / turn.seconds) for turn in turns]
            for kind, turns in self._turns.items()})
        self._report.check("following", f"does at least {AIM} of the fixed one's work after a shrink",
                           str(rows["following"]["after_a_shrink"]), rows["following"]["after_a_shrink"] >= AIM)
        self._report.check("rigid", "does less than the following one after a shrink",
                           str(rows["rigid"]["after_a_shrink"]),
                           rows["rigid"]["after_a_shrink"] < rows["following"]["after_a_shrink"])

    def _rate(self, kind: str, cores: int) -> float:
        """Return regions for each second of CPU time, while it had so many cores and another server worked."""
        turns = [turn for turn in self._turns[kind][1::2] if turn.cores == cores]
        return sum(turn.regions for turn in turns) / max(sum(turn.cpu for turn in turns), 1e-9)

    def refuse(self) -> None:
        self._report.chapter("A job below its minimum")
        server = self._create("below", BELOW, "ERROR")
        reason = (self._tenant.compute.get_server(server.id).fault or {}).get("message", "")
        self._report.check("below", "is refused", server.status, server.status == "ERROR")
        if reason:
            self._report.say(reason)
        self._tenant.compute.delete_server(server)

    # -- helpers

    def _create(self, name: str, flavor: str, expected: str = "ACTIVE") -> Server:
        self._report.command(f"openstack server create --flavor {flavor} --image {IMAGE} --nic none {name}")
        compute = self._tenant.compute
        server = compute.create_server(name=name, networks="none", image_id=self._tenant.image.find_image(IMAGE).id,
                                       flavor_id=compute.find_flavor(flavor, ignore_missing=False).id)
        found = wait_for(lambda: compute.get_server(server.id), lambda now: now.status in ("ACTIVE", "ERROR"))
        if found.status != expected:
            raise RuntimeError(f"{name} is {found.status} and not {expected}: {(found.fault or {}).get('message')}")
        return found

    def _power(self, server: Server, action: str, status: str) -> None:
        self._report.command(f"openstack server {action} {server.name}")
        getattr(self._tenant.compute, f"{action}_server")(server)
        wait_for(lambda: self._tenant.compute.get_server(server.id), lambda now: now.status == status)

    def _work(self, server: Server, words: str) -> None:
        name = self._container(server)
        if self._inside(server, "test", "-x", "/root/openmp").status:
            self._cloud.engine.push(self._program, name, "/root/openmp")
        self._inside(server, "sh", "-c", START, "sh", self._inside(server, "nproc").out, words)
        wait_for(lambda: self._lines(server), lambda lines: len(lines) > 1)

    def _turn(self, kind: str, first: Server, other: Server | None) -> Turn:
        """Let them work for a while, from one line of the program's to another."""
        every = [first, *([other] if other else [])]
        seen, began, used = len(self._lines(first)), time.monotonic(), [self._cpu(server) for server in every]
        wait_for(lambda: time.monotonic() - began, lambda passed: passed >= TURN)
        lines, seconds = self._lines(first)[seen:], time.monotonic() - began
        spent = [self._cpu(server) - before for server, before in zip(every, used, strict=True)]
        cores = int(self._inside(first, "nproc").out)
        rates = [float(match[2]) for line in lines if (match := LINE.fullmatch(line))]
        regions = sum(rates) / max(len(rates), 1) * seconds
        self._report.say(f"{kind}: {cores} cores, {regions / seconds:.0f} regions/s, {spent[0] / seconds:.2f} busy")
        return Turn(cores, regions, spent[0], sum(spent), seconds)

    def _lines(self, server: Server) -> Sequence[str]:
        return self._inside(server, "cat", "/root/out").out.splitlines()

    def _cpu(self, server: Server) -> float:
        state = self._cloud.engine.query(f"/1.0/instances/{self._container(server)}/state")
        return float(state["cpu"]["usage"]) / NANOSECONDS

    def _await_cores(self, server: Server, count: int) -> None:
        found = wait_for(lambda: self._inside(server, "nproc").out, lambda now: now == str(count))
        self._report.check(server.name, f"has {count} cores", found, found == str(count))

    def _alive(self, server: Server) -> bool:
        return not self._inside(server, "pidof", "openmp").status

    def _container(self, server: Server) -> str:
        return str(self._admin.compute.get_server(server.id).instance_name)

    def _inside(self, server: Server, *command: str) -> Output:
        return self._cloud.engine.inside(self._container(server), *command)


class Service(subprocess.Popen[bytes]):
    """A process that ends with the block, as a service does."""

    def __exit__(self, *error: object) -> None:
        self.terminate()
        self.wait(60)
