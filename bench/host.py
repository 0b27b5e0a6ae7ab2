#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One host with ever more containers: what nova's periodic tasks, monitoring and the operator's commands cost.

    sudo .venv/bin/python bench/host.py [--containers N] [--running N] [--runs N] [--engine lxd|docker] [--json]

The host gets containers in four steps: a 200th, a 20th, half and all of --containers; of each step the same share runs.
On LXD each container is both nova's and OpenNebula's. Each has a device in the records: a network function of a second
host, which is a tree of files. For each step: seconds, processor time of the driver or command, and of the daemon, each
the least of --runs, because other processes only add.

Power states and resources are compared with one raw list of the containers in the same run, vm/status with two; aim <=
1.3 times. vm/monitor with all containers: aim <= 0.5 s. Growth is the exponent of the number of containers between the
last two steps, 1 is linear; aim <= 1.2 for tasks of 20 ms and more. A host needs the settings of etc/sysctl for so many
containers.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import emulated
import scan
import stage
from census import resident
from raw import Raw, RawDocker

import lxdone.backend
import lxdone.conf
import onedock.backend
import onedock.conf
from containerhost.allocation.record import Allocation, Consumer, State
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Role
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.inventory.scan import scan as scan_host
from containerhost.linux.sysfs import Host
from lxdone.root import root_state
from nova_lxd_ext.host.resources import Resources
from nova_lxd_ext.instance import labels
from onedriver.node.measure import Measure
from onedriver.node.names import LABEL, name
from tests.commands import python_path
from tests.fakehost import tree
from tests.functional_docker.dockerd import Docker

PARTS = (200, 20, 2, 1)  # of all containers
AIM_RATIO, AIM_MONITOR, AIM_GROWTH = 1.3, 0.5, 1.2
LEAST = 0.02  # s; what is quicker grows by chance
WORKERS = 4  # containers made at once
LIST, STATUS, MONITOR = "one raw list", "vm/status", "vm/monitor"
LISTS = {"power states": 1, "resources": 1, STATUS: 2}  # made of so many lists
TICKS = os.sysconf("SC_CLK_TCK")
EXPORTER = "127.0.0.1:9869"


@dataclasses.dataclass(frozen=True)
class Cost:
    """Hold the seconds that a task takes.

    :ivar own: processor time of the process that does it
    :ivar daemon: processor time of the engine's daemon
    """

    wall: float
    own: float
    daemon: float


@dataclasses.dataclass(frozen=True)
class Step:
    """:ivar costs: by task
    :ivar memory: KiB in RAM, by service
    """

    containers: int
    running: int
    costs: Mapping[str, Cost]
    memory: Mapping[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--containers", 2000), ("--running", 500), ("--runs", 7)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--engine", choices=["lxd", "docker"], default="lxd")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    emulated.enter()
    steps = []
    with {"lxd": OnLxd, "docker": OnDocker}[chosen.engine](chosen.containers) as filled:
        for count in sorted({max(1, chosen.containers // part) for part in PARTS}):
            steps.append(step(filled, count, max(1, count * chosen.running // chosen.containers), chosen.runs))
            print(json.dumps(dataclasses.asdict(steps[-1])), file=sys.stderr, flush=True)
        filled.clear()
    missed = list(misses(steps))
    if chosen.json:
        print(json.dumps({"engine": chosen.engine, "steps": [dataclasses.asdict(each) for each in steps],
                          "growth": growth(steps), "missed": missed}))
    else:
        print(text(steps), *missed, sep="\n")
    return int(bool(missed))


def step(filled: "Filled", count: int, running: int, runs: int) -> Step:
    begin = time.monotonic()
    filled.fill(count, running)
    print(f"{count} containers, {running} running; made the missing ones in {time.monotonic() - begin:.0f} s",
          file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-host-", dir=scan.MEMORY) as directory:
        equipped = Equipped(Path(directory), count, filled.driver, filled.engine)
        costs = measured(filled.tasks(equipped), runs, filled.pid, filled.stale)
        costs |= measured(filled.slow_tasks(), 1, filled.pid, filled.stale)
        memory = {filled.engine: resident(filled.pid), "driver": resident()}
        costs |= measured({"containerhost list": equipped.list}, runs, filled.pid, lambda: None)
        with equipped.exporter() as process:
            costs |= measured({"exporter: scrape": equipped.scrape}, runs, filled.pid, lambda: None, process.pid)
            memory["exporter"] = resident(process.pid)
    return Step(count, running, costs, memory)


# The host of the devices, and the commands that read it.


class Equipped:
    """A host that is a tree of files, with a network function for each container, and the records of who has them.

    :ivar root: of the tree
    :ivar owners: directory of the records
    """

    def __init__(self, directory: Path, containers: int, driver: str, engine: str) -> None:
        self.directory, self.root, self.owners = directory, directory / "host", directory / "owners"
        tree.write(scan.host(containers * 11 // 10 + 2 * scan.VFS), self.root)
        self.host = Host(self.root)
        functions = [device for device in scan_host(self.host).devices if device.role is Role.VF][:containers]
        store = AllocationStore(self.owners, host=self.host)
        with store._locked():
            store._add([Allocation(function.id, Consumer(driver, engine, name(number), str(number)),
                                   state=State.ATTACHED) for number, function in enumerate(functions, 1)])
        self.environment = os.environ | {"PYTHONPATH": python_path()}

    def _command(self, *words: str) -> list[str]:
        begin = "from containerhost.operator.cli import main; main()"
        return [sys.executable, "-c", begin, *words, "--root", str(self.root), "--owners", str(self.owners)]

    def list(self) -> None:
        subprocess.run(self._command("list"), env=self.environment, check=True, stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def exporter(self) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(self._command("exporter", "--listen", EXPORTER), env=self.environment,
                              stdout=subprocess.PIPE, text=True) as process:
            if not process.stdout or not process.stdout.readline():
                raise RuntimeError("the exporter does not start")
            try:
                yield process
            finally:
                process.terminate()

    @staticmethod
    def scrape() -> None:
        with urllib.request.urlopen(f"http://{EXPORTER}/metrics") as answer:
            answer.read()


# What is filled.


class Filled:
    """A host with an engine, to which containers are added. They are VMs of OpenNebula.

    :cvar engine, driver: their names
    :ivar pid: the engine's daemon
    """

    engine: str
    driver: str
    pid: int

    def __init__(self) -> None:
        self._scene = contextlib.ExitStack()
        self._made = self._running = 0

    def __enter__(self) -> "Filled":
        return self

    def __exit__(self, *reason: Any) -> None:
        self._scene.close()

    def fill(self, count: int, running: int) -> None:
        """Add containers until there are so many, and start some."""
        parallel(self._make, range(self._made + 1, count + 1))
        parallel(self._start, range(self._running + 1, running + 1))
        self._made, self._running = count, running

    def clear(self) -> None:
        """Remove all containers by several at once; the fixtures do it one by one."""
        parallel(self._delete, range(1, self._made + 1))

    def tasks(self, equipped: Equipped) -> dict[str, Callable[[], Any]]:
        """Return what is measured, by name; the raw list of the containers is among it."""
        raise NotImplementedError

    def slow_tasks(self) -> dict[str, Callable[[], Any]]:
        """Return what takes so long that it is measured once."""
        return {}

    def stale(self) -> None:
        """Forget what may be remembered for less time than is between two rounds."""

    def _make(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def _start(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def _delete(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError


class OnLxd(Filled):
    """The containers are nova's, too."""

    engine, driver = "lxd", "lxdone"

    def __init__(self, most: int) -> None:
        super().__init__()
        scene = self._stage = self._scene.enter_context(stage.Stage())
        scene.conf.set_override("instance_name_template", "one-%d")
        self._servers = [scene.server(number) for number in range(1, most + 1)]
        self.pid = scene.lxd.daemon.pid or 0
        first = self._servers[0]
        scene.driver.spawn(None, first, scene.image_meta, [], None, {}, power_on=False)
        self._body = self._raw().call("GET", f"instances/{first.name}")
        scene.driver.destroy(None, first, None)

    def _raw(self) -> Raw:
        return Raw(self._stage.lxd.socket)

    def _make(self, numbers: Sequence[int]) -> None:
        raw = self._raw()
        config = {key: text for key, text in self._body["config"].items()
                  if not key.startswith(("volatile.", "image."))}
        # Ids of its own for each of a thousand are more than a machine usually has in /etc/subuid.
        config["security.idmap.isolated"] = "false"
        for number in numbers:
            server = self._servers[number - 1]
            own = {f"user.{key}": text for key, text in {**labels.of(server), LABEL: str(number)}.items()}
            raw.call("POST", "instances", {
                "name": server.name, "type": "container", "profiles": [], "devices": self._body["devices"],
                "config": config | own, "source": {"type": "image", "fingerprint": self._stage.image}})

    def _start(self, numbers: Sequence[int]) -> None:
        raw = self._raw()
        for number in numbers:
            raw.call("PUT", f"instances/{name(number)}/state", {"action": "start", "timeout": 60})

    def _delete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._stage.lxd.engine.delete(name(number))

    def slow_tasks(self) -> dict[str, Callable[[], Any]]:
        raw = self._raw()
        return {"one raw list with states": lambda: raw.call("GET", "instances?recursion=2")}

    def stale(self) -> None:
        self._stage.driver._backend.states.changed()

    def tasks(self, equipped: Equipped) -> dict[str, Callable[[], Any]]:
        driver, raw, scene = self._stage.driver, self._raw(), self._stage
        servers = self._servers[:self._made]
        resources = Resources(scene.lxd.engine, equipped.host, lambda: scan_host(equipped.host),
                              AllocationStore(equipped.owners), scene.lxd.pool)

        def power_states() -> None:
            if driver.get_num_instances() != len([driver.get_info(server).state for server in servers]):
                raise RuntimeError("the driver does not see every container")

        options = lxdone.conf.Options(
            endpoint=scene.lxd.socket, storage_pool=scene.lxd.pool, owners=str(equipped.owners),
            state=str(equipped.directory / "state"), datastores=str(equipped.directory / "datastores"))
        self._keep_roots(options)
        return {
            LIST: lambda: raw.call("GET", "instances?recursion=1"),
            "power states": power_states,
            "list_instance_uuids": driver.list_instance_uuids,
            "resources": lambda: driver.get_available_resource("bench"),
            "resources, devices in all": lambda: resources.available("bench"),
            "image cache": lambda: driver.manage_image_cache(None, servers),
        } | probes(lxdone.backend.measure(options), equipped, self._made, self._running)

    def _keep_roots(self, options: lxdone.conf.Options) -> None:
        """Write what a node keeps of each VM: which disk its root is of."""
        for number in range(1, self._made + 1):
            home, disk = Path(options.state, name(number)), Path(options.datastores, "0", str(number), "disk.0")
            for directory in (home, disk.parent):
                directory.mkdir(parents=True)
            disk.touch()
            root_state.write(home, root_state.RootState(str(disk), 1 << 30, False, None, None, "", unsaved=False))


class OnDocker(Filled):
    engine, driver = "docker", "onedock"

    def __init__(self, most: int) -> None:
        super().__init__()
        self._daemon = self._scene.enter_context(Docker()).daemon
        self.pid = self._daemon._process.pid

    def _raw(self) -> RawDocker:
        return RawDocker(self._daemon.endpoint)

    def _make(self, numbers: Sequence[int]) -> None:
        engine = self._daemon.engine()
        for number in numbers:
            engine.create(ContainerSpec(name(number), "polite", Cpu(1), Memory(128 << 20), RootDisk("any"),
                                        labels={LABEL: str(number)}))

    def _start(self, numbers: Sequence[int]) -> None:
        engine = self._daemon.engine()
        for number in numbers:
            engine.start(name(number))

    def _delete(self, numbers: Sequence[int]) -> None:
        engine = self._daemon.engine()
        for number in numbers:
            engine.delete(name(number))

    def tasks(self, equipped: Equipped) -> dict[str, Callable[[], Any]]:
        raw = self._raw()
        measure = onedock.backend.measure(onedock.conf.Options(
            endpoint=self._daemon.endpoint, records=str(self._daemon.records), owners=str(equipped.owners),
            state=str(equipped.directory / "state"), datastores=str(equipped.directory / "datastores")))
        return {LIST: lambda: raw.call("GET", "/containers/json?all=1")} | probes(
            measure, equipped, self._made, self._running)


def probes(measure: Measure, equipped: Equipped, containers: int, running: int) -> dict[str, Callable[[], Any]]:
    measure._host = equipped.host

    def lines_of(probe: Callable[[], str], count: int) -> None:
        if (found := sum(line.startswith("VM") for line in probe().splitlines())) != count:
            raise RuntimeError(f"{probe.__name__} reports {found} of {count} VMs")

    return {STATUS: lambda: lines_of(measure.vm_status, containers),
            MONITOR: lambda: lines_of(measure.vm_monitor, running), "host/system": measure.host_system}


def parallel(work: Callable[[Sequence[int]], None], numbers: Sequence[int]) -> None:
    with futures.ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, [numbers[part::WORKERS] for part in range(WORKERS)]))


# Measuring.


def measured(tasks: Mapping[str, Callable[[], Any]], runs: int, daemon: int, stale: Callable[[], None],
             process: int | None = None) -> dict[str, Cost]:
    """Return the least cost of each task, after a first round that connects and fills caches.

    :param stale: called before each round
    :param process: which does the tasks; None is this one and the commands that it starts
    """
    costs: dict[str, list[Cost]] = {task: [] for task in tasks}
    for number in range(runs + 1):
        stale()
        for task, work in tasks.items():
            before = time.perf_counter(), spent(process), spent(daemon)
            work()
            after = time.perf_counter(), spent(process), spent(daemon)
            if number:
                costs[task].append(Cost(*(now - then for now, then in zip(after, before, strict=True))))
    return {task: Cost(*map(min, zip(*map(dataclasses.astuple, each), strict=True)))
            for task, each in costs.items()}


def spent(process: int | None) -> float:
    """Return the seconds of processor time of a process; of this one and its children that ended for None."""
    if process is None:
        return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime and stime, proc(5)


# What comes of it.


def growth(steps: Sequence[Step]) -> dict[str, float]:
    """Return the exponent of the number of containers with which each task grew between the last two steps."""
    if len(steps) < 2:
        return {}
    small, large = steps[-2:]
    times = math.log(large.containers / small.containers)
    return {task: math.log(cost.wall / small.costs[task].wall) / times for task, cost in large.costs.items()}


def misses(steps: Sequence[Step]) -> Iterator[str]:
    costs = steps[-1].costs
    for task, count in LISTS.items():
        ratio = costs[task].wall / costs[LIST].wall / count if task in costs else 0
        if ratio > AIM_RATIO and costs[task].wall >= LEAST:
            yield f"missed: {task} takes {ratio:.2f} times the raw lists that it is made of (aim {AIM_RATIO})"
    if costs[MONITOR].wall > AIM_MONITOR:
        yield f"missed: {MONITOR} takes {costs[MONITOR].wall:.2f} s (aim {AIM_MONITOR})"
    for task, exponent in growth(steps).items():
        if exponent > AIM_GROWTH and costs[task].wall >= LEAST:
            yield f"missed: {task} grows with exponent {exponent:.2f} (aim {AIM_GROWTH})"


def text(steps: Sequence[Step]) -> str:
    exponents = growth(steps)
    rows = [["containers, running", *(f"{each.containers}, {each.running}" for each in steps), "growth",
             "driver, daemon"]]
    for task, last in steps[-1].costs.items():
        exponent = f"{exponents[task]:.2f}" if task in exponents else ""
        rows.append([task, *(f"{each.costs[task].wall:.3f} s" for each in steps), exponent,
                     f"{last.own:.3f}, {last.daemon:.3f} s"])
    for service in steps[-1].memory:
        rows.append([f"memory of {service}", *(f"{each.memory[service] >> 10} MiB" for each in steps), "", ""])
    return "\n".join("".join(cell.ljust(28) if not place else cell.rjust(18) for place, cell in enumerate(row))
                     for row in rows)


if __name__ == "__main__":
    sys.exit(main())
