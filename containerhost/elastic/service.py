# SPDX-License-Identifier: Apache-2.0
"""Let opted-in containers grow and shrink, round by round.

What a container has is told by its document of resources, which is in its configuration. A round reads what there is
anew (one request to each engine) and brings each container one step nearer to its size; so a round that failed, or that
somebody else's change overtook, needs no repair but the next round.

A container that loses something is announced it first, and loses it when its guest has acknowledged or its time is
over. What it loses others get afterwards: who grows gets it first and is told then. Meanwhile the service goes on.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from containerhost import errors, topology
from containerhost.elastic import claim, plan
from containerhost.elastic.plan import Capacity, Member
from containerhost.elastic.policies import POLICIES
from containerhost.elastic.state import State, StateFile, Step
from containerhost.elastic.usage import Load, age, cpu_pressure
from containerhost.engines import Containers, ContainerState, Metrics, Status, memoryuse
from containerhost.engines.capabilities import LiveSizes, Size
from containerhost.idlist import id_list
from containerhost.inside import resources
from containerhost.inside.guestnotice import GuestNotice
from containerhost.resizelock import resizing
from containerhost.sysfs import Host

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 0.2  # s between two looks at guests that are waited for
LEAST_PAUSE = 1.0  # s between two rounds
START_TIME = 120.0  # s that a container may take to start
SEEN_INTERVAL = 60  # s after which what was seen is written, though nothing has changed
REST = 60.0  # s until a change that failed is tried again: its guest was asked to let go for nothing
FAILURES = (errors.ContainerHostError, OSError)


class ManagedEngine(NamedTuple):
    """An engine whose containers may opt in."""

    engine: Containers
    sizes: LiveSizes[Any]
    notice: GuestNotice


@dataclasses.dataclass(frozen=True)
class Options:
    """:ivar policy: its name
    :ivar notice: seconds that a guest has to let go
    :ivar reserved: cores that no container gets
    :ivar reserved_memory: bytes that stay free on the host
    :ivar locks: the directory that all drivers of the host share
    """

    policy: str = "fair"
    notice: float = 30.0
    reserved: frozenset[int] = frozenset()
    reserved_memory: int = 1 << 30
    locks: Path = Path("/var/lib/containerhost/owners")


class Service:
    """:ivar steps: changes that are under way, by engine and container
    :ivar done: how often what was done, by kind and outcome, for the metrics
    :ivar seen: what the last round saw
    """

    def __init__(self, engines: Mapping[str, ManagedEngine], options: Options, file: StateFile,
                 host: Host | None = None, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engines = engines
        self._options = options
        self._file = file
        self._host = host or Host()
        self._clock = clock
        self._monotonic = monotonic
        self._load = Load()
        self._told: dict[str, tuple[int, int]] = {}  # its first process, and the generation
        self._announced: set[str] = set()  # by this process
        self._resting: dict[str, float] = {}  # until when
        self._written: tuple[Any, Mapping[str, Step]] = (None, {})
        self._written_at = 0
        state = file.read()
        self.steps: dict[str, Step] = dict(state.steps)
        self.seen: Mapping[str, Any] = state.seen
        self.done: dict[tuple[str, str], int] = {}

    def run(self, stop: threading.Event, interval: float) -> None:
        """Run until ``stop`` is set. What fails is logged, and tried again in the next round."""
        began = self._monotonic() - interval
        while not stop.is_set():
            passed = self._monotonic() - began
            try:
                if passed >= interval or (passed >= LEAST_PAUSE and self.is_ready()):
                    began = self._monotonic()
                    self.round()
            except FAILURES as error:
                self._count("round", "failed")
                LOG.error("This round came to no end: %s", error)
            stop.wait(POLL_INTERVAL if self.steps else max(0.0, began + interval - self._monotonic()))

    def is_ready(self) -> bool:
        """Return whether a change that is under way can go on."""
        return any(self._is_over(key, step) for key, step in self.steps.items())

    def plan(self) -> list[dict[str, Any]]:
        """Return what the containers have and what they would get; nothing is changed."""
        members, capacity = self._look()
        return self._rows(members, plan.sizes(members, capacity, POLICIES[self._options.policy]))

    def round(self) -> None:
        """Look at all containers, and bring each one step nearer to its size.

        :raises EngineError: an engine does not tell which containers it has: nothing is changed
        """
        members, capacity = self._look()
        by_key = {member.key: member for member in members}
        for key in self.steps.keys() - by_key.keys():
            self._forget(key)
        wanted = plan.sizes(members, capacity, POLICIES[self._options.policy])
        for key, step in list(self.steps.items()):
            by_key[key] = self._go_on(by_key[key], step, wanted.get(key))
        held = {key: member.cores | self._promised(key) for key, member in by_key.items()}
        memory = {key: max(member.memory, self._promised_memory(key)) for key, member in by_key.items()}
        shared = plan.is_shared(wanted)
        # Who loses comes first: what is lost at once can be had by others in the same round.
        for member in sorted(by_key.values(), key=lambda member: not self._loses(member, wanted)):
            key = member.key
            if key not in wanted or key in self.steps or key in self._resting:
                continue
            others = frozenset[int]().union(*(cores for other, cores in held.items() if other != key))
            size = plan.possible(member, wanted[key], others, capacity.memory - sum(memory.values()), shared=shared)
            if size is not None:
                by_key[key] = self._begin(member, size)
            held[key] = by_key[key].cores | self._promised(key)
            memory[key] = max(by_key[key].memory, self._promised_memory(key))
        for member in by_key.values():
            self._tell(member)
        self._see({"time": int(self._clock()), "policy": self._options.policy, "cores": sorted(capacity.cores),
                   "memory": capacity.memory, "containers": self._rows(list(by_key.values()), wanted)})

    def _see(self, seen: Mapping[str, Any]) -> None:
        """Remember what was seen; write it where it is of interest: sizes have changed, or a minute has passed."""
        self.seen = seen
        sizes = [{key: value for key, value in each.items() if key != "used"} for each in seen["containers"]]
        if (sizes, self.steps) != self._written or seen["time"] >= self._written_at + SEEN_INTERVAL:
            self._written, self._written_at = (sizes, dict(self.steps)), seen["time"]
            self._write()

    # Looking

    def _look(self) -> tuple[list[Member], Capacity]:
        listed = [(name, state, metrics) for name, managed in self._engines.items()
                  for state, metrics in managed.engine.measured()]
        members = [member for name, state, metrics in listed if (member := self._member(name, state, metrics))]
        self._load.keep([member.key for member in members])
        self._resting = {key: until for key, until in self._resting.items() if self._monotonic() < until}
        mine = {member.key for member in members}
        own = frozenset[int]().union(*(state.cores for name, state, _ in listed if f"{name}/{state.name}" not in mine))
        found = topology.read(self._host)
        isolated = id_list(self._host.text("/sys/devices/system/cpu/isolated"))
        memory = topology.memory(self._host)
        used = sum(member.memory_used for member in members if not member.claim.memory.is_fixed)
        return members, Capacity(
            found.cpus - own - isolated - self._options.reserved,
            tuple((node.id, core) for node in found.nodes for core in node.siblings),
            max(0, memory.total - memory.used + used - self._options.reserved_memory))

    def _member(self, engine: str, state: ContainerState, metrics: Metrics) -> Member | None:
        """Return an opted-in container that runs; None for all others, which are never touched."""
        if state.status is not Status.RUNNING or metrics.pid is None or claim.LABEL not in state.labels:
            return None
        key = f"{engine}/{state.name}"
        try:
            own = claim.parse(state.labels)
        except ValueError as error:
            LOG.warning("Container %s is left alone: %s", key, error)
            return None
        if own is None:
            return None
        member = Member(key, state.name, metrics.pid, own, state.labels[claim.LABEL],
                        state.labels.get(resources.LABEL))
        used = self._load.observe(key, metrics.pid, member.count, metrics.cpu_time, self._monotonic())
        return dataclasses.replace(member, used=used, pressure=cpu_pressure(self._host, metrics.pid),
                                   memory_used=self._memory_used(metrics.pid, metrics.memory))

    def _memory_used(self, pid: int, told: int) -> int:
        found = memoryuse.needed(self._host, pid)
        return told if found is None else found

    # Acting

    def _loses(self, member: Member, wanted: Mapping[str, Size]) -> bool:
        return member.key in wanted and member.loses(wanted[member.key])

    def _begin(self, member: Member, size: Size) -> Member:
        """Begin a change: announce it if it takes something from a guest that listens, else make it.

        :returns: the container as it is now
        """
        document = member.coming(size)
        step = Step(member.generation, member.mark, document, self._clock() + self._options.notice)
        if not member.loses(size):
            return self._apply(member, step, "grown")
        self._put(member.key, step)  # before anybody is told: who comes after a kill knows of it
        if member.document is not None and self._announce(member, step):
            return member
        self.steps[member.key] = dataclasses.replace(step, until=0)
        return self._apply(member, step, "unheard")

    def _announce(self, member: Member, step: Step) -> bool:
        """Announce a change.

        :returns: whether the guest listens
        """
        self._announced.add(member.key)
        LOG.info("Container %s is to lose something by generation %d", member.key, step.generation + 1)
        return self._notice(member).begin(member.name, member.document or "", step.document, step.until)

    def _go_on(self, member: Member, step: Step, wanted: Size | None) -> Member:
        """Go on with a change that was begun, by this process or by one that was killed."""
        if step.mark != member.mark or (member.document != step.document and member.generation != step.generation):
            LOG.info("Container %s was changed by somebody else meanwhile", member.key)
            self._forget(member.key)
            return member
        if step.applying or member.document == step.document:
            return self._apply(member, step, "recovered")
        if wanted is None or not member.loses(wanted):
            self._withdraw(member, "withdrawn")
            return member
        if self._is_over(member.key, step):
            answered = self._acknowledged(member.key) >= resources.generation(resources.parse(step.document))
            return self._apply(member, step, "acknowledged" if answered else "timed out")
        if member.key not in self._announced:  # who was killed may have written it down, and told nobody
            self._announce(member, step)
        return member

    def _apply(self, member: Member, step: Step, outcome: str) -> Member:
        """Make a change, if the container is still what the change was planned for. Idempotent.

        :returns: the container as it is now
        """
        managed, coming = self._managed(member.key), resources.parse(step.document) or {}
        size = Size(frozenset(coming["cpus"]["cores"]), coming["memory"])
        if size.memory < member.memory and (needed := self._memory_used(member.pid, 0)) > size.memory:
            LOG.warning("Container %s uses %d MiB, more than the %d MiB it was to have: it keeps its size", member.key,
                        needed >> 20, size.memory >> 20)
            self._fail(member, "in use")
            return member
        try:
            with resizing(self._options.locks, member.name, 0):
                current = managed.sizes.look(member.name)
                if (current.label(claim.LABEL), current.label(resources.LABEL)) not in (
                        (step.mark, member.document), (step.mark, step.document)):
                    raise errors.EngineConflict("it was changed by somebody else")
                self._put(member.key, dataclasses.replace(step, applying=True))
                managed.sizes.resize(current, size, {resources.LABEL: step.document})
        except errors.EngineUnavailable:
            raise  # whether it was changed is not known: the step stays
        except (errors.EngineConflict, errors.EngineNotFound) as error:
            if not isinstance(error, errors.EngineBusy):
                self._forget(member.key)
            LOG.info("Container %s is looked at again: %s", member.key, error)
            return member
        except FAILURES as error:
            LOG.warning("Container %s does not get its size: %s", member.key, error)
            self._fail(member, "failed")
            return member
        LOG.info("Container %s has cores %s and %d MiB: %s", member.key, sorted(size.cores), size.memory >> 20, outcome)
        self._count("change", outcome)
        self._forget(member.key)
        changed = dataclasses.replace(member, document=step.document)
        self._tell(changed)
        return changed

    def _fail(self, member: Member, outcome: str) -> None:
        self._resting[member.key] = self._monotonic() + REST
        self._withdraw(member, outcome)

    def _withdraw(self, member: Member, outcome: str) -> None:
        """End a change that does not come about, and tell the guest so."""
        self._count("change", outcome)
        self._forget(member.key)
        self._tell(member)

    def _tell(self, member: Member) -> None:
        """Write its document into the container, once for each start of it and each change."""
        if member.document is None or member.key in self.steps:
            return
        now = member.pid, member.generation
        if self._told.get(member.key) != now or (self._is_starting(member)
                                                 and not self._notice(member).has_document(member.name)):
            self._notice(member).notify(member.name, member.document)
            self._told[member.key] = now

    def _is_starting(self, member: Member) -> bool:
        """Return whether its init may still mount something over what was written."""
        found = age(self._host, member.pid)
        return found is not None and found < START_TIME

    # Steps

    def _is_over(self, key: str, step: Step) -> bool:
        """Return whether the guest has acknowledged, or its time is over, or nobody has to be waited for."""
        return step.applying or self._clock() >= step.until or (
            self._acknowledged(key) >= resources.generation(resources.parse(step.document)))

    def _acknowledged(self, key: str) -> int:
        return self._managed(key).notice.acknowledged(key.partition("/")[2])

    def _promised(self, key: str) -> frozenset[int]:
        step = self.steps.get(key)
        return frozenset((resources.parse(step.document) or {})["cpus"]["cores"]) if step else frozenset()

    def _promised_memory(self, key: str) -> int:
        step = self.steps.get(key)
        return int((resources.parse(step.document) or {})["memory"]) if step else 0

    def _put(self, key: str, step: Step) -> None:
        self.steps[key] = step
        self._write()

    def _forget(self, key: str) -> None:
        """End a step, so that the guest is told anew what it has."""
        self.steps.pop(key, None)
        self._announced.discard(key)
        self._told.pop(key, None)

    def _write(self) -> None:
        self._file.write(State(dict(self.steps), self.seen))

    # What is told

    def _rows(self, members: Sequence[Member], wanted: Mapping[str, Size]) -> list[dict[str, Any]]:
        return [row(member, wanted.get(member.key), member.key in self.steps)
                for member in sorted(members, key=lambda member: member.key)]

    def _count(self, kind: str, outcome: str) -> None:
        self.done[kind, outcome] = self.done.get((kind, outcome), 0) + 1

    def _managed(self, key: str) -> ManagedEngine:
        return self._engines[key.partition("/")[0]]

    def _notice(self, member: Member) -> GuestNotice:
        return self._managed(member.key).notice


def row(member: Member, wanted: Size | None, under_way: bool) -> dict[str, Any]:
    """Return what the status tells of a container."""
    return {"container": member.key, "cores": sorted(member.cores), "count": member.count,
            "least": member.claim.cores.least, "most": member.claim.cores.most,
            "wanted": member.count if wanted is None else len(wanted.cores), "memory": member.memory,
            "memory_least": member.claim.memory.least, "memory_most": member.claim.memory.most,
            "memory_wanted": member.memory if wanted is None else wanted.memory,
            "priority": member.claim.priority, "used": round(member.used[-1], 2) if member.used else None,
            "announced": under_way}
