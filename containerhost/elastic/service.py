# SPDX-License-Identifier: Apache-2.0
"""Grow and shrink opted-in containers in rounds.

A container's resources are in its resource document, which is part of its configuration. A round reads the current
state (one request to each engine) and brings each container one step closer to its target; so the next round repairs
one that failed, or that a concurrent change overtook.

A loss is announced to the guest first, and takes place when the guest has acknowledged or its time has expired;
others get the resources afterwards. A gain takes place first and is announced afterwards. The service does not block
while it waits.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from containerhost import errors
from containerhost.elastic import plan
from containerhost.elastic.changes import FAILURES, Changes
from containerhost.elastic.gpuplan import GpuMember
from containerhost.elastic.gpurounds import GpuRounds
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.plan import Capacity, Member, Running
from containerhost.elastic.policies import POLICIES
from containerhost.elastic.state import StateFile, Step
from containerhost.elastic.usage import Load, cpu_pressure
from containerhost.engines import bounds, memoryuse
from containerhost.engines.capabilities import LiveSizes, Size
from containerhost.engines.contract import Containers, ContainerState, Metrics, Status
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory import topology
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host

LOG = logging.getLogger(__name__)

NONE = frozenset[int]()
POLL_INTERVAL = 0.2  # s between two polls of guests that must acknowledge
LEAST_PAUSE = 1.0  # s between two rounds


class ManagedEngine(NamedTuple):
    """Describe an engine whose containers may opt in.

    :ivar gpus: None where containers keep their GPUs
    """

    engine: Containers
    sizes: LiveSizes[Any]
    notice: GuestNotice
    gpus: EngineGpus | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """Hold the operator's settings of the elastic service.

    :ivar notice: seconds that a guest has to release resources
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
    """Resize running containers that opted in, and take or give back their GPUs, in rounds.

    :ivar steps, done, seen: of :class:`containerhost.elastic.changes.Changes`
    """

    def __init__(self, engines: Mapping[str, ManagedEngine], options: Options, file: StateFile,
                 host: Host | None = None, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engines = engines
        self._options = options
        self._host = host or Host()
        self._clock = clock
        self._monotonic = monotonic
        self._load = Load()
        self._changes = Changes({name: managed.notice for name, managed in engines.items()}, options.notice,
                                options.locks, file, self._host, clock, monotonic)
        self.steps, self.done = self._changes.steps, self._changes.done
        self._gpus = GpuRounds({name: managed.gpus for name, managed in engines.items() if managed.gpus},
                               self._changes, monotonic)

    @property
    def seen(self) -> Mapping[str, Any]:
        return self._changes.seen

    def run(self, stop: threading.Event, interval: float) -> None:
        """Run until ``stop`` is set. Failures are logged, and retried in the next round."""
        began = self._monotonic() - interval
        while not stop.is_set():
            passed = self._monotonic() - began
            try:
                if passed >= interval or (passed >= LEAST_PAUSE and self.is_ready()):
                    began = self._monotonic()
                    self.round()
            except FAILURES as error:
                self._changes.count("round", "failed")
                LOG.error("This round failed: %s", error)
            except Exception:  # an error with one container must not stop the service
                self._changes.count("round", "failed")
                LOG.exception("This round failed")
            stop.wait(POLL_INTERVAL if self.steps else max(0.0, began + interval - self._monotonic()))

    def is_ready(self) -> bool:
        """Return whether a change in progress can continue."""
        return self._changes.is_ready()

    def plan(self) -> list[dict[str, Any]]:
        """Return the present and the target resources of the containers; nothing is changed."""
        members, capacity, gpu_members = self._read()
        wanted = plan.sizes(members, capacity, POLICIES[self._options.policy])
        return self._rows(members, wanted, self._gpus.plan(gpu_members))

    def round(self) -> None:
        """Read all containers, and bring each one step closer to its target size.

        :raises EngineError: an engine does not list its containers; nothing is changed
        """
        members, capacity, gpu_members = self._read()
        by_key = {member.key: member for member in members}
        for key in [key for key, step in self.steps.items() if not step.devices and key not in by_key]:
            if self._is_unfinished(key):
                self._changes.back_off(key)  # until it runs again
            else:
                self._changes.forget(key)
        with_gpus = {member.key: member for member in self._gpus.round(gpu_members)}
        for key in by_key.keys() & with_gpus.keys():
            by_key[key] = dataclasses.replace(by_key[key], document=with_gpus[key].document)
        wanted = plan.sizes(list(by_key.values()), capacity, POLICIES[self._options.policy])
        self._resize_all(by_key, wanted, capacity)
        told: dict[str, Running] = {**with_gpus, **by_key}
        for each in told.values():
            self._changes.tell(each)
        self._changes.see({"time": int(self._clock()), "policy": self._options.policy, "cores": sorted(capacity.cores),
                           "memory": capacity.memory,
                           "containers": self._rows(list(by_key.values()), wanted, self._gpus.rows)})

    def _resize_all(self, by_key: dict[str, Member], wanted: Mapping[str, Size], capacity: Capacity) -> None:
        for key, step in list(self.steps.items()):
            if not step.devices and key in by_key:
                by_key[key] = self._continue(by_key[key], step, wanted.get(key))
        def leaving(key: str) -> frozenset[int]:
            return (by_key[key].cores | self._promised(key)) - (wanted[key].cores if key in wanted else NONE)

        going = {key: leaving(key) for key in by_key}
        memory = {key: max(member.memory, self._promised_memory(key)) for key, member in by_key.items()}
        waiting, is_quiet = [], True
        # Containers that lose resources come first: released resources are available in the same round.
        losing = {key for key, member in by_key.items() if key in wanted and member.loses(wanted[key])}
        for member in sorted(by_key.values(), key=lambda member: member.key not in losing):
            key = member.key
            if key in self.steps or self._changes.is_backing_off(key):
                is_quiet = False
            elif key in wanted:
                others = NONE.union(*(cores for other, cores in going.items() if other != key))
                size = plan.possible(member, wanted[key], others, capacity.memory - sum(memory.values()))
                if size is not None:
                    is_quiet = False
                    by_key[key] = self._begin(member, size)
                elif member.cores != wanted[key].cores:
                    waiting.append(member)
                going[key] = leaving(key)
                memory[key] = max(by_key[key].memory, self._promised_memory(key))
        if waiting and is_quiet:  # deadlock, because no core is idle: let one container begin, with shared cores
            member = waiting[0]
            by_key[member.key] = self._begin(member, Size(wanted[member.key].cores, member.memory))

    # Read the state of the containers

    def _read(self) -> tuple[list[Member], Capacity, list[GpuMember]]:
        listed = [(name, state, metrics) for name, managed in self._engines.items()
                  for state, metrics in managed.engine.measured()]
        members = [member for name, state, metrics in listed if (member := self._member(name, state, metrics))]
        self._load.keep([member.key for member in members])
        gpu_members = [found for name, state, metrics in listed if (found := self._gpus.member(name, state, metrics))]
        mine = {member.key for member in members}
        own = frozenset[int]().union(*(state.cores for name, state, _ in listed if f"{name}/{state.name}" not in mine))
        there = topology.read(self._host)
        isolated = id_list(self._host.text("/sys/devices/system/cpu/isolated"))
        memory = topology.memory(self._host)
        used = sum(member.memory_used or 0 for member in members)
        return members, Capacity(
            there.cpus - own - isolated - self._options.reserved,
            tuple((node.id, core) for node in there.nodes for core in node.siblings),
            max(0, memory.total - memory.used + used - self._options.reserved_memory)), gpu_members

    def _member(self, engine: str, state: ContainerState, metrics: Metrics) -> Member | None:
        """Return an opted-in container that runs; None for all others, which are never touched."""
        if state.status is not Status.RUNNING or metrics.pid is None or bounds.LABEL not in state.labels:
            return None
        key = f"{engine}/{state.name}"
        try:
            own = bounds.parse(state.labels)
        except ValueError as error:
            LOG.warning("Container %s is not resized: %s", key, error)
            return None
        if own is None:
            return None
        member = Member(key, state.name, metrics.pid, own, state.labels[bounds.LABEL],
                        state.labels.get(resources.LABEL))
        used = self._load.observe(key, metrics.pid, member.count, metrics.cpu_time, self._monotonic())
        return dataclasses.replace(member, used=used, pressure=cpu_pressure(self._host, metrics.pid),
                                   memory_used=self._memory_used(metrics.pid, metrics.memory or None))

    def _memory_used(self, pid: int, otherwise: int | None) -> int | None:
        found = memoryuse.needed(self._host, pid)
        return otherwise if found is None else found

    # Change sizes

    def _begin(self, member: Member, size: Size) -> Member:
        """Begin a change: announce a loss to a guest that listens, otherwise apply it."""
        document = member.coming(size)
        step = Step(member.generation, member.mark, document)
        if not member.loses(size):
            return self._apply(member, step, "grown")
        self._changes.put(member.key, step)  # recorded before the notice, so that it survives a kill
        if member.document is not None and self._changes.announce(member, step):
            return member
        return self._apply(member, step, "unheard")

    def _continue(self, member: Member, step: Step, wanted: Size | None) -> Member:
        """Resume a change that this process or a killed one began."""
        if step.mark != member.mark or (member.document != step.document and member.generation != step.generation):
            LOG.info("Container %s was changed by another process meanwhile", member.key)
            self._changes.forget(member.key)
            return member
        if wanted is not None and self._is_short(member, step, wanted):
            LOG.info("Container %s was about to get fewer cores than are available now: it keeps its size", member.key)
            if step.applying:  # the engine may have made the change: undo it
                step = self._undone(member, step, wanted)
            else:
                wanted = None
        if step.applying or member.document == step.document:
            return member if self._changes.is_backing_off(member.key) else self._apply(member, step, "recovered")
        if wanted is None or not member.loses(wanted):
            self._changes.withdraw(member, "withdrawn")
            return member
        outcome = self._changes.outcome(member, step)
        return self._apply(member, step, outcome) if outcome else member

    def _apply(self, member: Member, step: Step, outcome: str) -> Member:
        """Apply a change, if the container is unchanged since it was planned. Idempotent."""
        managed = self._engines[member.key.partition("/")[0]]
        coming = resources.parse(step.document) or {}
        size = Size(frozenset(coming["cpus"]["cores"]), coming["memory"])
        needed = self._memory_used(member.pid, member.memory_used)
        if size.memory < member.memory and (needed is None or needed > size.memory):
            LOG.warning("Container %s keeps its size: it would get %d MiB of memory, and uses %s", member.key,
                        size.memory >> 20, "an unknown amount" if needed is None else f"{needed >> 20} MiB")
            self._changes.fail(member, "in use")
            return member
        try:
            with resizing(self._options.locks, member.name, 0):
                current = managed.sizes.read(member.name)
                if (current.label(bounds.LABEL), current.label(resources.LABEL)) not in (
                        (step.mark, member.document), (step.mark, step.document)):
                    raise errors.EngineConflict("it was changed by another process")
                self._changes.put(member.key, dataclasses.replace(step, applying=True))
                managed.sizes.resize(current, size, {resources.LABEL: step.document})
        except errors.EngineUnavailable:
            raise  # the outcome is unknown: keep the step
        except errors.EngineTimeout as error:  # the outcome is unknown, too, but the engine responds
            LOG.warning("Container %s is changed again: %s", member.key, error)
            self._changes.back_off(member.key)
            return member
        except (errors.EngineConflict, errors.EngineNotFound) as error:
            if not (isinstance(error, errors.EngineBusy) or self._is_unfinished(member.key)):
                self._changes.forget(member.key)
            LOG.info("Container %s is checked again: %s", member.key, error)
            return member
        except FAILURES as error:
            LOG.warning("Container %s does not get its size: %s", member.key, error)
            undone = self._undone(member, step, size)
            self._changes.back_off(member.key)
            if undone.document == step.document:
                return member  # retried later
            self._changes.count("change", "failed")
            return self._apply(member, undone, "undone")  # the engine may have applied a part of the change
        LOG.info("Container %s has cores %s and %d MiB: %s", member.key, sorted(size.cores), size.memory >> 20, outcome)
        self._changes.count("change", outcome)
        self._changes.forget(member.key)
        changed = dataclasses.replace(member, document=step.document)
        self._changes.tell(changed)
        return changed

    # Steps

    def _is_unfinished(self, key: str) -> bool:
        """Return whether the engine may have applied a change partially, to a container that still exists.

        Its document would permanently state a wrong size."""
        step, (engine, _, name) = self.steps.get(key), key.partition("/")
        if step is None or not step.applying or engine not in self._engines:
            return False
        try:
            return self._engines[engine].sizes.read(name).label(bounds.LABEL) == step.mark
        except errors.EngineNotFound:
            return False
        except errors.EngineError:
            return True  # unknown: assume so

    def _undone(self, member: Member, step: Step, otherwise: Size) -> Step:
        """Return the step that restores the size in the container's document; ``otherwise`` if it has none."""
        size = Size(member.cores or otherwise.cores, member.memory)
        return dataclasses.replace(step, document=member.coming(size))

    def _is_short(self, member: Member, step: Step, wanted: Size) -> bool:
        """Return whether a change would leave a container below its minimum although more is available now."""
        return member.document != step.document and len(self._promised(member.key)) < min(
            member.bounds.cores.least, len(wanted.cores))

    def _promised(self, key: str) -> frozenset[int]:
        step = self.steps.get(key)
        return frozenset((resources.parse(step.document) or {})["cpus"]["cores"]) if step else frozenset()

    def _promised_memory(self, key: str) -> int:
        step = self.steps.get(key)
        return int((resources.parse(step.document) or {})["memory"]) if step else 0

    # Published state

    def _rows(self, members: Sequence[Member], wanted: Mapping[str, Size], gpus: Mapping[str, Mapping[str, Any]]
              ) -> list[dict[str, Any]]:
        rows = {member.key: row(member, wanted.get(member.key), member.key in self.steps) for member in members}
        for key, found in gpus.items():
            rows[key] = rows.get(key, {"container": key, "announced": key in self.steps}) | {"gpus": found}
        return [rows[key] for key in sorted(rows)]


def row(member: Member, wanted: Size | None, under_way: bool) -> dict[str, Any]:
    """Return the status row of a container."""
    return {"container": member.key, "cores": sorted(member.cores), "count": member.count,
            "least": member.bounds.cores.least, "most": member.bounds.cores.most,
            "wanted": member.count if wanted is None else len(wanted.cores), "memory": member.memory,
            "memory_least": member.bounds.memory.least, "memory_most": member.bounds.memory.most,
            "memory_wanted": member.memory if wanted is None else wanted.memory,
            "priority": member.bounds.priority, "used": round(member.used[-1], 2) if member.used else None,
            "announced": under_way}
