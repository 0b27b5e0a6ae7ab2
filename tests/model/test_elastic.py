# SPDX-License-Identifier: Apache-2.0
"""Let containers, guests, engine, host and GPUs do anything in any order while the elastic service runs and is killed.

Whatever happens, no change of the service breaks a bound, and quiet rounds bring everybody to what the policy says.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from containerhost import errors
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import CharNode, Device, Kind
from containerhost.elastic import plan
from containerhost.elastic.corechoice import Supply
from containerhost.elastic.gpuplan import GpuMember, Gpus
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import bounds, gpubounds
from containerhost.engines.bounds import Bounds, Range
from containerhost.engines.capabilities import Size
from containerhost.engines.contract import Status
from containerhost.engines.gpubounds import GpuBounds
from containerhost.guest import resources
from containerhost.guest.guestnotice import LARGEST, GuestNotice
from containerhost.inventory.scan import Inventory
from containerhost.linux.sysfs import Host
from tests.model import frame
from tests.unit.containerhost.elastic.fakes import Container, FakeEngine, GiB, Killed, World

CORES, MEMORY = 6, 16 * GiB
CARDS = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0")
NAMES = st.sampled_from("abcd")
# Mostly such that some can have only cores that others have, too.
SETS = st.sampled_from([frozenset[int](), *map(frozenset, ({0}, {0, 1}, {1}, {0, 1, 2}, {1, 2}, {3, 4, 5}))])
RANGES = st.tuples(st.sampled_from((1, 1, 1, 2, 3)), st.integers(0, 4)).map(lambda pair: Range(pair[0], sum(pair)))
MEMORIES = st.sampled_from((Range(GiB, GiB), Range(GiB, 4 * GiB), Range(2 * GiB, 8 * GiB), Range(8 * GiB, 8 * GiB)))
CLAIMS = st.builds(Bounds, RANGES, MEMORIES, st.integers(0, 2), SETS)
ERRORS = (errors.EngineUnavailable, errors.EngineTimeout, errors.EngineBusy, errors.EngineConflict, errors.EngineError)
RUBBISH = (b"\xff" * 100, b"[" * 60000, b'{"generation": 99999999999999999999}', b'{"generation": -5}', b"null")
QUIET_ROUNDS = 14


class FakeGpus:
    """GPUs of the containers of the engine in memory; their allocation records are what a test reads."""

    name = "fake"

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.records: dict[str, Allocation] = {}
        self.health: dict[str, tuple[str, ...]] = dict.fromkeys(CARDS, ())
        self.store = SimpleNamespace(records=lambda: dict(self.records))

    def view(self) -> Any:
        return SimpleNamespace(inventory=Inventory(tuple(
            Device(card, card, Kind.GPU, "10de", "20b0", "030200", "nvidia", health=health,
                   nodes=(CharNode(f"/dev/nvidia{number}", 195, number),))
            for number, (card, health) in enumerate(self.health.items()))))

    def present(self, name: str, state: State = State.ATTACHED) -> set[str]:
        return {card for card, record in self.records.items()
                if record.consumer.container == name and record.state is state}

    def give(self, member: GpuMember, gpus: Gpus, more: tuple[str, ...], view: Any) -> str:
        found = self._looked(member)
        self._engine.hook("give")
        assert all(not self.health[card] for card in more), "a container gets a GPU that is out of order"
        self._set(more, State.ATTACHED)
        self._engine.hook("given")
        return self._relabel(found, member)

    def take(self, member: GpuMember, gpus: Gpus, devices: tuple[str, ...], begin: Callable[[], None], view: Any
             ) -> str:
        found = self._looked(member)
        begin()
        self._engine.hook("take")
        self._set(devices, State.DETACHED)
        assert len(self.present(member.name)) >= member.bounds.least, "a container has fewer GPUs than its least"
        self._engine.hook("taken")
        return self._relabel(found, member)

    def _set(self, cards: tuple[str, ...], state: State) -> None:
        for card in cards:
            self.records[card] = Allocation(card, self.records[card].consumer, state=state)

    def _looked(self, member: GpuMember) -> Container:
        found = self._engine.containers_.get(member.name)
        if found is None or (found.labels.get(gpubounds.LABEL), found.labels.get(resources.LABEL)) != (
                member.mark, member.document):
            raise errors.EngineConflict("it was changed by another process")
        return found

    def _relabel(self, found: Container, member: GpuMember) -> str:
        if self.present(member.name) != member.told:
            found.labels[resources.LABEL] = with_cards(found.labels[resources.LABEL], self.present(member.name))
            found.version += 1
        return found.labels[resources.LABEL]


def with_cards(document: str, cards: set[str]) -> str:
    devices = [{"id": card, "kind": "gpu"} for card in sorted(cards)]
    return resources.following((resources.parse(document) or {}) | {"devices": devices}, document)


class ElasticMachine(frame.Machine):
    """A host of six cores with an engine in memory, and up to four containers."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.world = World(Path(self.directory.name), CORES, MEMORY)
        self.engine, self.files = self.world.engine, self.world.files
        self.gpus = FakeGpus(self.engine)
        self.cores = CORES
        self.engine.add("own", None)
        self.engine.check = self.check
        # A change of these was begun while the guest was not listening.
        self.unheard: set[str] = set()
        # A change of these was begun while there were not enough cores for all: it may share some until the next round.
        self.crowded: set[str] = set()

    def teardown(self) -> None:
        try:
            self.rest()
        finally:
            self.directory.cleanup()

    @initialize(policy=st.sampled_from(("fair", "priority", "load")), claims=st.lists(CLAIMS, min_size=2, max_size=3),
                listening=st.sets(NAMES))
    def start_service(self, policy: str, claims: list[Bounds], listening: set[str]) -> None:
        self.policy = policy
        self.restart()
        for name, own in zip("abc", claims, strict=False):
            self.come(name, own, True, 0, set())
        self.round()
        for name in listening:
            self.change_guest(name, True, False, False, None)
            self.acknowledge(name)

    def restart(self) -> None:
        directory, world = self.world.directory, self.world
        managed = ManagedEngine(self.engine, self.engine, GuestNotice(self.files, 0, world.clock),  # type: ignore[arg-type]
                                self.gpus)  # type: ignore[arg-type]
        self.service = Service({"fake": managed}, Options(self.policy, locks=directory / "locks"),
                               StateFile(directory / "state"), Host(directory / "root"), world.clock, world.clock)

    # What happens

    @rule(name=NAMES, own=CLAIMS, elastic=st.booleans(), least=st.integers(0, 2), cards=st.sets(st.sampled_from(CARDS)))
    def come(self, name: str, own: Bounds, elastic: bool, least: int, cards: set[str]) -> None:
        if name in self.engine.containers_:
            return
        there = self.engine.add(name, None)
        there.memory = own.memory.least // 2
        cards = cards - self.gpus.records.keys()
        if elastic or not cards:
            there.labels[bounds.LABEL] = bounds.mark(own)
        if cards:
            there.labels[gpubounds.LABEL] = gpubounds.mark(GpuBounds(min(least, len(cards))))
            size = resources.resized(None, own.cores.most, (), own.memory.most)
            there.labels[resources.LABEL] = with_cards(size, cards)
            self.gpus.records |= {card: Allocation(card, Consumer("model", "fake", name, "1"), state=State.ATTACHED)
                                  for card in cards}

    @rule(name=NAMES)
    def go(self, name: str) -> None:
        self.engine.containers_.pop(name, None)
        self.gpus.records = {card: record for card, record in self.gpus.records.items()
                             if record.consumer.container != name}
        for key in [key for key in self.files.files if key[0] == name]:
            del self.files.files[key]

    @rule(name=NAMES, status=st.sampled_from((Status.STOPPED, Status.FROZEN, Status.RUNNING)))
    def change_status(self, name: str, status: Status) -> None:
        if there := self.engine.containers_.get(name):
            there.pid += 1000 if there.status is Status.STOPPED and status is Status.RUNNING else 0
            there.status = status

    @rule(name=NAMES, own=CLAIMS, during=st.sampled_from(("", "look", "resize", "write", "take")))
    def resize(self, name: str, own: Bounds, during: str) -> None:
        """Resize a container, as a driver does, perhaps in the middle of a round."""
        def change(what: str) -> None:
            if what != during:
                return
            self.engine.hook = lambda what: None
            there = self.engine.containers_.get(name)
            if there is not None and bounds.LABEL in there.labels:
                there.labels |= {bounds.LABEL: bounds.mark(own), resources.LABEL: resources.resized(
                    there.labels.get(resources.LABEL), own.cores.most, (), own.memory.most)}
                there.size = None
                there.version += 1
                self.count(f"resize {during}")

        self.engine.hook = change
        change("")
        self.round()

    @rule(cores=st.sampled_from((4, 5, 6)), own=st.frozensets(st.integers(0, 3), max_size=2))
    def change_host(self, cores: int, own: frozenset[int]) -> None:
        self.cores = cores
        self.world.set_cores(cores)
        self.engine.containers_["own"].own_cores = own

    @rule(name=NAMES, cores=st.floats(0, 6), memory=st.sampled_from((0, GiB // 2, GiB, 3 * GiB)))
    def work(self, name: str, cores: float, memory: int) -> None:
        if there := self.engine.containers_.get(name):
            has = len(there.size.cores) if there.size else 6
            there.cpu_time += int(5e9 * min(cores, has))
            there.memory = min(memory, there.size.memory if there.size else MEMORY)
            self.round()

    @rule(name=NAMES, listens=st.booleans(), follows=st.booleans(), refuses=st.booleans(),
          content=st.none() | st.sampled_from(RUBBISH))
    def change_guest(self, name: str, listens: bool, follows: bool, refuses: bool, content: bytes | None) -> None:
        for guests, member in ((self.files.listening, listens), (self.files.following, follows),
                               (self.files.refusing, refuses)):
            (guests.add if member else guests.discard)(name)
        if content is not None:
            self.files.files[name, resources.ACKNOWLEDGED] = content
        if f"fake/{name}" in self.service.steps:
            self.unheard.add(name)

    @rule(name=NAMES)
    def acknowledge(self, name: str) -> None:
        if (name, resources.FILE) in self.files.files:
            told = self.files.document(name)
            self.files.acknowledge(name, (told["announced"] or told)["generation"])
            step = self.service.steps.get(f"fake/{name}")
            if step and step.applying:  # it may be made already
                self.unheard.add(name)

    @rule(card=st.sampled_from(CARDS), health=st.sampled_from(((), ("Xid 79",), ("tainted by the operator: fan",))))
    def change_card(self, card: str, health: tuple[str, ...]) -> None:
        self.gpus.health[card] = health
        self.round()

    @rule(point=st.integers(1, 12), error=st.sampled_from(ERRORS), times=st.integers(1, 4))
    def fail(self, point: int, error: type[errors.EngineError], times: int) -> None:
        """Let some successive requests of a round fail."""
        self.interrupt(lambda at: at in range(point, point + times), error("it fails"))

    @rule(point=st.integers(1, 20))
    def kill(self, point: int) -> None:
        self.interrupt(lambda at: at == point, Killed())

    def interrupt(self, at: Callable[[int], bool], error: BaseException) -> None:
        reached = 0

        def count(what: str) -> None:
            nonlocal reached
            reached += 1
            if at(reached):
                self.count(f"{type(error).__name__} at {what}")
                if what == "write" and type(error) is errors.EngineConflict:
                    # The engine's word for a container that does not run, which has no guest (GuestNotice.begin).
                    self.unheard |= self.members().keys()
                raise error

        self.engine.hook = count
        self.round()

    @rule(seconds=st.sampled_from((5, 40, 70)))
    def wait(self, seconds: int) -> None:
        self.world.now += seconds
        self.round()

    @rule()
    def answer_nothing(self) -> None:
        """Let the engine list no container."""
        with mock.patch.object(self.engine, "measured", tuple):
            self.round()

    @rule()
    def rest(self) -> None:
        """Nothing happens any more."""
        for _ in range(QUIET_ROUNDS):
            self.round()
            self.world.now += 20
        self.count("rest")
        self.check_rest()

    def round(self) -> None:
        used = sum(each.memory for each in self.engine.containers_.values() if each.status is not Status.STOPPED)
        is_crowded = not self.fit()
        self.world.write("proc/meminfo", f"MemTotal: {MEMORY >> 10} kB\nMemAvailable: {(MEMORY - used) >> 10} kB\n")
        try:
            self.world.rounds(self.service)
        except Killed:
            self.restart()
        except errors.ContainerHostError as error:
            self.count(f"round ends: {type(error).__name__}")
        finally:
            self.engine.hook = lambda what: None
        under_way = {key.partition("/")[2] for key in self.service.steps}
        self.unheard &= under_way
        self.crowded = under_way if is_crowded else self.crowded & under_way

    # What holds

    def members(self) -> dict[str, tuple[Container, Bounds]]:
        found = ((name, each, bounds.parse(each.labels)) for name, each in self.engine.containers_.items()
                 if each.status is Status.RUNNING)
        return {name: (each, own) for name, each, own in found if own is not None}

    def permitted(self, own: Bounds) -> frozenset[int]:
        cores = frozenset(range(self.cores)) - self.engine.containers_["own"].own_cores
        return cores & own.choice if own.choice else cores

    def fit(self) -> bool:
        """Return whether there are cores for the least of all."""
        members = self.members()
        supply = Supply({name: self.permitted(own) for name, (_, own) in members.items()})
        return all(supply.take(name, own.cores.least) == own.cores.least for name, (_, own) in members.items())

    def check(self, name: str, size: Size) -> None:
        """Check a change that the service makes."""
        members = self.members()
        there, own = members[name]
        before = there.size.cores if there.size else frozenset[int]()
        permitted = self.permitted(own)
        told = resources.parse(there.labels.get(resources.LABEL))
        step = self.service.steps.get(f"fake/{name}")
        # A failed change is rolled back to the documented size, which may be below the least or shared.
        is_undone = told is not None and (sorted(size.cores), size.memory) == (told["cpus"]["cores"], told["memory"])
        if not permitted or is_undone or (step is not None and step.mark != there.labels[bounds.LABEL]):
            return
        assert len(size.cores) <= own.cores.most and own.memory.least <= size.memory <= own.memory.most, "out of bounds"
        assert len(size.cores) >= min(own.cores.least, len(permitted), len(before) or CORES), "fewer than its least"
        if told is not None and size.memory < told["memory"]:
            assert there.memory and size.memory >= there.memory, "memory that is in use, or may be, is taken"
        if self.fit() and name not in self.crowded and len(before & permitted) >= own.cores.least:
            for other, (each, _) in members.items():
                assert other == name or not each.size or not (size.cores - before) & each.size.cores, "a core is shared"
        if told is not None and (len(size.cores) < told["cpus"]["count"] or size.memory < told["memory"]):
            generation = resources.parse(self.files.read(name, resources.ACKNOWLEDGED))
            # A guest that keeps its own files from being written is not waited for (containerhost.guest.guestnotice),
            # nor one that acknowledges what no document can have.
            if (generation and told["generation"] <= resources.generation(generation) <= LARGEST
                    and name not in self.files.refusing | self.unheard):
                assert self.files.document(name)["announced"], "a guest that listens loses something without notice"

    def check_rest(self) -> None:
        members = self.members()
        # One whose end nobody knows goes on when the container runs again.
        waiting = {f"fake/{name}" for name in self.engine.containers_.keys() - members.keys()}
        assert all(key in waiting and step.applying for key, step in self.service.steps.items()), \
            "a change does not come to its end"
        assert self.engine.containers_["own"].size is None, "a container that did not opt in is changed"
        rows = {row["container"].partition("/")[2]: row for row in self.service.plan()}
        capacity = MEMORY - GiB - sum(each.memory for name, each in self.engine.containers_.items()
                                      if name not in members and each.status is not Status.STOPPED)
        free = capacity - sum(rows[name]["memory"] for name in members)
        taken = [core for each, _ in members.values() if each.size for core in each.size.cores]
        idle = frozenset(range(self.cores)) - frozenset(taken)
        if self.fit():
            assert len(taken) == len(set(taken)), "containers share a core though there are enough"
        for name, (each, own) in members.items():
            row, permitted = rows[name], self.permitted(own)
            if not permitted:
                continue
            assert each.size is not None and row["cores"] == sorted(each.size.cores), "its document is wrong"
            assert each.size.cores <= permitted, "it has cores that it may not have"
            assert min(own.cores.least, len(permitted)) <= len(each.size.cores) <= own.cores.most, "out of bounds"
            assert self.policy == "load" or len(each.size.cores) == own.cores.most or not idle & permitted, "idle cores"
            assert row["wanted"] == row["count"], "it does not get what the policy says"
            assert min(row["memory_wanted"] - row["memory"], free) < plan.UNIT, "free memory goes to nobody"
        self.check_cards()
        self.engine.asked.clear()
        self.round()
        assert self.engine.asked == [("measured",)], "something moves though nothing changes"

    def check_cards(self) -> None:
        for name, each in self.engine.containers_.items():
            if gpubounds.LABEL not in each.labels or each.status is not Status.RUNNING:
                continue
            present, away = self.gpus.present(name), self.gpus.present(name, State.DETACHED)
            own = gpubounds.parse(each.labels)
            told = {device["id"] for device in json.loads(each.labels[resources.LABEL])["devices"]}
            assert told == present, "its document names other GPUs"
            assert all(self.gpus.health[card] for card in away), "a GPU that is in order does not come back"
            assert own and (len(present) <= own.least or not any(self.gpus.health[card] for card in present)), \
                "a GPU that is out of order stays"

    @invariant()
    def state_loads(self) -> None:
        file = self.world.directory / "state/state.json"
        if file.exists():
            assert StateFile(file.parent).read().steps.keys() == json.loads(file.read_text())["steps"].keys()


class ElasticTest(frame.ModelTest):
    machine = ElasticMachine
    rounds = 10
