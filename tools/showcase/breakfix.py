# SPDX-License-Identifier: Apache-2.0
"""The story of GPUs that break under servers: the servers are told and go on, the GPUs are repaired and return.

Emulated are the GPU that falls off the bus and its return, which at a real site is a power cycle or a new card. What
follows from either is done by nova-compute, the elastic service and examples/breakfix/repair.py alone.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from tests.fakehost.control import FakeHostControl
from tools.cloud import identity, services
from tools.cloud.cloud import Cloud
from tools.cloud.hardware import Offer
from tools.cloud.layout import CHECKOUT
from tools.debianimage import DebianImage, File
from tools.elasticjobs import image
from tools.elasticjobs.jobs import Program
from tools.showcase import elastic, selftest
from tools.showcase.elasticservers import Servers, Worker
from tools.showcase.report import Report
from tools.showcase.story import wait_for

REPAIR = CHECKOUT / "examples" / "breakfix" / "repair.py"
IMAGE, FLAVOR = "gpu-pool", "hpc.gpu2"
PACKAGES = ("busybox-static", "python3")
MOST = 10  # GPUs of a project: more than there are
TIMEOUT = 300  # s; nova-compute looks once a minute
TASKS = 10**6
COMMAND_TIMEOUT = 300  # s
DONE = re.compile(r"done ([0-9]+) \S+")
TRAIN = Program("train", "a process for each GPU", "tasks", lambda steps, parts: "",
                lambda steps: f"/{image.PROGRAMS}/gpu_pool.py {steps}")
Found = Mapping[str, Any]


def recipe() -> DebianImage:
    program = f"{image.PROGRAMS}/gpu_pool.py"
    return DebianImage(CHECKOUT / ".cache" / "breakfix", PACKAGES, {
        **image.base(), program: File((image.EXAMPLES / "gpu_pool.py").read_bytes(), 0o755)}, image.LINKS)


def working(lines: Iterable[str]) -> set[str]:
    """Return the GPUs that have a process, of what examples/elastic/gpu_pool.py printed."""
    found: set[str] = set()
    for word, *_, gpu in filter(None, map(str.split, lines)):
        found = found | {gpu} if word == "start" else found - {gpu} if word == "stop" else found
    return found


def disorder(lines: Sequence[str]) -> str:
    """Return which task was lost, done twice, or left out by more than the two that are worked on; "" if none was."""
    if lost := [line for line in lines if line.startswith("lost")]:
        return lost[0]
    done = [int(match[1]) for match in map(DONE.fullmatch, lines) if match]
    if len(done) != len(set(done)):
        return "a task was done twice"
    left = sorted(set(range(max(done, default=-1))) - set(done))
    return f"tasks {left} were not done" if len(left) > 1 else ""


def fall(hardware: FakeHostControl, gpu: str) -> str:
    """Have a GPU fall off the bus, and return what the kernel says."""
    hardware.set_fallen(gpu)
    xid = f"NVRM: Xid (PCI:{gpu.rpartition('.')[0]}): 79, GPU has fallen off the bus."
    hardware.say(xid)
    return xid


def repair(cloud: Cloud, report: Report, log: Path) -> elastic.Service:
    """Start the program that resets broken GPUs.

    :param log: for its lines of JSON
    """
    config = services.compute_file(cloud.layout)
    report.command(f"examples/breakfix/repair.py {config.name} containerhost scrub {{device}}")
    return elastic.Service.begun(log, [sys.executable, str(REPAIR), str(config), selftest.CONTAINERHOST, "scrub",
                                       "{device}", "--owners", str(cloud.owners)])


class BreakfixStory:
    """:param gpus: what servers ask for; the host has two of them"""

    def __init__(self, cloud: Cloud, gpus: Offer, report: Report) -> None:
        self._cloud, self._gpus, self._report = cloud, gpus, report
        self._admin, self._hardware = cloud.connect("admin"), FakeHostControl.from_environment()
        self._log, self._store = cloud.layout.logs / "repair.log", AllocationStore(cloud.owners)
        self._kept, self._broken = gpus.addresses

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        self.offer()
        self._servers = Servers(self._cloud, self._report, IMAGE)
        with elastic.service(self._cloud, self._report), repair(self._cloud, self._report, self._log):
            train = self.train("train-1")
            self.break_one(train)
            self.restart_nova(train)
            self.refuse("one GPU is broken, and the other one taken")
            self.mend(train)
            self.delete_while_broken(train)
            train = self.train("train-3")
            self.maintain(train)

    def offer(self) -> None:
        self._report.chapter("A flavor with two GPUs, of which a server can do without one")
        with self._report.timed("image"):
            self._admin.create_image(IMAGE, filename=str(recipe().unified(self._report.say)), disk_format="raw",
                                     container_format="bare", visibility="public", wait=True, timeout=300)
        keys = {"pci_passthrough:alias": f"{self._gpus.alias}:2", "hpc:gpus_min": "1"}
        properties = " ".join(f"--property {key}={value}" for key, value in keys.items())
        self._report.command(f"openstack flavor create {FLAVOR} --vcpus 1 --ram 256 --disk 2 {properties}")
        flavor = self._admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=256, disk=2)
        self._admin.compute.create_flavor_extra_specs(flavor, keys)
        identity.register_limit(self._admin, f"class:{self._gpus.resource_class}", MOST)

    def train(self, name: str) -> Worker:
        self._report.chapter(f"{name} works with both GPUs")
        self._await("placement", "has both GPUs for servers", self._offered, lambda found: found == 2)
        worker = self._servers.create(name, FLAVOR, TRAIN)
        self._servers.run(worker, TRAIN.following(TASKS))
        self._await(name, "has a process for each GPU", lambda: working(self._servers.lines(worker)),
                    lambda found: found == {self._kept, self._broken})
        return worker

    def break_one(self, train: Worker) -> None:
        self._report.chapter("A GPU falls off the bus")
        done = len(self._servers.lines(train))
        self._fall()
        self._await("host", "the server goes on without it", self._states, lambda found: found == {
            self._kept: State.ATTACHED, self._broken: State.DETACHED}, "fault: detached")
        self._await(train.server.name, "its program works with the other one",
                    lambda: working(self._servers.lines(train)), lambda found: found == {self._kept})
        self._await("operator", "is notified by nova", self._notified,
                    lambda found: found == [(self._broken, "detached", train.server.id)], "fault: operator notified")
        self._await(train.server.name, "is told what is wrong", lambda: self._faults(train),
                    lambda found: found.startswith(self._broken), "fault: server told")
        self._await("operator", "a repair was tried and failed: it does not answer", self._last_repair,
                    lambda found: found.get("status") == 1, "fault: first repair tried")
        lines = wait_for(lambda: self._servers.lines(train), lambda now: len(now) > done + 50)
        self._report.check(train.server.name, "has worked on meanwhile", f"{len(lines) - done} lines more",
                           len(lines) > done + 50)

    def restart_nova(self, train: Worker) -> None:
        self._report.chapter("nova-compute restarts meanwhile")
        self._cloud.daemons.stop(["nova-compute"])
        self._cloud.daemons.bring_up([services.compute_daemon(self._cloud.layout)])
        self._cloud.wait_for_compute(self._admin)
        # The first look of the new process tells all once more.
        told = len(self._said("devices"))
        self._await("operator", "is notified by the new process of what holds", lambda: len(self._said("devices")),
                    lambda now: now > told)
        status, states = self._admin.compute.get_server(train.server.id).status, self._states()
        self._report.check(train.server.name, "is as it was", f"{status}: {states}", status == "ACTIVE"
                           and states == {self._kept: State.ATTACHED, self._broken: State.DETACHED})

    def refuse(self, why: str) -> None:
        worker = self._servers.create("other", FLAVOR, TRAIN, "ERROR")
        self._report.check("other", f"is refused: {why}", (worker.server.fault or {}).get("message", ""),
                           worker.server.status == "ERROR")
        self._servers.delete([worker])

    def mend(self, train: Worker) -> None:
        self._report.chapter("It answers again, and nobody lifts a hand")
        self._answer()
        self._await("operator", "its repair succeeds", self._last_repair, lambda found: found.get("status") == 0,
                    "answers: reset")
        self._await("host", "the server has it again", self._states, lambda found: found == {
            self._kept: State.ATTACHED, self._broken: State.ATTACHED}, "answers: attached")
        self._await(train.server.name, "its program works with both",
                    lambda: working(self._servers.lines(train)), lambda found: found == {self._kept, self._broken},
                    "answers: both work")
        self._await("operator", "is notified that no device is broken", self._notified, lambda found: found == [],
                    "answers: operator notified")
        self._await(train.server.name, "is told that it is over", lambda: self._faults(train), lambda found: not found)
        wrong = disorder(self._servers.lines(train))
        self._report.check(train.server.name, "no task was lost or done twice", wrong or "none", not wrong)
        self._report.check("host", "it was reset once", str(self._hardware.resets()),
                           self._hardware.resets() == [self._broken])

    def delete_while_broken(self, train: Worker) -> None:
        self._report.chapter("It falls off the bus again, and its server is deleted")
        self._fall()
        self._await("host", "the server goes on without it", self._states,
                    lambda found: found.get(self._broken) == State.DETACHED)
        self._servers.delete([train])
        self._await("host", "it is blocked, the other one is free", self._states,
                    lambda found: found == {self._broken: State.BLOCKED})
        self._await("operator", "is notified", self._notified,
                    lambda found: found == [(self._broken, "blocked", train.server.id)])
        self.refuse("one GPU is blocked")
        self._answer()
        self._await("host", "it is cleaned and free", self._states, lambda found: found == {},
                    "answers: blocked one is free")
        self._await("operator", "is notified that no device is broken", self._notified, lambda found: found == [])

    def maintain(self, train: Worker) -> None:
        self._report.chapter("Planned maintenance: drain, reset, test, untaint")
        with self._report.timed("drain with notice"):
            self._run("drain", self._broken, "--reason", "fan is replaced", "--timeout", "60")
        self._await(train.server.name, "its program works with the other one",
                    lambda: working(self._servers.lines(train)), lambda found: found == {self._kept})
        self._servers.delete([train])
        self._await("host", "both are free", self._states, lambda found: found == {})
        self._await("operator", "is notified that one is kept back", self._notified,
                    lambda found: found == [(self._broken, "free", None)])
        self.refuse("one GPU is tainted")
        with self._report.timed("reset"):
            self._run("scrub", self._broken)
        selftest.run(self._cloud, self._report, ("--gpu", self._broken))
        self._run("untaint", self._broken)
        self._await("operator", "is notified that none is", self._notified, lambda found: found == [])
        last = self.train("train-4")
        self._servers.delete([last])
        self._await("host", "all is free", self._states, lambda found: found == {})

    # -- helpers

    def _fall(self) -> None:
        self._began = time.monotonic()
        self._report.say(f"{self._broken} reads ff, and the kernel says: {fall(self._hardware, self._broken)}")

    def _answer(self) -> None:
        self._began = time.monotonic()
        self._hardware.set_fallen(self._broken, False)
        self._report.say(f"{self._broken} answers again, as after a power cycle; its Xid 79 stands until it is reset")

    def _said(self, key: str) -> list[Found]:
        """Return the lines of the repairing program that have this key."""
        *lines, _ = self._log.read_text().split("\n")
        return [found for line in lines if line.startswith("{") and key in (found := json.loads(line))]

    def _notified(self) -> list[tuple[str, str, str | None]] | None:
        """Return device, state and server of those in the last notification; None before the first."""
        for found in self._said("devices")[-1:]:
            return [(each["device"], each["state"], each["instance_uuid"]) for each in found["devices"]]
        return None

    def _last_repair(self) -> Found:
        return (self._said("repaired") or [{}])[-1]

    def _states(self) -> dict[str, str]:
        return {name: str(record.state) for name, record in self._store.records().items()}

    def _offered(self) -> int:
        """Return how many GPUs Placement has for servers."""
        # A provider may go between the two requests: of reserved devices, that is.
        found = [self._admin.placement.get(f"/resource_providers/{provider.id}/inventories").json()
                 .get("inventories", {}).get(self._gpus.resource_class)
                 for provider in self._admin.placement.resource_providers()]
        return sum(entry["total"] - entry["reserved"] for entry in filter(None, found))

    def _faults(self, worker: Worker) -> str:
        return self._cloud.engine.inside(worker.container, "containerhost-guest", "faults").out

    def _await(self, about: str, claim: str, ask: Callable[[], Any], holds: Callable[[Any], bool], timing: str = ""
               ) -> None:
        """Wait until a fact holds, and note it.

        :param timing: under which the seconds since the hardware changed are kept
        """
        found = wait_for(ask, holds, TIMEOUT)
        if timing:
            self._report.timings[timing] = round(time.monotonic() - self._began, 1)
        self._report.check(about, claim, str(found) or "nothing", holds(found))

    def _run(self, *words: str) -> None:
        self._report.command(f"containerhost {shlex.join(words)}")
        owners = [] if words[0] == "untaint" else ["--owners", str(self._cloud.owners)]
        done = subprocess.run([selftest.CONTAINERHOST, *words, *owners], text=True, capture_output=True,
                              timeout=COMMAND_TIMEOUT, check=False)
        self._report.check("containerhost", words[0], done.stdout.strip() or done.stderr.strip(), done.returncode == 0)
