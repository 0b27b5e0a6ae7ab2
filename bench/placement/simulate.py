# SPDX-License-Identifier: Apache-2.0
"""Run jobs on a cluster in SimGrid: its max-min fairness divides memory, links and network.

SimGrid allows one simulation in a process, so that each one runs in a child.
"""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.placement import contention, scenarios
from bench.placement.contention import Efficiency, Machine, Place
from bench.placement.loop import Loop, Request, Scheduler
from bench.placement.sockets import Sockets
from bench.placement.workloads import Job

STEPS = 5
"""Each job alternates so many times between computing, memory and messages."""

_GIGA = 1e9


@dataclasses.dataclass(frozen=True)
class Run:
    """A simulation.

    :ivar seconds: length of a job that fills one socket
    """

    scenario: scenarios.Scenario
    jobs: tuple[Job, ...]
    seconds: float
    machine: Machine
    efficiency: Efficiency


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Start and end of each job, by its number, in seconds."""

    started: Mapping[int, float]
    ended: Mapping[int, float]

    @property
    def makespan(self) -> float:
        """Return when the last job ended."""
        return max(self.ended.values())

    def response(self, jobs: Sequence[Job]) -> float:
        """Return the sum of the times from submission to end."""
        return sum(self.ended[job.number] - job.submitted for job in jobs)


def run(runs: Sequence[Run], processes: int = 2) -> list[Outcome]:
    """Return the outcome of each simulation."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.placement.schedulers"])
    with concurrent.futures.ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        return list(pool.map(simulate, runs))


def simulate(task: Run) -> Outcome:
    """Run one simulation in this process, which must not have run one before."""
    import simgrid  # noqa: PLC0415  (Debian's python3-simgrid; what is pure is tested without)

    engine = simgrid.Engine(["bench.placement", "--log=root.thresh:warning", "--cfg=network/model:CM02",
                             "--cfg=network/crosstraffic:0"])
    _platform(simgrid, task.machine, _rates(task))
    with _scheduler(task) as scheduler:
        cluster = _Cluster(simgrid, task, scheduler)
        simgrid.Actor.create("users", simgrid.Host.by_name("users"), cluster.submit)
        engine.run()
    if cluster.loop.waiting:
        raise RuntimeError(f"{len(cluster.loop.waiting)} jobs never fitted in scenario {task.scenario.name}")
    return Outcome(cluster.started, cluster.ended)


@contextlib.contextmanager
def _scheduler(task: Run) -> Iterator[Scheduler]:
    from bench.placement import schedulers  # noqa: PLC0415  (loads nova)

    if not task.scenario.task_groups:
        yield schedulers.LeastAllocated({name: task.machine.cores for name in task.machine.hosts})
        return
    nodes = [schedulers.kit.compute_node(name, task.machine.cores) for name in task.machine.hosts]
    with schedulers.kit.Cloud(nodes) as cloud:
        yield schedulers.NovaTaskGroups(cloud)


def _rates(task: Run) -> set[float]:
    requests = {task.scenario.request(job.benchmark, task.machine) for job in task.jobs}
    return {rate for request in requests for rate in contention.rates(request, task.machine)}


def _endpoint(place: Place, rate: float) -> str:
    return f"{place[0]}.{place[1]} {rate:.6g} GB/s"


def _platform(simgrid, machine: Machine, rates: Iterable[float]) -> None:  # type: ignore[no-untyped-def]
    """Make hosts of SimGrid for the ranks of every socket, one for each rate.

    A flow's rate is limited by a link that is not shared (FATPIPE), one for each rate: SimGrid 3.32 cannot limit a
    communication between two given hosts (``Comm.set_rate`` after ``Comm.sendto_init``).
    """
    zone = simgrid.NetZone.create_full_zone("cluster")
    zone.create_host("users", 1.0).seal()
    places = [(name, socket) for name in machine.hosts for socket in range(len(machine.sockets))]

    def link(name: str, gbytes: float):  # type: ignore[no-untyped-def]
        return zone.create_link(name, gbytes * _GIGA).set_latency(0.0)

    memory = {place: link(f"{place} memory", machine.socket_memory).seal() for place in places}
    between = {name: link(f"{name} sockets", machine.link).seal() for name in machine.hosts}
    out = {name: link(f"{name} out", machine.network).seal() for name in machine.hosts}
    into = {name: link(f"{name} in", machine.network).seal() for name in machine.hosts}

    def shared(source: Place, target: Place) -> list[object]:
        if source[0] != target[0]:
            return [out[source[0]], into[target[0]]]
        return [memory[source]] + ([between[source[0]]] if source != target else [])

    for rate in rates:
        limit = link(f"core {rate:.6g} GB/s", rate).set_sharing_policy(simgrid.Link.SharingPolicy.FATPIPE, None).seal()
        ends = {place: zone.create_host(_endpoint(place, rate), 1.0).seal() for place in places}
        for source in places:
            for target in places:
                links = [simgrid.LinkInRoute(part) for part in [limit, *shared(source, target)]]
                zone.add_route(ends[source].netpoint, ends[target].netpoint, None, None, links, False)
    zone.seal()


class _Cluster:
    """The actors of the simulation: users who submit, and one for each job that runs."""

    def __init__(self, simgrid, task: Run, scheduler: Scheduler) -> None:  # type: ignore[no-untyped-def]
        self._simgrid = simgrid
        self._task = task
        self._sockets = {name: Sockets(task.machine.sockets) for name in task.machine.hosts}
        self.loop = Loop(scheduler, self._request)
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def _request(self, job: Job) -> Request:
        return self._task.scenario.request(job.benchmark, self._task.machine)

    def submit(self) -> None:
        for job in self._task.jobs:
            self._simgrid.this_actor.sleep_until(job.submitted)
            self._start(self.loop.submit(job))

    def _start(self, started: Mapping[Job, Sequence[str]]) -> None:
        for job, hosts in started.items():
            places: list[Place] = []
            for host, cores in zip(hosts, self._request(job).containers, strict=True):
                places += [(host, socket) for socket in self._sockets[host].take(cores)]
            self.started[job.number] = self._simgrid.Engine.clock
            self._simgrid.Actor.create(f"job {job.number}", self._simgrid.Host.by_name("users"), self._work, job,
                                       places)

    def _work(self, job: Job, places: Sequence[Place]) -> None:
        for step in range(STEPS):
            self._step(job, places, step)
        for host, socket in places:
            self._sockets[host].give([socket])
        self.ended[job.number] = self._simgrid.Engine.clock
        self._start(self.loop.finish(job))

    def _step(self, job: Job, places: Sequence[Place], step: int) -> None:
        kind, machine, request = job.benchmark, self._task.machine, self._request(job)
        memory, messages = contention.rates(request, machine)
        seconds = self._task.seconds * job.length / contention.alone(kind, machine) / STEPS
        if kind.compute:  # in cores of its own: nothing to share
            self._simgrid.this_actor.sleep_for(kind.compute * seconds / self._task.efficiency.of(request))
        if kind.memory:
            homes = () if request.affinity else range(len(machine.sockets))
            self._exchange(contention.memory_flows(
                places, kind.memory * seconds * machine.core_memory, memory, homes))
        if kind.messages:
            self._exchange(contention.message_flows(
                places, kind.messages * seconds * machine.core_messages, messages, kind.all_to_all,
                job.number * STEPS + step))

    def _exchange(self, flows: Sequence[contention.Flow]) -> None:
        by_name = self._simgrid.Host.by_name
        self._simgrid.Comm.wait_all([self._simgrid.Comm.sendto_async(
            by_name(_endpoint(flow.source, flow.rate)), by_name(_endpoint(flow.target, flow.rate)),
            max(1, round(flow.gbytes * _GIGA))) for flow in flows])
