# SPDX-License-Identifier: Apache-2.0
"""The soak test: a mixed load with faults on a cloud, while memory, open files and threads of its services are counted.

Two users at once boot servers, resize them live to a GPU and a virtual function and back, reboot, pause, stop and
image them, and delete them. Devices fall off the bus and return all the time. nova-compute and the engine's daemon are
killed in the first half alone: in the second half each process must be as large as it was after its warm-up.
"""

import collections
import contextlib
import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openstack.compute.v2.server import Server
from openstack.exceptions import HttpException, NotFoundException, SDKException

from containerhost.allocation.store import AllocationStore
from tests.fakehost.control import FakeHostControl
from tools.cloud import identity, image
from tools.cloud.cloud import Cloud
from tools.cloud.hardware import Offer
from tools.cloud.identity import TENANT
from tools.showcase import placement
from tools.showcase.live import PLAIN
from tools.showcase.report import Report
from tools.showcase.story import FLAVOR, IMAGE, flavor_keys, wait_for

USERS = 2  # as many as the host has pairs of devices
SAMPLE_INTERVAL = 5.0  # s
SHOWN = 12  # one sample of so many is printed
FAULT_INTERVAL = 120.0  # s between two faults
FALLEN = 8.0  # s that a device is off the bus
AFTERMATH = 90.0  # s after a fault in which a request may fail: nova takes a device that was blocked up to 60 s later
SETTLE_TIMEOUT = 240  # s
MIB = 1 << 10  # KiB
WARM_UP = 1 / 3  # of a process's samples in the second half, in which it may grow
#: By how much each may grow beyond, absolutely and as a share: what is kept for a server, or for a request in flight.
TOLERANCE = {"memory_kib": (16 * MIB, 0.05), "files": (24, 0.0), "threads": (12, 0.0)}
THREAD = MIB  # KiB that a thread may keep
#: Up to which a service may grow at any time. Futurist's pools add a thread for each task until they are full, and keep
#: it: 64 for messages (oslo.messaging's executor_thread_pool_size), 10 for nova's own tasks; a service has a dozen
#: beside. nova-compute has a second server for messages (compute-alt), and pools for builds and live migrations.
FULL = {"threads": 86}
FULL_OF = {"nova-compute": {"threads": 170},
           # dqlite keeps the last 8,192 writes in memory: 200 MiB with LXD 5.0.2, where nothing but its API is used
           "engine": {"memory_kib": 320 * MIB}}
#: Files that LXD 5.0.2 forgets to close, about one for each start of a container, by whomever.
FORGOTTEN = "/lxc.log"
Sizes = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Sample:
    """:ivar at: seconds since the begin
    :ivar sizes: by service: the pid of its first process; KiB in RAM, open files and threads of all
    """

    at: float
    sizes: Mapping[str, Sizes]


class Soak:
    """:param offers: a GPU and a virtual function
    :param seconds: of load
    """

    def __init__(self, cloud: Cloud, offers: Sequence[Offer], report: Report, seconds: float, seed: int) -> None:
        self._cloud, self._offers, self._report, self._seconds = cloud, offers, report, seconds
        self._admin, self._hardware = cloud.connect("admin"), FakeHostControl.from_environment()
        self._chance = random.Random(seed)  # noqa: S311  (no secret)
        self._faults: list[tuple[float, str]] = []
        self._samples: list[Sample] = []
        self._over = threading.Event()

    def tell(self) -> None:
        self._offer()
        self._began = time.monotonic()
        User(self._cloud, "first", 0, self._over).serve("first", FLAVOR)  # it starts helpers that stay
        before = host_of(self._cloud)
        self._report.chapter(f"{self._seconds / 60:g} minutes of load by {USERS} users, with faults")
        self._began = time.monotonic()
        users = [User(self._cloud, f"user{number}", self._chance.random(), self._over) for number in range(USERS)]
        threads = [threading.Thread(target=work, name="soak") for work in (*(user.run for user in users), self._watch)]
        for thread in threads:
            thread.start()
        try:
            self._break()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        self._judge_requests(users)
        self._judge_sizes()
        self._judge_rest(before)
        self._report.setting["soak"] = {
            "seconds": self._seconds, "faults": self._faults, "samples": [dataclasses.asdict(each) for each in
                                                                          self._samples],
            "requests": dict(sum((user.done for user in users), collections.Counter())),
            "failures": [failure for user in users for failure in user.failures]}

    def _offer(self) -> None:
        self._report.chapter("An image and two flavors")
        path = image.build(self._cloud.layout.run / "busybox.tar.gz")
        self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                 visibility="public", wait=True, timeout=60)
        self._admin.compute.create_flavor(name=PLAIN, vcpus=1, ram=128, disk=1)
        equipped = self._admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=256, disk=1)
        self._admin.compute.create_flavor_extra_specs(equipped, flavor_keys(self._offers))
        for offer in self._offers:
            identity.register_limit(self._admin, f"class:{offer.resource_class}", 10)

    # -- faults

    def _break(self) -> None:
        """Cause faults until the time is over; a killed process is back at the end of its fault."""
        kills = ["nova-compute", self._cloud.engine.name]
        while (left := self._seconds - self._now()) > 0 and not self._over.wait(min(FAULT_INTERVAL, left)):
            if left <= FAULT_INTERVAL:
                break
            halfway = self._now() > self._seconds / 2
            self._cause(self._chance.choice(["device"] if halfway else ["device", *kills]))

    def _cause(self, fault: str) -> None:
        self._report.say(f"fault: {fault}")
        self._faults.append((self._now(), fault))
        if fault == "device":
            address = self._chance.choice([address for offer in self._offers[:1] for address in offer.addresses])
            self._hardware.set_fallen(address)
            self._over.wait(FALLEN)
            self._hardware.set_fallen(address, False)
        else:
            self._cloud.daemons.restart(fault)
        self._faults.append((self._now(), f"{fault} is back"))

    def _now(self) -> float:
        return round(time.monotonic() - self._began, 1)

    # -- sizes

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_INTERVAL):
            self._samples.append(Sample(self._now(), services_of(self._cloud)))
            if len(self._samples) % SHOWN == 0:
                self._report.say("MiB, files, threads: " + "; ".join(
                    f"{name} {sizes['memory_kib'] // MIB}, {sizes['files']}, {sizes['threads']}"
                    for name, sizes in self._samples[-1].sizes.items()))

    # -- what came of it

    def _judge_requests(self, users: Sequence["User"]) -> None:
        self._report.chapter("What came of the requests")
        done: collections.Counter[str] = sum((user.done for user in users), collections.Counter())
        for name, count in sorted(done.items()):
            self._report.say(f"{name}: {count}")
        failures = [(began, ended, text) for user in users for began, ended, text in user.failures]
        times = [at for at, _ in self._faults]
        without = [text for began, ended, text in failures
                   if not any(began - self._began - AFTERMATH <= at <= ended - self._began for at in times)]
        self._report.check("requests", "none failed without a fault at that time",
                           f"{sum(done.values())} done, {len(failures)} failed, {len(without)} without a fault "
                           f"{without[:3]}", bool(done) and not without)

    def _judge_sizes(self) -> None:
        self._report.chapter("Memory, open files and threads of each service")
        for name, lives in lives_of(self._samples).items():
            life = lives[-1]
            grown = leaks(life, FULL | FULL_OF.get(name, {}))
            first, last = life[0][1], life[-1][1]
            found = ", ".join(f"{kind} {first[kind]} -> {last[kind]}" for kind in TOLERANCE)
            self._report.check(name, "is flat", f"{found} in {life[-1][0] - life[0][0]:.0f} s" + (
                f"; grown: {', '.join(grown)}" if grown else ""), not grown)

    def _judge_rest(self, before: "collections.Counter[str]") -> None:
        self._report.chapter("What is left")
        store = AllocationStore(self._cloud.owners)
        for about, claim, ask in (
                ("nova", "no server is left", lambda: [each.name for each in
                                                       self._admin.compute.servers(all_projects=True)]),
                ("host", "no container is left", lambda: self._cloud.engine.query("/1.0/instances")),
                ("host", "no device has an owner", lambda: sorted(store.records())),
                ("placement", "nothing is in use", lambda: placement.used(self._admin))):
            left = wait_for(ask, lambda found: not found, SETTLE_TIMEOUT)
            self._report.check(about, claim, str(left) if left else "nothing", not left)
        more = wait_for(lambda: sorted((host_of(self._cloud) - before).elements()), lambda found: not found)
        self._report.check("host", "no process, mount or interface is left", ", ".join(more) or "nothing", not more)


class User:
    """Boot a server, do something with it, delete it, and so on until the end.

    :ivar done: how often each request ended well
    :ivar failures: begin and end, in seconds of time.monotonic, and what failed
    """

    def __init__(self, cloud: Cloud, name: str, seed: float, over: threading.Event) -> None:
        self._compute, self._name, self._over = cloud.connect(TENANT).compute, name, over
        self._chance = random.Random(seed)  # noqa: S311  (no secret)
        self._image = cloud.connect(TENANT).image
        self.done: collections.Counter[str] = collections.Counter()
        self.failures: list[tuple[float, float, str]] = []

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            self.serve(f"{self._name}-{number}", self._chance.choice([PLAIN, FLAVOR]))

    def serve(self, name: str, flavor: str) -> None:
        """Boot a server, do three things with it, and delete it."""
        server: Server | None = None

        def boot() -> None:
            nonlocal server
            server = self._compute.create_server(
                name=name, networks="none", flavor_id=self._flavor(flavor),
                image_id=self._image.find_image(IMAGE, ignore_missing=False).id)
            self._await(server, "ACTIVE")

        works = self._try("boot", boot)
        if server is None:
            return
        actions = self._actions(server, flavor)
        for action in self._chance.sample(sorted(actions), 3) if works else ():
            if self._over.is_set() or not self._try(action, actions[action]):
                break
        self._try("delete", lambda: self._delete(server))

    def _actions(self, server: Server, flavor: str) -> Mapping[str, Callable[[], None]]:
        flavors = [flavor, FLAVOR if flavor == PLAIN else PLAIN]

        def pair(first: str, state: str, second: str) -> Callable[[], None]:
            def act() -> None:
                getattr(self._compute, first)(server)
                self._await(server, state)
                getattr(self._compute, second)(server)
                self._await(server, "ACTIVE")
            return act

        def resize(end: str) -> Callable[[], None]:
            def act() -> None:
                self._compute.resize_server(server, self._flavor(flavors[1]))
                self._await(server, "VERIFY_RESIZE")
                getattr(self._compute, end)(server)
                self._await(server, "ACTIVE")
                if end == "confirm_server_resize":
                    flavors.reverse()
            return act

        def reboot(kind: str) -> Callable[[], None]:
            def act() -> None:
                self._compute.reboot_server(server, kind)
                self._await(server, "ACTIVE")
            return act

        def snapshot() -> None:
            made = self._compute.create_server_image(server, f"{server.name}-image", wait=True, timeout=SETTLE_TIMEOUT)
            self._await(server, "ACTIVE")
            self._image.delete_image(made)

        return {"live resize and revert": resize("revert_server_resize"),
                "live resize": resize("confirm_server_resize"),
                "soft reboot": reboot("SOFT"), "hard reboot": reboot("HARD"), "snapshot": snapshot,
                "pause": pair("pause_server", "PAUSED", "unpause_server"),
                "stop": pair("stop_server", "SHUTOFF", "start_server")}

    def _try(self, action: str, act: Callable[[], Any]) -> bool:
        began = time.monotonic()
        try:
            act()
        except (SDKException, Failed) as error:
            self.failures.append((began, time.monotonic(), f"{self._name}: {action}: {error}"))
            return False
        self.done[action] += 1
        return True

    def _await(self, server: Server, status: str) -> None:
        """Wait until the server has this status and no task.

        :raises Failed: it has another one
        """
        found = wait_for(lambda: self._compute.get_server(server.id),
                         lambda now: now.status == "ERROR" or (now.status == status and now.task_state is None),
                         SETTLE_TIMEOUT)
        if found.status != status or found.task_state:
            raise Failed(f"{found.name} is {found.status} ({found.task_state}) and not {status}: "
                         f"{(found.fault or {}).get('message', '')}")

    def _delete(self, server: Server) -> None:
        """Delete the server, again where a killed nova-compute did not."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while time.monotonic() < deadline:
            try:
                self._compute.delete_server(server)
                if wait_for(lambda: self._is_gone(server), bool):
                    return
            except HttpException:
                time.sleep(1)
        raise Failed(f"{server.name} is not deleted")

    def _is_gone(self, server: Server) -> bool:
        try:
            self._compute.get_server(server.id)
        except NotFoundException:
            return True
        return False

    def _flavor(self, name: str) -> str:
        return str(self._compute.find_flavor(name, ignore_missing=False).id)


class Failed(Exception):
    """A request did not come to its end."""


def services_of(cloud: Cloud) -> dict[str, Sizes]:
    """Return the sizes of the cloud's services, with the processes that each started in its session."""
    names = {pid: name for name, pid in cloud.daemons.pids().items()}
    found: dict[str, Sizes] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):  # it has ended
            session = int((directory / "stat").read_text().rpartition(")")[2].split()[3])
            status = dict(line.split(":", 1) for line in (directory / "status").read_text().splitlines())
            sizes = {"memory_kib": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]),
                     "files": files_of(directory)}
            service = found.setdefault(names[session], {"pid": session} | dict.fromkeys(sizes, 0))
            for kind, size in sizes.items():
                service[kind] += size
    return found


def files_of(process: Path) -> int:
    """Count the open files of a process, those without that its daemon forgot."""
    count = 0
    for each in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += FORGOTTEN not in os.readlink(each)
    return count


def host_of(cloud: Cloud) -> "collections.Counter[str]":
    """Count what requests must not leave on the host."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return collections.Counter([f"process {name}" for name in cloud.daemons.marked().values()]
                               + [f"mount {words[4]}" for words in mounts]
                               + [f"interface {each.name}" for each in Path("/sys/class/net").iterdir()])


def lives_of(samples: Sequence[Sample]) -> dict[str, list[list[tuple[float, Sizes]]]]:
    """Return the samples of each service, cut where it was started again."""
    found: dict[str, list[list[tuple[float, Sizes]]]] = {}
    for sample in samples:
        for name, sizes in sample.sizes.items():
            lives = found.setdefault(name, [])
            if not lives or lives[-1][-1][1]["pid"] != sizes["pid"]:
                lives.append([])
            lives[-1].append((sample.at, sizes))
    return found


def leaks(life: Sequence[tuple[float, Sizes]], full: Mapping[str, int]) -> list[str]:
    """Return what of a process grew after its warm-up, from the first to the last third of what is left.

    The least of each third is compared: the rest is of requests in flight.

    :param full: up to which it may grow at any time
    """
    rest = [sizes for _, sizes in life[int(len(life) * WARM_UP):]]
    third = max(1, len(rest) // 3)
    least = {kind: [min(sizes[kind] for sizes in part) for part in (rest[:third], rest[-third:])] for kind in TOLERANCE}
    threads = max(0, least["threads"][1] - least["threads"][0])
    grown = []
    for kind, (begin, end) in least.items():
        most, share = TOLERANCE[kind]
        kept = threads * THREAD if kind == "memory_kib" else 0
        if end - max(begin + kept, full.get(kind, 0)) > max(most, share * begin):
            grown.append(f"{kind} {begin} -> {end}")
    return grown
