# SPDX-License-Identifier: Apache-2.0
"""An engine with containers in memory, the files in them, and a host of which a test says what it has."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from containerhost import errors
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import bounds, usage
from containerhost.engines.bounds import Bounds, Range
from containerhost.engines.capabilities import Size
from containerhost.engines.contract import ContainerState, Metrics, Status
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.sysfs import Host

GiB, MiB = 1 << 30, 1 << 20


class Killed(BaseException):
    """The service's process was killed."""


class LiveState(NamedTuple):
    name: str
    version: int
    labels: Mapping[str, str]

    def label(self, key: str) -> str | None:
        return self.labels.get(key)


@dataclasses.dataclass
class Container:
    labels: dict[str, str]
    pid: int
    status: Status = Status.RUNNING
    size: Size | None = None
    version: int = 1
    cpu_time: int = 0
    memory: int = MiB
    own_cores: frozenset[int] = frozenset()


class FakeEngine:
    """:ivar asked: what it was asked for, in order
    :ivar hook: called before each call that changes or tells something
    :ivar check: called with a container's name and its coming size
    """

    name = "fake"

    def __init__(self) -> None:
        self.containers_: dict[str, Container] = {}
        self.asked: list[tuple[str, ...]] = []
        self.hook: Callable[[str], None] = lambda what: None
        self.check: Callable[[str, Size], None] = lambda name, size: None
        self._pids = 100

    def kill_at(self, point: int) -> None:
        """Kill the service's process at the call of this number, from 1; at none for 0."""
        left = [point]

        def count(what: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        self.hook = count

    def add(self, name: str, cores: tuple[int, int] | None, memory: tuple[int, int] = (GiB, GiB), priority: int = 5,
            choice: frozenset[int] = frozenset(), **more: Any) -> Container:
        self._pids += 1
        labels = {} if cores is None else {bounds.LABEL: bounds.mark(Bounds(Range(*cores), Range(*memory), priority,
                                                                        choice))}
        self.containers_[name] = Container(labels, self._pids, **more)
        return self.containers_[name]

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        self.asked.append(("measured",))
        return tuple((ContainerState(name, each.status, dict(each.labels), cores=each.own_cores),
                      dataclasses.replace(usage.NOTHING, status=each.status, pid=each.pid, cpu_time=each.cpu_time,
                                          memory=each.memory))
                     for name, each in self.containers_.items())

    def read(self, name: str) -> LiveState:
        self.hook("look")
        return LiveState(name, self._found(name).version, dict(self._found(name).labels))

    def resize(self, current: LiveState, size: Size, labels: Mapping[str, str]) -> None:
        self.hook("resize")
        found = self._found(current.name)
        if found.version != current.version or found.status is not Status.RUNNING:
            raise errors.EngineConflict("it has changed")
        self.check(current.name, size)
        self.asked.append(("resize", current.name, ",".join(map(str, sorted(size.cores)))))
        found.size = size
        self.hook("resized")
        found.labels |= labels
        found.version += 1
        self.hook("labelled")

    def _found(self, name: str) -> Container:
        if name not in self.containers_:
            raise errors.EngineNotFound(name)
        return self.containers_[name]


class FakeFiles:
    """Files in containers: a guest in ``following`` acknowledges anything, one in ``listening`` what it has.

    :ivar refusing: containers in which no file can be written
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.files: dict[tuple[str, str], bytes] = {}
        self.following: set[str] = set()
        self.listening: set[str] = set()
        self.refusing: set[str] = set()

    def write(self, name: str, file: str, content: bytes) -> None:
        self._engine.hook("write")
        if name in self.refusing:
            raise errors.HostActionFailed("it is a link")
        self.files[name, file] = content
        document = json.loads(content)
        if name in self.following:
            self.acknowledge(name, (document["announced"] or document)["generation"])
        elif name in self.listening:
            self.acknowledge(name, document["generation"])
        self._engine.hook("written")

    def read(self, name: str, file: str) -> bytes | None:
        return self.files.get((name, file))

    def acknowledge(self, name: str, generation: int) -> None:
        self.files[name, resources.ACKNOWLEDGED] = json.dumps({"generation": generation}).encode()

    def document(self, name: str) -> dict[str, Any]:
        return json.loads(self.files[name, resources.FILE])


class World:
    """A host with cores, an engine on it, and a service that can be started anew.

    :param directory: of the emulated host, the state and the locks
    """

    def __init__(self, directory: Path, cores: int = 4, memory: int = 64 * GiB) -> None:
        self.directory = directory
        self.engine = FakeEngine()
        self.files = FakeFiles(self.engine)
        self.now = 1000.0
        self.set_by = 0.0  # s by which the clock was set
        self.set_cores(cores)
        self.write("proc/meminfo", f"MemTotal: {memory >> 10} kB\nMemAvailable: {memory >> 10} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.directory / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def set_cores(self, cores: int) -> None:
        self.write("sys/devices/system/cpu/online", f"0-{cores - 1}\n")

    def memory_used(self, name: str, size: int) -> None:
        pid = self.engine.containers_[name].pid
        self.write(f"proc/{pid}/cgroup", f"0::/lxc.payload.{name}\n")
        self.write(f"sys/fs/cgroup/lxc.payload.{name}/memory.current", f"{size}\n")
        self.write(f"sys/fs/cgroup/lxc.payload.{name}/memory.stat", "active_file 0\ninactive_file 0\n")

    def service(self, **options: Any) -> Service:
        notice = GuestNotice(self.files, 0, self.clock)
        managed = ManagedEngine(self.engine, self.engine, notice)  # type: ignore[arg-type]
        return Service({"fake": managed}, Options(**{"notice": 30.0, "locks": self.directory / "locks"} | options),
                       StateFile(self.directory / "state"), Host(self.directory / "root"), self.clock, lambda: self.now)

    def clock(self) -> float:
        return self.now + self.set_by

    def rounds(self, service: Service, number: int = 1) -> None:
        for _ in range(number):
            service.round()
            self.now += 5

    def cores(self) -> dict[str, set[int]]:
        return {name: set(each.size.cores) for name, each in self.engine.containers_.items() if each.size}

    def counts(self) -> dict[str, int]:
        return {name: len(cores) for name, cores in self.cores().items()}
