# SPDX-License-Identifier: Apache-2.0
"""Engines in memory whose containers have content, and a plan of what happens to the processes that use them."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.docker.images import Divided
from containerhost.engines.docker.writtenlayer import Appended
from containerhost.engines.spec import ContainerSpec, Part
from tests.model import inmemory
from tests.model.disk import FULL, POWER_CUT
from tests.model.hardware import ENDS
from tests.model.inmemory import CHANGES, STALLS
from tests.unit.nova.fakes import Killed

FAULTS = ("killed", "fails", "times out", "unavailable")
LABEL = "one.vm"


class Process:
    """The process that runs, which may be killed before each of its steps.

    :ivar plan: what happens at which of its steps; ``unavailable`` and ``stalls`` last until the process ends
    :ivar steps: those that it has passed, each by what it is
    :ivar passed: steps of the process before, each by what it is
    """

    def __init__(self) -> None:
        self.plan: dict[int, str] = {}
        self.passed: list[str] = []
        self.begin(())

    def begin(self, plan: Iterable[tuple[int, str]]) -> None:
        self.plan, self.steps = dict(plan), list[str]()
        self._alive, self._lasting = True, ""
        self.met: list[str] = []

    def step(self, what: str = "host") -> str | None:
        """Pass one step.

        :param what: ``engine`` for a request to the engine, which can fail, ``list`` for that of its containers,
            ``disk`` for a change of a disk
        :returns: how the request or the change fails
        """
        if not self._alive:
            raise Killed
        fault = self.plan.get(len(self.steps))
        self.steps.append(what)
        if fault in ("killed", POWER_CUT):
            self._alive = False
            self.met.append(fault)
            raise Killed
        if what == "disk" and fault == FULL:
            self.met.append(fault)
            return fault
        if fault in ENDS.get(what, ()):
            self.met.append(fault)
            return fault
        if what not in ("engine", "list"):
            return None
        if fault in ("unavailable", STALLS):
            self._lasting = fault
        fault = self._lasting or fault
        if fault:
            self.met.append(fault)
        return fault


class Engine(inmemory.Engine):
    """:ivar content: of each container: which of the VM's writes it has
    :ivar images: content of each image
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self.content: dict[str, int] = {}
        self.images: dict[str, int] = {}

    def _called(self, method: str, name: str | None = None) -> None:
        fault = self._process.step("list" if method == "containers" else "engine")
        self._faulty(method, fault)
        if self._late and method not in (*CHANGES, "kill"):
            raise errors.EngineTimeout(f"{method}: no answer within the time limit")
        super()._called(method, name)

    def exists(self, name: str) -> bool:
        self._called("exists")
        return name in self.specs

    def create(self, spec: ContainerSpec, more: Mapping[str, Any] | None = None) -> None:
        if spec.image not in self.images:
            raise errors.EngineNotFound(f"create: there is no image {spec.image}")
        super().create(spec)
        self.content[spec.name] = self.images[spec.image]

    def start(self, name: str) -> None:
        super().start(name)
        assert self.statuses[name] is not Status.FROZEN, f"{name} is frozen, and cannot be started"

    def freeze(self, name: str) -> None:
        if self.statuses.get(name, Status.RUNNING) is not Status.RUNNING:
            raise errors.EngineConflict(f"freeze: {name} does not run")
        super().freeze(name)

    def unfreeze(self, name: str) -> None:
        if self.statuses.get(name, Status.FROZEN) is not Status.FROZEN:
            raise errors.EngineConflict(f"unfreeze: {name} is not frozen")
        super().unfreeze(name)

    def delete(self, name: str) -> None:
        super().delete(name)
        self.content.pop(name, None)

    def rename(self, name: str, new: str) -> None:
        if new in self.specs:
            raise errors.EngineConflict(f"rename: {new} exists")
        super().rename(name, new)
        self.specs[new] = dataclasses.replace(self.specs[new], name=new)
        self.content[new] = self.content.pop(name)

    def attach(self, name: str, part: Part) -> None:
        present = self.specs[name].parts if name in self.specs else ()
        if part in present:
            self._called("attach", name)
        else:
            super().attach(name, part)

    def measured(self) -> tuple[tuple[ContainerState, Any], ...]:
        return tuple((state, self.metrics(state.name)) for state in self.containers())

    def of_vm(self, vm_id: int) -> Iterator[str]:
        """Yield the containers of a VM."""
        return (name for name, spec in self.specs.items() if spec.labels.get(LABEL) == str(vm_id))


class LxdSnapshots:
    """Snapshots of an engine's containers, which go with them. They have the configuration of their time."""

    def __init__(self, engine: Engine, taken: dict[tuple[str, str], tuple[int, ContainerSpec]]) -> None:
        self._engine = engine
        self._taken = taken

    def names(self, container: str) -> tuple[str, ...]:
        self._engine._called("snapshots", container)
        return tuple(sorted(name for owner, name in self._taken if owner == container))

    def create(self, container: str, name: str) -> None:
        self._engine._called("create_snapshot", container)
        self._taken[container, name] = self._engine.content[container], self._engine.specs[container]

    def restore(self, container: str, name: str) -> None:
        self._engine._called("restore_snapshot", container)
        assert self._engine.statuses[container] is Status.STOPPED, f"{container} is reverted while it runs"
        self._engine.content[container], self._engine.specs[container] = self._taken[container, name]

    def delete(self, container: str, name: str) -> None:
        self._engine._called("delete_snapshot", container)
        self._taken.pop((container, name), None)


class DockerEngine(Engine):
    """:ivar tags: names of images: their ids"""

    name = "docker"

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.tags: dict[str, str] = {}

    def has_record(self, name: str) -> bool:
        return name in self.specs

    def wait_started(self, name: str, timeout: float) -> int | None:
        self._called("wait_started", name)
        return None

    def root_ids(self, name: str = "") -> tuple[int, int]:
        return super().root_ids(name) if name in self.specs else os.getuid(), os.getgid()

    def purge(self) -> None:
        """Forget images that nothing names."""
        used = {spec.image for spec in self.specs.values()} | set(self.tags.values())
        for image in self.images.keys() - used:
            del self.images[image]


def image_id(content: int, vm_id: int = 0) -> str:
    return f"sha256:{content:032x}{vm_id:032x}"


def written_id(content: int, vm_id: int) -> str:
    """Return the id of the same in an archive, which has it as a layer of the driver's."""
    return image_id(content | 1 << 120, vm_id)


class DockerImages:
    """Docker's images, in memory: the id tells whose content they are, and which."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine

    def has(self, image: str) -> bool:
        self._engine._called("image")
        return image in self._engine.images

    def architecture(self, image: str) -> str:
        self._engine._called("image")
        return ""

    def size(self, image: str) -> int:
        self._engine._called("image")
        return 0

    def load(self, archive: Any, name: str, image: str, present: Any = ()) -> None:
        self._engine._called("load")
        self._engine.images[image] = int(archive.read())

    def directory(self) -> Path:
        self._engine._called("info")
        return Path("/")

    def save(self, image: str, archive: Path, bounds: Any) -> None:
        self._engine._called("save")
        archive.write_text(str(self._engine.images[image]))

    def divided(self, container: str) -> Divided:
        self._engine._called("divided", container)
        return Divided(self._engine.specs[container].image, Path(container), 0)

    def append(self, image: str, upper: Path, archive: Path, bounds: Any) -> str:
        self._engine._called("append")
        spec = self._engine.specs[upper.name]
        assert self._engine.statuses[spec.name] is Status.STOPPED, f"{spec.name} writes while it is read"
        assert archive.read_text() == str(self._engine.images[spec.image]), "the archive is not of its image"
        archive.write_text(str(self._engine.images[image]))
        return written_id(self._engine.images[image], int(spec.labels[LABEL]))

    def layers(self, image: str) -> tuple[str, ...]:
        self._engine._called("image")
        return ("sha256:base",)

    def layers_of(self, container: str) -> tuple[str, ...]:
        self._engine._called("image", container)
        return ("sha256:base",)

    def times_changes(self) -> bool:
        self._engine._called("info")
        return True

    def append_changes(self, container: str, upper: Path, archive: Path, before: Any, bounds: Any, *, runs: bool
                       ) -> Appended:
        self._engine._called("append", container)
        assert runs or self._engine.statuses[container] is Status.STOPPED, f"{container} writes while it is read"
        content, vm_id = self._engine.content[container], int(self._engine.specs[container].labels[LABEL])
        archive.write_text(str(content))
        return Appended(written_id(content, vm_id), 0, {})

    def commit(self, container: str, repository: str, tag: str) -> str:
        self._engine._called("commit", container)
        content = self._engine.content[container]
        image = image_id(content, int(self._engine.specs[container].labels[LABEL]))
        self._engine.images[image] = content
        self._engine.tags[f"{repository}:{tag}"] = image
        return image

    def names(self, repository: str) -> Mapping[str, str]:
        self._engine._called("images")
        return {name.removeprefix(f"{repository}:"): image for name, image in self._engine.tags.items()
                if name.startswith(f"{repository}:")}

    def tag(self, image: str, repository: str, tag: str) -> None:
        self._engine._called("tag")
        if image not in self._engine.images:
            raise errors.EngineNotFound(f"tag: there is no image {image}")
        self._engine.tags[f"{repository}:{tag}"] = image

    def remove(self, name: str) -> None:
        self._engine._called("untag")
        self._engine.tags.pop(name, None)
        self._engine.purge()


