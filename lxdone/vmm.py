"""What oned can have done with a VM's container: one method for each action, each of which may be repeated.

Every step of a boot can be undone, and undoes itself on an error. What a VM has on this host is always found by its id:
the container's name, the owner records, the folder of its context.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from containerhost.devices.scan import Inventory
from containerhost.engines import ContainerState, Status
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.idmap import idmap
from containerhost.engines.lxd.snapshots import Snapshots
from containerhost.errors import EngineConflict, EngineNotFound
from containerhost.owners import Owner
from containerhost.possession import Possession
from containerhost.rollback import Rollback
from containerhost.spec import ContainerSpec, Part, grants_of
from lxdone import isofiles, refusals, rootfiles, translate
from lxdone.conf import Options
from lxdone.disks import Disks
from lxdone.roots import Roots
from lxdone.rootsaves import RootSaves
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError
from onedriver.node import changes, context, devices
from onedriver.node.commands import Commands
from onedriver.node.context import Contexts
from onedriver.node.holding import attached, attached_disk, complain, own_name, owner
from onedriver.vm import Disk, Nic, Pci, Vm

DRIVER = "lxdone"  # in the owner records
IMAGE_TRIES = 3  # another VM's end may remove the image between its import and its use
SNAPSHOT = "snap-"


class Vmm:
    """:param node_cpus: reads the host's CPUs by NUMA node
    """

    def __init__(self, options: Options, engine: LxdEngine, possession: Possession, roots: Roots, saves: RootSaves,
                 disks: Disks, contexts: Contexts, commands: Commands,
                 inventory: Callable[[], Inventory],
                 node_cpus: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        self._options = options
        self._engine = engine
        self._snapshots = Snapshots(engine.client)
        self._possession = possession
        self._roots = roots
        self._saves = saves
        self._disks = disks
        self._contexts = contexts
        self._commands = commands
        self._inventory = inventory
        self._node_cpus = node_cpus

    # Life.

    def deploy(self, call: Call) -> str:
        """:returns: the deploy id"""
        vm, name = call.vm, translate.name(call.vm_id)
        spec = self._spec(vm)
        requests = self._requests(vm.pcis)
        state = self._find(name)
        if state is None:
            refusals.of_a_new_container(vm)
            self._boot(vm, spec, requests)
        elif state.status is Status.FROZEN:
            self._engine.unfreeze(name)
        elif state.status is not Status.RUNNING:
            self._restart(vm, spec)
        return name

    def shutdown(self, call: Call) -> None:
        """The guest shuts down by itself; it may refuse, and then it runs on."""
        self._end(call, force=False)

    def cancel(self, call: Call) -> None:
        self._end(call, force=True)

    def _end(self, call: Call, *, force: bool) -> None:
        """A VM that stays on this host keeps its container, which is where its disk is, and its devices."""
        refusals.of_leaving(call.vm)
        name = own_name(call)
        if self._find(name) is not None:
            self._commands.cancel(name)
            self._engine.stop(name, timeout=self._options.stop_timeout, force=force)
            if not refusals.is_cleanup(call.vm):
                self._saves.save(name, self._contexts.home(name))
        if refusals.stays(call.vm):
            self._disks.release(call.vm_id)
        else:
            self._remove(name, self._owner(call.vm_id))

    def reboot(self, call: Call) -> None:
        self._stop_and_start(call, force=False)

    def reset(self, call: Call) -> None:
        self._stop_and_start(call, force=True)

    def save(self, call: Call) -> None:
        refusals.of_leaving(call.vm)
        refusals.of_suspending(call.vm)
        self._engine.freeze(self._existing(call).name)

    def restore(self, call: Call) -> None:
        state = self._existing(call)
        if state.status is Status.RUNNING:
            return
        if state.status is not Status.FROZEN:
            raise DriverError(f"container {state.name} was suspended, but is {state.status.value}: the host restarted "
                              "meanwhile and its memory is lost; its disk is not: power the VM off (onevm recover "
                              "--failure, then onevm poweroff --hard) and resume it")
        self._engine.unfreeze(state.name)

    # Disks, network interfaces and devices of a VM that exists.

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
        name = self._existing(call).name
        vm = translate.resized(call.vm, call.arguments["disk_id"], call.arguments["size"])
        refusals.of_resizing(vm, call.arguments["disk_id"])
        spec = self._spec(vm)
        self._disks.provide(vm)
        self._engine.reconfigure(name, self._fitted(vm, spec, self._held(vm)))

    def attach_nic(self, call: Call) -> None:
        part = attached(call)
        name = self._existing(call).name
        if isinstance(part, Nic):
            self._engine.attach(name, translate.nic(call.vm_id, part))
            return
        (request,) = self._requests([part])
        running = self._is_running(name)
        with Rollback(f"attaching {request.address} to {name}") as undo:
            (grant,) = self._possession.acquire([request], self._owner(call.vm_id))
            undo.on_error("possession", self._possession.give_back_one, grant.device.id, self._owner(call.vm_id))
            others = self._held(call.vm, part)
            undo.on_error("the device in the container", self._engine.detach, name, grant, others)
            self._engine.attach(name, grant)
            if running:
                self._engine.verify(name, grants_of((*others, grant)))

    def detach_nic(self, call: Call) -> None:
        part = attached(call)
        name = self._existing(call).name
        if isinstance(part, Nic):
            self._engine.detach(name, translate.nic(call.vm_id, part), self._held(call.vm, part))
            return
        requests = self._requests([part])
        if requests[0].address not in self._possession.held_by(self._owner(call.vm_id)):
            return
        (grant,) = self._possession.grants(requests, self._owner(call.vm_id))
        self._engine.detach(name, grant, self._held(call.vm, part))
        complain(self._possession.give_back_one(grant.device.id, self._owner(call.vm_id)))

    # Changes.

    def resize(self, call: Call) -> None:
        name = self._existing(call).name
        spec = self._spec(call.vm)
        if self._is_running(name):
            changes.of_shrinking(name, spec.memory.size, self._engine.metrics(name).memory)
        self._engine.reconfigure(name, self._fitted(call.vm, spec, self._held(call.vm)))

    def prereconfigure(self, call: Call) -> None:
        """The context is a folder: nothing has to let go of it before it changes."""
        self._existing(call)

    def reconfigure(self, call: Call) -> None:
        self._write_context(call.vm, self._root_ids(self._existing(call).name))

    def exec(self, call: Call) -> None:
        """Done when the command has begun; monitoring tells its end."""
        self._commands.start(self._existing(call).name, call.arguments["command"], call.arguments.get("stdin", ""))

    def exec_cancel(self, call: Call) -> None:
        self._commands.cancel(own_name(call))

    def snapshot_create(self, call: Call) -> str:
        """:returns: what LXD calls the snapshot"""
        name = self._existing(call).name
        snapshot = f"{SNAPSHOT}{changes.snapshot_number(call.arguments['snapshot'])}"
        if snapshot not in self._snapshots.names(name):
            self._snapshots.create(name, snapshot)
        return snapshot

    def snapshot_revert(self, call: Call) -> None:
        """The disk goes back; the devices, limits and network interfaces stay those of now."""
        name, snapshot = self._existing(call).name, self._snapshot(call)
        if snapshot not in self._snapshots.names(name):
            raise BadInput(f"container {name} has no snapshot {snapshot}")
        running = self._is_running(name)
        self._engine.stop(name, timeout=self._options.stop_timeout, force=True)
        self._snapshots.restore(name, snapshot)
        if running:
            self._restart(call.vm, self._spec(call.vm))

    def snapshot_delete(self, call: Call) -> None:
        self._snapshots.delete(self._existing(call).name, self._snapshot(call))

    def _snapshot(self, call: Call) -> str:
        return f"{SNAPSHOT}{changes.snapshot_number(call.arguments['snapshot'].removeprefix(SNAPSHOT))}"

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
        """What can be refused without a look at the host's containers is refused here."""
        translate.require_disks(vm)
        return translate.spec(vm, self._options, self._node_cpus())

    def _boot(self, vm: Vm, spec: ContainerSpec, requests: Sequence[devices.Request]) -> None:
        if translate.root(vm).save:
            self._saves.require_possible(self._root_file(vm))
        with Rollback(f"boot of VM {vm.id}") as undo, rootfiles.opened(vm, self._root_file(vm)) as disk:
            undo.on_error("remove the container", self._remove, spec.name, self._owner(vm.id))
            grants = self._possession.acquire(requests, self._owner(vm.id)) if requests else ()
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
        """Start a stopped container with what its VM is to have now. On an error it stays stopped, with its devices:
        the disk is in it, and the VM still has them for OpenNebula."""
        requests = self._requests(vm.pcis)
        self._return_others(vm, requests)
        grants = self._possession.acquire(requests, self._owner(vm.id)) if requests else ()
        self._write_context(vm, self._root_ids(spec.name))
        self._disks.provide(vm)
        fitted = self._fitted(vm, spec, grants)
        self._engine.reconfigure(spec.name, fitted)
        self._disks.delete_others(vm)
        self._start(vm, fitted.parts)

    def _return_others(self, vm: Vm, requests: Sequence[devices.Request]) -> None:
        """While it was powered off, devices may have been detached without a script being called."""
        wanted = {request.address for request in requests}
        for device_id in sorted(self._possession.held_by(self._owner(vm.id)) - wanted):
            complain(self._possession.give_back_one(device_id, self._owner(vm.id)))

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
                undo.on_error("stop it", self._engine.stop, name, timeout=self._options.stop_timeout, force=True)
                self._engine.verify(name, grants)

    def _stop_and_start(self, call: Call, *, force: bool) -> None:
        name, spec = self._existing(call).name, self._spec(call.vm)
        self._engine.stop(name, timeout=self._options.stop_timeout, force=force)
        self._restart(call.vm, spec)

    def _remove(self, name: str, holder: Owner) -> None:
        """End the container and return what it had; from every state, also when parts of it are gone."""
        state = self._find(name)
        self._commands.cancel(name)
        self._engine.delete(name)
        complain(self._possession.give_back(holder))
        self._contexts.remove(name)
        self._roots.release(state.labels.get(translate.IMAGE_LABEL) if state else None, self._engine.containers())
        self._disks.delete_all(int(holder.uuid))

    # Questions.

    def _owner(self, vm_id: int) -> Owner:
        return owner(DRIVER, self._engine.name, vm_id)

    def _requests(self, pcis: Sequence[Pci]) -> tuple[devices.Request, ...]:
        """The host's devices are only looked for where some are asked for."""
        return devices.requests(pcis, self._inventory(), self._options) if pcis else ()

    def _find(self, name: str) -> ContainerState | None:
        """:raises EngineConflict: a container of that name is not this driver's"""
        try:
            state = self._engine.container(name)
        except EngineNotFound:
            return None
        if translate.LABEL not in state.labels:
            raise EngineConflict(f"there is a container {name} that OpenNebula did not make: rename or remove it")
        return state

    @staticmethod
    def _attached_disk(call: Call) -> Disk:
        disk = attached_disk(call)
        translate.require_further(call.vm_id, disk)
        return disk

    def _existing(self, call: Call) -> ContainerState:
        name = own_name(call)
        state = self._find(name)
        if state is None:
            raise EngineNotFound(f"this host has no container {name}")
        return state

    def _is_running(self, name: str) -> bool:
        return self._engine.container(name).status is Status.RUNNING

    def _held(self, vm: Vm, but: Nic | Pci | None = None) -> tuple[Part, ...]:
        """Grants of the devices that the VM holds, without that of ``but``."""
        held = self._possession.held_by(self._owner(vm.id))
        requests = self._requests([pci for pci in vm.pcis if pci != but])
        mine = [request for request in requests if request.address in held]
        return self._possession.grants(mine, self._owner(vm.id)) if mine else ()
