# SPDX-License-Identifier: Apache-2.0
"""A node of lxdone: records, marks and disks are real files; LXD, mounts and frozen file systems are in memory."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from containerhost.engines.contract import Status
from lxdone.conf import Options
from lxdone.disk import diskformat, filesystems, images
from lxdone.root import reconciler, root_packing, root_state, root_writeback
from lxdone.root.reconciler import Reconciler
from lxdone.vmm import Vmm
from onedriver.actions import Call
from onedriver.node.measure import Measure
from onedriver.vm import Vm
from tests.model.opennebula.engine import Engine, LxdSnapshots
from tests.model.opennebula.node import Commands, Contexts, Node

STARTS = ("deploy", "restore")
MAGIC = b"ustar"  # of a tarball, at byte 257


def tarball(content: int) -> bytes:
    """Return a file that the driver takes for a packed root."""
    return f"{content:<257}".encode() + MAGIC


class Consoles:
    def __init__(self, node: "LxdNode") -> None:
        self._node = node

    def provide(self, vm: Vm) -> None:
        self._node.process.step()

    def end(self, name: str) -> None:
        self._node.process.step()

    def dead(self, running: Any) -> tuple[str, ...]:
        return ()


class RootImages:
    """Images of roots, by their content."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def held(self, disk: Path, origin: Any, directory: Path, limit: int) -> Iterator[str]:
        self._engine._called("import")
        content = int(disk.read_bytes()[:257])
        self._engine.images[str(content)] = content
        yield str(content)

    def release(self, image: str | None, containers: Any) -> None:
        containers()


class Packed:
    size = 1

    def __init__(self, content: int) -> None:
        self._content = content

    def write(self, file: Path) -> None:
        file.write_bytes(tarball(self._content))


class Mounts:
    """:ivar there: mount points: whether the file system is frozen"""

    def __init__(self, node: "LxdNode") -> None:
        self._node = node
        self.there: dict[str, bool] = {}

    def is_there(self, directory: Any) -> bool:
        return str(directory) in self.there

    def mount(self, system: Any, directory: Path, ids: Any) -> None:
        self._node.process.step()
        self.there[str(directory)] = False

    def unmount(self, directory: Path) -> None:
        self._node.process.step()
        self.there.pop(str(directory), None)

    def freeze(self, directory: Path) -> None:
        self._node.process.step()
        self.there[str(directory)] = True

    def thaw(self, directory: Path) -> None:
        self._node.process.step()
        self.there[str(directory)] = False


class LxdNode(Node):
    driver = "lxdone"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.engine = Engine(self.process)
        self.snapshots: dict[tuple[str, str], Any] = {}
        self.mounts = Mounts(self)
        self.transfers: Any = None
        self.connect: Any = None
        self.options = Options(state=str(self.state), owners=str(self.owners), datastores=str(self.datastores))

    def install(self, stack: contextlib.ExitStack) -> None:
        """Let the driver's modules see this host's mounts, and be killed where they write."""
        mounts = self.mounts
        fakes = {"idmounts": SimpleNamespace(mount=mounts.mount, unmount=mounts.unmount, FileSystem=lambda *args: None,
                                             require_unused=lambda file: None, device_of=str),
                 "mountedfs": SimpleNamespace(thaw=mounts.thaw, abandon=lambda directory: None),
                 "fsfreeze": SimpleNamespace(freeze=mounts.freeze),
                 "loops": SimpleNamespace(existing=lambda file: None, belongs=lambda node, file: True),
                 "growth": SimpleNamespace(fill=lambda *args: None, fill_xfs=lambda *args: None,
                                           is_xfs=lambda file: False,
                                           lengthened=lambda *args: contextlib.nullcontext(self.process.step()),
                                           fill_mounted=lambda *args: self.process.step()),
                 "filesystems": SimpleNamespace(
                     is_empty=lambda file: False, head=filesystems.head, find=lambda file: SimpleNamespace(
                         format=diskformat.Format.EXT, start=0, size=0)),
                 "os": SimpleNamespace(path=SimpleNamespace(ismount=mounts.is_there))}
        for name, fake in fakes.items():
            stack.enter_context(mock.patch.object(images, name, fake))
        stack.enter_context(mock.patch.object(reconciler, "POLL_INTERVAL", 0))
        stack.enter_context(mock.patch.object(root_packing, "packed", self._packed))
        for module, name in (*((root_state, name) for name in ("write", "mark", "unmark", "retract", "take")),
                             (images, "atomic_write")):
            stack.enter_context(mock.patch.object(module, name, self._step_before(getattr(module, name))))

    def _step_before(self, action: Any) -> Any:
        def stepping(*args: Any) -> Any:
            self.process.step()
            return action(*args)
        return stepping

    @contextlib.contextmanager
    def _packed(self, exports: Any, name: str, home: Path, timeout: int) -> Iterator[Packed]:
        self.engine._called("export", name)
        yield Packed(self.engine.content[name])
        self.engine._called("discard")

    @property
    def writeback(self) -> root_writeback.RootWriteback:
        exports: Any = SimpleNamespace(discard=lambda *names: self.engine._called("discard"))
        return root_writeback.RootWriteback(lambda compression: exports, self.datastores, 1)

    @property
    def disks(self) -> images.Images:
        return images.Images(self.state, self.datastores, lambda name: None, 1)

    def vmm(self) -> Vmm:
        parts: Any = SimpleNamespace(
            snapshots=LxdSnapshots(self.engine, self.snapshots), root_images=RootImages(self.engine),
            commands=Commands(self.process), consoles=Consoles(self), engine=self.engine)
        return Vmm(self.options, allocator=self.allocator, writeback=self.writeback, disks=self.disks,
                   contexts=Contexts(self.state, self.process), host=self.host, ids=lambda name: None,
                   limit_interface=lambda *args: None, transfers=self.transfers, connect=self.connect, **vars(parts))

    @property
    def reconciler(self) -> Reconciler:
        engine: Any = self.engine
        consoles: Any = Consoles(self)
        return Reconciler(engine, self.writeback, self.disks, Contexts(self.state, self.process), consoles,
                          self.recovery, self.state, lambda vm_id: self.vmm().forget(vm_id))

    def measure(self) -> Measure:
        engine: Any = self.engine
        return Measure(self.driver, engine, self.reconciler.monitored, self.owners, self.state, self.options.pci,
                       self.host, self.datastores)

    def prepare(self, call: Call) -> None:
        if call.action in STARTS and call.vm.pcis:
            self.reconciler.remove_ended()

    def reconcile(self) -> None:
        self.reconciler.reconcile()

    def restart(self) -> None:
        super().restart()
        self.mounts.there.clear()

    def cleared(self, vm_id: int) -> Path | None:
        mark = self.disk(vm_id).with_name(root_state.RUNNING)
        mark.unlink(missing_ok=True)
        return mark

    def replace_disk(self, vm_id: int, number: int, content: int) -> None:
        disk = self.disk(vm_id, number)
        new = disk.with_name("new")
        new.write_bytes(tarball(content) if number == 0 else disk.read_bytes())
        new.replace(disk)

    def transfer(self, vm: Vm) -> None:
        self.disk(vm.id).parent.mkdir()
        self.disk(vm.id).write_bytes(tarball(0))
        for disk in vm.disks[1:]:
            self.make_disk(vm.id, disk.id)

    def make_disk(self, vm_id: int, number: int) -> None:
        self.disk(vm_id, number).write_bytes(bytes(1080) + b"\x53\xef")

    def remove_disks(self, vm_id: int) -> None:
        shutil.rmtree(self.disk(vm_id).parent, ignore_errors=True)

    def leave(self, vm_id: int) -> None:
        """Copy the disks: a file that went to another host and came back is another file."""
        directory = self.disk(vm_id).parent
        if directory.is_dir():
            shutil.copytree(directory, directory.with_suffix(".copy"), symlinks=True)
            shutil.rmtree(directory)
            os.rename(directory.with_suffix(".copy"), directory)

    def content_of_disk(self, vm_id: int) -> int:
        file = self.disk(vm_id)
        return int(file.read_bytes()[:257]) if file.is_file() else -1

    def left(self) -> dict[str, Any]:
        return {"containers": self.engine.specs, "allocation records": self.store.records(), "directories":
                self.homes(), "disks": [path for path in self.state.glob("disks/*")], "mounts": self.mounts.there}

    def remove_orphans(self) -> None:
        """Do as an administrator does with the containers that run though OpenNebula does not know their VMs."""
        for state in self.reconciler.orphans():
            if state.status is not Status.FROZEN or state.name in self.engine.specs:
                self.engine.delete(state.name)
