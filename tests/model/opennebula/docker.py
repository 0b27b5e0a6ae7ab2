# SPDX-License-Identifier: Apache-2.0
"""A node of onedock's: its references, archives and contexts are real files; Docker, mounts and interfaces are in
memory."""

import contextlib
import functools
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from containerhost.engines.network.veth import Pair
from containerhost.errors import HostActionFailed
from onedock import imageref, rootowner
from onedock.conf import Options
from onedock.guest import Guests as RealGuests
from onedock.imageref import ImageRef
from onedock.nics import Nics
from onedock.root_images import RootImages, Snapshots, repository
from onedock.vmm import Vmm
from onedriver.actions import Call
from onedriver.node import monitored, vmlock
from onedriver.node.measure import Measure
from onedriver.vm import Vm
from tests.model.opennebula.engine import DockerEngine, DockerImages, image_id
from tests.model.opennebula.node import DATASTORE, Commands, Contexts, Node


class Volumes:
    """The disks of one VM that are mounted."""

    def __init__(self, node: "DockerNode", vm_id: int) -> None:
        self._node, self._vm_id = node, vm_id
        self.directory = node.state / f"one-{vm_id}" / "media"

    def prepare(self) -> None:
        self._node.process.step()
        self._node.mounts.setdefault(self._vm_id, set())

    def mounted(self) -> frozenset[int]:
        return frozenset(self._node.mounts.get(self._vm_id, ()))

    def mount(self, number: int, file: Path, *, read_only: bool, root: tuple[int, int]) -> None:
        self._node.process.step()
        if self._vm_id not in self._node.mounts:
            raise HostActionFailed(f"{self.directory} is not a place to mount at")
        self._node.mounts[self._vm_id].add(number)

    def unmount(self, number: int) -> None:
        self._node.process.step()
        self._node.mounts.get(self._vm_id, set()).discard(number)

    def grow(self, number: int, file: Path, size: int) -> None:
        self._node.process.step()

    def remove(self) -> None:
        self._node.process.step()
        self._node.mounts.pop(self._vm_id, None)


class Guests(RealGuests):
    def __init__(self, node: "DockerNode") -> None:
        super().__init__(node.state, node.datastores, node.engine.root_ids)
        self._contexts = Contexts(node.state, node.process)
        self._node = node

    def _volumes(self, vm_id: int) -> Any:
        return Volumes(self._node, vm_id)


class Veths:
    """Pairs in memory, of which every inner end is on the host or in a container that has it."""

    def __init__(self, node: "DockerNode") -> None:
        self._node = node

    def marks(self, pair: Pair) -> bool:
        return self._node.links.get(pair.host_end) == pair.mark

    def mark(self, host_end: str) -> str | None:
        return self._node.links.get(host_end)

    def marked(self, beginning: str) -> dict[str, str]:
        return {name: mark for name, mark in self._node.links.items() if mark.startswith(beginning)}

    def is_here(self, name: str) -> bool:
        return True

    def make(self, pair: Pair) -> None:
        self._node.process.step()
        self._node.links[pair.host_end] = pair.mark

    def remove(self, host_end: str) -> None:
        self._node.process.step()
        self._node.links.pop(host_end, None)

    def join(self, host_end: str, bridge: str) -> None:
        self._node.process.step()

    def limit(self, host_end: str, received: Any, sent: Any) -> None:
        self._node.process.step()


class DockerNode(Node):
    """:ivar mounts: disks of each VM that are mounted
    :ivar links: marks of the pairs, by their ends on the host
    """

    driver = "onedock"
    engine: DockerEngine

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.engine = DockerEngine(self.process)
        self.mounts: dict[int, set[int]] = {}
        self.links: dict[str, str] = {}
        self.connect: Any = None
        self.options = Options(state=str(self.state), owners=str(self.owners), datastores=str(self.datastores))

    def install(self, stack: contextlib.ExitStack) -> None:
        """Let the driver be killed where it decides which node has a VM."""
        for module, names in ((rootowner, ("claim", "offer", "withdraw", "take", "accept")),
                              (Guests, ("begin_move", "end_move", "mark_left", "begin"))):
            for each in names:
                stack.enter_context(mock.patch.object(module, each, self._step_before(getattr(module, each))))

    def _step_before(self, action: Any) -> Any:
        @functools.wraps(action)
        def stepping(*args: Any) -> Any:
            self.process.step()
            return action(*args)
        return stepping

    @property
    def images(self) -> Any:
        return DockerImages(self.engine)

    def vmm(self) -> Vmm:
        engine: Any = self.engine
        commands: Any = Commands(self.process)
        veths: Any = Veths(self)
        root_images = RootImages(self.images, self.datastores, self.state, 1)
        return Vmm(self.options, engine, self.allocator, root_images, Snapshots(self.images), commands, Guests(self),
                   Nics(veths), self.host, self.connect)

    def measure(self) -> Measure:
        engine: Any = self.engine
        seen = functools.partial(monitored.containers, self.driver, engine,
                                 lambda found: self.recovery.pending(found) or rootowner.interrupted(self.state))
        return Measure(self.driver, engine, seen, self.owners, self.state, self.options.pci, self.host, self.datastores)

    def prepare(self, call: Call) -> None:
        if call.action == "deploy" and call.vm.pcis:
            self.reconcile()

    def reconcile(self) -> None:
        self.vmm().recover_migrations()
        self.recovery.recover(self.engine.containers())

    def restart(self) -> None:
        super().restart()
        self.mounts.clear()
        self.links.clear()

    # The transfer driver: `onedock node` on the node, as oneadmin, which runs commands as root.

    def archive(self, vm_id: int) -> Path:
        return self.disk(vm_id).with_name(f"{self.disk(vm_id).name}.tar")

    def cleared(self, vm_id: int) -> Path | None:
        return None if self.archive(vm_id).exists() else self.archive(vm_id)

    def transfer(self, vm: Vm) -> None:
        image = image_id(0)
        self.disk(vm.id).parent.mkdir()
        self.engine.images[image] = 0
        self.engine.tags[f"{repository(vm.id)}:disk.0"] = image
        imageref.write(self.disk(vm.id), ImageRef(image, "docker://base"))
        for disk in vm.disks[1:]:
            self.make_disk(vm.id, disk.id)

    def replace_disk(self, vm_id: int, number: int, content: int) -> None:
        archive = self.archive(vm_id)
        archive.write_text(str(content))
        imageref.write(self.disk(vm_id), ImageRef(image_id(content, vm_id), "docker://base", archive.name, vm_id))

    def make_disk(self, vm_id: int, number: int) -> None:
        self.disk(vm_id, number).write_bytes(bytes(imageref.LIMIT + 1))

    def remove_disks(self, vm_id: int) -> None:
        with vmlock.held(self.state, vm_id, 0):
            self.vmm().drop(vm_id)
        self._release(vm_id)
        shutil.rmtree(self.disk(vm_id).parent, ignore_errors=True)

    def _release(self, vm_id: int) -> None:
        if self.disk(vm_id).exists():
            self.images.remove(f"{repository(vm_id)}:disk.0")

    def leave(self, vm_id: int) -> None:
        with vmlock.held(self.state, vm_id, 0):
            self.vmm().leave(vm_id, DATASTORE)
        self._release(vm_id)

    def content_of_disk(self, vm_id: int) -> int:
        file = self.disk(vm_id)
        if not file.is_file():
            return -1
        found = imageref.read(file)
        if found.archive is not None:
            return int(file.with_name(found.archive).read_text())
        return self.engine.images.get(found.image, -1) if found.vm is not None else 0

    def left(self) -> dict[str, Any]:
        return {"containers": self.engine.specs, "allocation records": self.store.records(), "directories":
                self.homes(), "names of images": self.engine.tags, "mounts": self.mounts, "interfaces": self.links}

    def remove_orphans(self) -> None:
        pass
