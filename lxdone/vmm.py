"""What oned can have done with a VM's container on LXD: what of it LXD alone has."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from containerhost.devices.scan import Inventory
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.idmap import idmap
from containerhost.engines.lxd.snapshots import Snapshots
from containerhost.errors import EngineNotFound
from containerhost.possession import Possession
from containerhost.rollback import Rollback
from containerhost.spec import ContainerSpec, Part, grants_of
from lxdone import isofiles, refusals, rootfiles, translate
from lxdone.conf import Options
from lxdone.disks import Disks
from lxdone.roots import Roots
from lxdone.rootsaves import RootSaves
from onedriver.actions import Call
from onedriver.errors import BadInput
from onedriver.node import changes, context
from onedriver.node.commands import Commands
from onedriver.node.context import Contexts
from onedriver.node.holding import attached_disk, complain, own_name
from onedriver.node.vmm import BaseVmm
from onedriver.vm import Disk, Nic, Vm

IMAGE_TRIES = 3  # another VM's end may remove the image between its import and its use


class Vmm(BaseVmm):
    driver = "lxdone"
    _options: Options
    _engine: LxdEngine
    _snapshots: Snapshots

    def __init__(self, options: Options, engine: LxdEngine, possession: Possession, roots: Roots, saves: RootSaves,
                 disks: Disks, contexts: Contexts, commands: Commands,
                 inventory: Callable[[], Inventory],
                 node_cpus: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        super().__init__(options, engine, possession, Snapshots(engine.client), inventory, node_cpus)
        self._roots = roots
        self._saves = saves
        self._disks = disks
        self._contexts = contexts
        self._commands = commands

    # Life.

    def _end(self, call: Call, *, force: bool) -> None:
        refusals.of_leaving(call.vm)
        name = own_name(call)
        if self._find(name) is not None:
            self._commands.cancel(name)
            self._stop(name, force=force)
            if not refusals.is_cleanup(call.vm):
                self._saves.save(name, self._contexts.home(name))
        if changes.stays(call.vm):
            self._disks.release(call.vm_id)
        else:
            self.remove(call.vm_id)

    def _require_suspendable(self, vm: Vm) -> None:
        refusals.of_leaving(vm)
        refusals.of_suspending(vm)

    # Disks and network interfaces of a VM that exists.

    def attach_disk(self, call: Call) -> None:
        disk = self._attached_disk(call)
        name, part = self._existing(call).name, self._disks.part(call.vm_id, disk)
        with Rollback(f"attaching disk {disk.id} to {name}") as undo:
            if self._disks.make(call.vm, disk):
                undo.on_error("what it needs on the host", self._disks.delete, call.vm_id, disk)
            undo.on_error("the disk in the container", self._engine.detach, name, part)
            self._engine.attach(name, part)

    def detach_disk(self, call: Call) -> None:
        """OpenNebula removes a volatile disk that was detached, and so does this. A disk that is in use stays."""
        disk = self._attached_disk(call)
        name, part = self._existing(call).name, self._disks.part(call.vm_id, disk)
        with Rollback(f"detaching disk {disk.id} from {name}") as undo:
            undo.on_error("the disk in the container", self._engine.attach, name, part)
            undo.on_error("what it needs on the host", self._disks.make, call.vm, disk)
            self._engine.detach(name, part)
            self._disks.delete(call.vm_id, disk)

    def resize_disk(self, call: Call) -> None:
        self._existing(call)
        vm = translate.resized(call.vm, call.arguments["disk_id"], call.arguments["size"])
        refusals.of_resizing(vm, call.arguments["disk_id"])
        spec = self._spec(vm)
        self._disks.provide(vm)
        self._reconfigure(vm, spec)

    @staticmethod
    def _attached_disk(call: Call) -> Disk:
        disk = attached_disk(call)
        translate.require_further(call.vm_id, disk)
        return disk

    def _attach_interface(self, vm: Vm, nic: Nic) -> None:
        self._engine.attach(translate.name(vm.id), translate.nic(vm.id, nic))

    def _detach_interface(self, vm: Vm, nic: Nic) -> None:
        self._engine.detach(translate.name(vm.id), translate.nic(vm.id, nic), self._held(vm, nic))

    # Changes.

    def _reconfigure(self, vm: Vm, spec: ContainerSpec) -> None:
        self._engine.reconfigure(spec.name, self._fitted(vm, spec, self._held(vm)))

    def reconfigure(self, call: Call) -> None:
        self._write_context(call.vm, self._root_ids(self._existing(call).name))

    def exec(self, call: Call) -> None:
        """Done when the command has begun; monitoring tells its end."""
        self._commands.start(self._existing(call).name, call.arguments["command"], call.arguments.get("stdin", ""))

    def exec_cancel(self, call: Call) -> None:
        self._commands.cancel(own_name(call))

    def snapshot_revert(self, call: Call) -> None:
        """The disk goes back; the devices, limits and network interfaces stay those of now."""
        name, snapshot = self._existing(call).name, self._snapshot(call)
        if snapshot not in self._snapshots.names(name):
            raise BadInput(f"container {name} has no snapshot {snapshot}")
        running = self._is_running(name)
        self._stop(name, force=True)
        self._snapshots.restore(name, snapshot)
        if running:
            self._restart(call.vm, self._spec(call.vm))

    # Steps.

    def _root_file(self, vm: Vm) -> Path:
        return self._file(vm, translate.root(vm).id)

    def _file(self, vm: Vm, disk_id: int) -> Path:
        return Path(self._options.datastores) / str(vm.system_ds) / str(vm.id) / f"disk.{disk_id}"

    def _write_context(self, vm: Vm, owner: tuple[int, int] | None) -> Path:
        """The variables come with the VM; files are on the context disk alone, which the transfer driver made."""
        bring = None
        if context.has_files(vm.context):
            bring = functools.partial(isofiles.extract, self._file(vm, translate.context_disk(vm)),
                                      limit=self._options.operation_timeout)
        return self._contexts.write(translate.name(vm.id), vm.context, owner, bring)

    def _root_ids(self, name: str) -> tuple[int, int]:
        ids = idmap(self._engine.client, name)
        return ids.root if ids else (0, 0)

    def _spec(self, vm: Vm) -> ContainerSpec:
        translate.require_disks(vm)
        return translate.spec(vm, self._options, self._node_cpus())

    def _boot(self, vm: Vm, spec: ContainerSpec) -> None:
        changes.of_a_new_container(vm)
        requests = self._requests(vm.pcis)
        if translate.root(vm).save:
            self._saves.require_possible(self._root_file(vm))
        with Rollback(f"boot of VM {vm.id}") as undo, rootfiles.opened(vm, self._root_file(vm)) as disk:
            undo.on_error("remove the container", self.remove, vm.id)
            grants = self._acquire(vm, requests)
            folder = self._write_context(vm, None)
            parts: tuple[Part, ...] = (*translate.nics(vm), *self._disks.provide_volatile(vm), *grants)
            self._create(dataclasses.replace(spec, parts=parts, mounts=(translate.context_mount(str(folder)),)), disk,
                         folder.parent)
            self._write_context(vm, self._root_ids(spec.name))
            for part in self._disks.provide_images(vm):
                self._engine.attach(spec.name, part)
            self._start(vm, parts)

    def _create(self, spec: ContainerSpec, disk: Path, folder: Path) -> None:
        """:param folder: the VM's own"""
        for last in (False,) * (IMAGE_TRIES - 1) + (True,):
            fingerprint = self._roots.ensure(disk, folder)
            labels = dict(spec.labels) | {translate.IMAGE_LABEL: fingerprint}
            try:
                return self._engine.create(dataclasses.replace(spec, image=fingerprint, labels=labels))
            except EngineNotFound:
                if last:
                    raise
                self._engine.delete(spec.name)

    def _restart(self, vm: Vm, spec: ContainerSpec) -> None:
        grants = self._acquire_anew(vm)
        self._write_context(vm, self._root_ids(spec.name))
        self._disks.provide(vm)
        fitted = self._fitted(vm, spec, grants)
        self._engine.reconfigure(spec.name, fitted)
        self._disks.delete_others(vm)
        self._start(vm, fitted.parts)

    def _fitted(self, vm: Vm, spec: ContainerSpec, grants: Sequence[Part]) -> ContainerSpec:
        image = self._engine.container(spec.name).labels.get(translate.IMAGE_LABEL, "")
        return dataclasses.replace(spec, parts=(*translate.nics(vm), *self._disks.parts(vm), *grants),
                                   labels=dict(spec.labels) | {translate.IMAGE_LABEL: image})

    def _start(self, vm: Vm, parts: Sequence[Part]) -> None:
        """One that sees more or less than it was granted is ended again."""
        name = translate.name(vm.id)
        if translate.root(vm).save:
            self._saves.mark(self._contexts.home(name), self._root_file(vm))
        self._engine.start(name)
        grants = grants_of(parts)
        if grants:
            with Rollback(f"start of {name}") as undo:
                undo.on_error("stop it", self._stop, name, force=True)
                self._engine.verify(name, grants)

    def remove(self, vm_id: int) -> None:
        """End the container and return what it had; from every state, also when parts of it are gone."""
        name = translate.name(vm_id)
        state = self._find(name)
        self._commands.cancel(name)
        self._engine.delete(name)
        complain(self._possession.give_back(self._owner(vm_id)))
        self._contexts.remove(name)
        self._roots.release(state.labels.get(translate.IMAGE_LABEL) if state else None, self._engine.containers())
        self._disks.delete_all(vm_id)
