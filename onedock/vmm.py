"""What oned can have done with a VM's container on Docker: one method for each action, each of which may be repeated.

Every step of a boot can be undone, and undoes itself on an error. What a VM has on this host is always found by its id:
the container's name, the owner records, the folder of its context and disks, its interfaces, its images.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from containerhost.devices.scan import Inventory
from containerhost.engines import ContainerState, Status
from containerhost.engines.docker.engine import DockerEngine
from containerhost.errors import EngineConflict, EngineNotFound, EngineTimeout
from containerhost.owners import Owner
from containerhost.possession import Possession
from containerhost.rollback import Rollback
from containerhost.spec import ContainerSpec, Part, grants_of
from onedock import attributes, refusals, translate
from onedock.attributes import Attributes
from onedock.conf import Options
from onedock.guest import Guests
from onedock.nics import Nics
from onedock.roots import SNAPSHOT, Roots
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError
from onedriver.node import changes, devices
from onedriver.node.holding import attached, attached_disk, complain, own_name, owner
from onedriver.node.names import LABEL, name
from onedriver.vm import Nic, Pci, Vm

DRIVER = "onedock"  # in the owner records
ANEW = "anew"  # a container that takes another one's place has this name until then
LAST_WORDS = 300  # letters


class Vmm:
    """:param node_cpus: reads the host's CPUs by NUMA node
    """

    def __init__(self, options: Options, engine: DockerEngine, possession: Possession, roots: Roots, guests: Guests,
                 nics: Nics, inventory: Callable[[], Inventory],
                 node_cpus: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        self._options = options
        self._engine = engine
        self._possession = possession
        self._roots = roots
        self._guests = guests
        self._nics = nics
        self._inventory = inventory
        self._node_cpus = node_cpus

    # Life.

    def deploy(self, call: Call) -> str:
        """:returns: the deploy id"""
        vm, own = call.vm, name(call.vm_id)
        chosen, spec = self._spec(vm)
        state = self._find(own)
        if state is None:
            refusals.of_a_new_container(vm, self._roots.is_kept(vm))
            self._boot(vm, spec, chosen)
        elif state.status is Status.FROZEN:
            self._engine.unfreeze(own)
        elif state.status is not Status.RUNNING:
            self._restart(vm, spec)
        return own

    def shutdown(self, call: Call) -> None:
        """Its program is asked to end; it may refuse, and then it runs on."""
        self._end(call, force=False)

    def cancel(self, call: Call) -> None:
        self._end(call, force=True)

    def _end(self, call: Call, *, force: bool) -> None:
        """A VM that stays on this host keeps its container, with what it wrote, and its devices."""
        own = own_name(call)
        found = self._find(own) is not None
        if found:
            self._engine.stop(own, timeout=self._options.stop_timeout, force=force)
        if refusals.stays(call.vm):
            return
        if found and refusals.keeps(call.vm, translate.is_persistent(call.vm)):
            self._roots.keep(call.vm_id, self._roots.file(call.vm))
        self.remove(call.vm_id)

    def leave(self, vm_id: int, system_ds: int) -> None:
        """A VM that is off moves to another host: what it wrote goes with its disk. Done already when it has no
        container here."""
        own = name(vm_id)
        state = self._find(own)
        if state is None:
            return
        if state.status is not Status.STOPPED:
            raise DriverError(f"container {own} is {state.status.value}; only one that is off can leave")
        self._roots.keep(vm_id, self._roots.file_in(vm_id, system_ds))
        self.remove(vm_id)

    def reboot(self, call: Call) -> None:
        self._stop_and_start(call, force=False)

    def reset(self, call: Call) -> None:
        self._stop_and_start(call, force=True)

    def save(self, call: Call) -> None:
        refusals.of_taking_memory_along(call.vm)
        self._engine.freeze(self._existing(call).name)

    def restore(self, call: Call) -> None:
        state = self._existing(call)
        if state.status is Status.RUNNING:
            return
        if state.status is not Status.FROZEN:
            raise DriverError(f"container {state.name} was suspended, but is {state.status.value}: the host restarted "
                              "meanwhile and its memory is lost; what it wrote is not: power the VM off (onevm recover "
                              "--failure, then onevm poweroff --hard) and resume it")
        self._engine.unfreeze(state.name)

    # Disks, network interfaces and devices of a VM that exists.

    def attach_disk(self, call: Call) -> None:
        self._existing(call)
        disk = attached_disk(call)
        translate.require_volume(disk)
        self._guests.mount(call.vm, disk)

    def detach_disk(self, call: Call) -> None:
        """Its file is the transfer driver's."""
        self._existing(call)
        self._guests.unmount(call.vm, attached_disk(call))

    def resize_disk(self, call: Call) -> None:
        self._existing(call)
        disk, size = translate.require_resizable(call.vm, call.arguments["disk_id"], call.arguments["size"])
        self._guests.grow(call.vm, disk, size)

    def attach_nic(self, call: Call) -> None:
        part = attached(call)
        own = self._existing(call).name
        if isinstance(part, Nic):
            self._attach_interface(call.vm, part)
            return
        (request,) = self._requests([part])
        with Rollback(f"attaching {request.address} to {own}") as undo:
            (grant,) = self._possession.acquire([request], self._owner(call.vm_id))
            undo.on_error("possession", self._possession.give_back_one, grant.device.id, self._owner(call.vm_id))
            others = self._held(call.vm, part)
            undo.on_error("the device in the container", self._engine.detach, own, grant, others)
            self._engine.attach(own, grant)
            if self._is_running(own):
                self._engine.verify(own, grants_of((*others, grant)))

    def _attach_interface(self, vm: Vm, nic: Nic) -> None:
        own = name(vm.id)
        with Rollback(f"attaching NIC {nic.id} to {own}") as undo:
            if self._nics.make(vm, nic, running=self._has_interface(own, nic)):
                undo.on_error("the pair", self._nics.remove_one, vm, nic)
            self._engine.attach(own, self._nics.part(vm, nic))
        self._guests.write(vm)

    def _has_interface(self, own: str, nic: Nic) -> bool:
        state = self._engine.container(own)
        return state.status is not Status.STOPPED and f"eth{nic.id}" in state.interfaces

    def detach_nic(self, call: Call) -> None:
        part = attached(call)
        own = self._existing(call).name
        if isinstance(part, Nic):
            self._engine.detach(own, self._nics.part(call.vm, part), self._held(call.vm, part))
            self._nics.remove_one(call.vm, part)
            return
        requests = self._requests([part])
        if requests[0].address not in self._possession.held_by(self._owner(call.vm_id)):
            return
        (grant,) = self._possession.grants(requests, self._owner(call.vm_id))
        self._engine.detach(own, grant, self._held(call.vm, part))
        complain(self._possession.give_back_one(grant.device.id, self._owner(call.vm_id)))

    # Changes.

    def resize(self, call: Call) -> None:
        own = self._existing(call).name
        _, spec = self._spec(call.vm)
        if self._is_running(own):
            changes.of_shrinking(own, spec.memory.size, self._engine.metrics(own).memory)
        self._engine.reconfigure(own, spec)

    def prereconfigure(self, call: Call) -> None:
        """The context is a folder: nothing has to let go of it before it changes."""
        self._existing(call)

    def reconfigure(self, call: Call) -> None:
        """The guest sees its new context, and its interfaces have their new addresses."""
        own = self._existing(call).name
        self._guests.write(call.vm)
        present = self._engine.container(own).interfaces
        for part in self._nics.parts(call.vm):
            if part.name in present:
                self._engine.attach(own, part)

    def snapshot_create(self, call: Call) -> str:
        """:returns: what the snapshot is called on this host"""
        self._existing(call)
        snapshot = f"{SNAPSHOT}{changes.snapshot_number(call.arguments['snapshot'])}"
        if snapshot not in self._roots.snapshots(call.vm_id):
            self._roots.create_snapshot(call.vm_id, snapshot)
        return snapshot

    def snapshot_revert(self, call: Call) -> None:
        """The root goes back; the devices, limits and network interfaces stay those of now. A new container takes the
        old one's place."""
        own, snapshot = self._existing(call).name, self._snapshot(call)
        image = self._roots.snapshots(call.vm_id).get(snapshot)
        if image is None:
            raise BadInput(f"container {own} has no snapshot {snapshot}")
        chosen, spec = self._spec(call.vm)
        running, other = self._is_running(own), f"{own}-{ANEW}"
        self._engine.stop(own, timeout=self._options.stop_timeout, force=True)
        with Rollback(f"revert of {own} to {snapshot}") as undo:
            undo.on_error("the new container", self._engine.delete, other)
            self._engine.delete(other)
            # Made anew with all it may have, it gets at its start what it is to have then.
            parts = (*self._nics.parts(call.vm), *self._held(call.vm))
            self._create(call.vm, dataclasses.replace(spec, name=other, parts=parts), image, chosen)
            self._engine.delete(own)
        self._engine.rename(other, own)
        self._roots.hold(call.vm_id, image)
        if running:
            self._restart(call.vm, spec)

    def snapshot_delete(self, call: Call) -> None:
        self._existing(call)
        self._roots.delete_snapshot(call.vm_id, self._snapshot(call))

    def _snapshot(self, call: Call) -> str:
        return f"{SNAPSHOT}{changes.snapshot_number(call.arguments['snapshot'].removeprefix(SNAPSHOT))}"

    # Steps.

    def _spec(self, vm: Vm) -> tuple[Attributes, ContainerSpec]:
        """What can be refused without a look at the host's containers is refused here."""
        chosen = attributes.read(vm.own, vm.context, self._options.raw_options)
        self._guests.require_possible(vm)
        return chosen, translate.spec(vm, chosen, self._options, self._node_cpus())

    def _boot(self, vm: Vm, spec: ContainerSpec, chosen: Attributes) -> None:
        requests = self._requests(vm.pcis)
        with Rollback(f"boot of VM {vm.id}") as undo:
            undo.on_error("remove the container", self.remove, vm.id)
            image = self._roots.ensure(vm)
            grants = self._possession.acquire(requests, self._owner(vm.id)) if requests else ()
            self._guests.write(vm)
            self._guests.provide(vm)
            parts: tuple[Part, ...] = (*self._nics.provide(vm, running=False), *grants)
            self._create(vm, dataclasses.replace(spec, parts=parts), image, chosen)
            self._start(spec.name, parts)

    def _create(self, vm: Vm, spec: ContainerSpec, image: str, chosen: Attributes) -> None:
        self._engine.create(dataclasses.replace(spec, image=image, mounts=self._guests.mounts(vm.id)), chosen.raw)

    def _restart(self, vm: Vm, spec: ContainerSpec) -> None:
        """Start a stopped container with what its VM is to have now. On an error it stays stopped, with its devices:
        what it wrote is in it, and the VM still has them for OpenNebula."""
        requests = self._requests(vm.pcis)
        self._return_others(vm, requests)
        grants = self._possession.acquire(requests, self._owner(vm.id)) if requests else ()
        self._guests.write(vm)
        self._guests.provide(vm)
        parts: tuple[Part, ...] = (*self._nics.provide(vm, running=False), *grants)
        self._nics.remove(vm.id, frozenset(nic.target for nic in vm.nics))
        self._engine.refit(spec.name, parts)
        self._engine.reconfigure(spec.name, spec)
        self._start(spec.name, parts)

    def _return_others(self, vm: Vm, requests: Sequence[devices.Request]) -> None:
        """While it was powered off, devices may have been detached without a script being called."""
        wanted = {request.address for request in requests}
        for device_id in sorted(self._possession.held_by(self._owner(vm.id)) - wanted):
            complain(self._possession.give_back_one(device_id, self._owner(vm.id)))

    def _start(self, own: str, parts: Sequence[Part]) -> None:
        """One that fails at once, or sees more or less than it was granted, is ended again."""
        self._engine.start(own)
        with Rollback(f"start of {own}") as undo:
            undo.on_error("stop it", self._engine.stop, own, timeout=self._options.stop_timeout, force=True)
            self._require_begun(own)
            grants = grants_of(parts)
            if grants and self._is_running(own):
                self._engine.verify(own, grants)

    def _require_begun(self, own: str) -> None:
        """:raises DriverError: its program ended at once, and not well"""
        try:
            status = self._engine.await_end(own, self._options.settle)
        except EngineTimeout:
            return
        if status != 0:
            last = " ".join(self._engine.console_log(own).decode(errors="replace").split())[-LAST_WORDS:]
            raise DriverError(f"container {own} started, but its program ended at once with status {status}; its last "
                              f"words: {last or 'none'}")

    def _stop_and_start(self, call: Call, *, force: bool) -> None:
        own = self._existing(call).name
        _, spec = self._spec(call.vm)
        self._engine.stop(own, timeout=self._options.stop_timeout, force=force)
        self._restart(call.vm, spec)

    def remove(self, vm_id: int) -> None:
        """End the container and return what the VM had; from every state, also when parts of it are gone."""
        own = name(vm_id)
        self._find(own)
        self._engine.delete(own)
        self._engine.delete(f"{own}-{ANEW}")
        complain(self._possession.give_back(self._owner(vm_id)))
        self._nics.remove(vm_id)
        self._guests.remove(vm_id)
        self._roots.release(vm_id)

    # Questions.

    def _requests(self, pcis: Sequence[Pci]) -> tuple[devices.Request, ...]:
        """The host's devices are only looked for where some are asked for."""
        return devices.requests(pcis, self._inventory(), self._options) if pcis else ()

    def _owner(self, vm_id: int) -> Owner:
        return owner(DRIVER, self._engine.name, vm_id)

    def _find(self, own: str) -> ContainerState | None:
        """:raises EngineConflict: a container of that name is not this driver's"""
        try:
            state = self._engine.container(own)
        except EngineNotFound:
            return self._found_anew(own)
        if LABEL not in state.labels:
            raise EngineConflict(f"there is a container {own} that OpenNebula did not make: rename or remove it")
        return state

    def _found_anew(self, own: str) -> ContainerState | None:
        """Of a revert that was killed between the old container's end and the new one's name."""
        try:
            self._engine.rename(f"{own}-{ANEW}", own)
        except EngineNotFound:
            return None
        return self._engine.container(own)

    def _existing(self, call: Call) -> ContainerState:
        own = own_name(call)
        state = self._find(own)
        if state is None:
            raise EngineNotFound(f"this host has no container {own}")
        return state

    def _is_running(self, own: str) -> bool:
        return self._engine.container(own).status is Status.RUNNING

    def _held(self, vm: Vm, but: Nic | Pci | None = None) -> tuple[Part, ...]:
        """Grants of the devices that the VM holds, without that of ``but``."""
        held = self._possession.held_by(self._owner(vm.id))
        requests = self._requests([pci for pci in vm.pcis if pci != but])
        mine = [request for request in requests if request.address in held]
        return self._possession.grants(mine, self._owner(vm.id)) if mine else ()
