# SPDX-License-Identifier: Apache-2.0
"""Run oned's actions on a VM's container on Docker: those parts that are specific to Docker.

A VM's resources on this host are found by its id, including its disks' mounts, its interfaces and its images.
"""

import dataclasses
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.docker.config import own_view
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.spec import ContainerSpec, Part, grants_of
from containerhost.errors import EngineConflict, EngineError, EngineNotFound
from containerhost.guest import resources
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback
from onedock import addresses, attributes, lcm_states, rootowner, translate
from onedock.conf import DRIVER, Options
from onedock.guest import Guests, has_left, require_left
from onedock.migrations import Connect, MigratingVmm
from onedock.nics import Nics, spec_nic
from onedock.root_images import RootImages, Snapshots
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import validation
from onedriver.node.commands import Commands
from onedriver.node.limits import shared_memory
from onedriver.node.names import LABEL, name
from onedriver.node.vm_ids import attached_disk, complain, own_name
from onedriver.vm import Nic, Pci, Vm

LOG = logging.getLogger(__name__)

#: After a container's name and a hyphen: of one that takes its place, until it does; of the one that had it before.
ANEW, OLD = "anew", "old"
LAST_WORDS = 300  # letters


class Vmm(MigratingVmm):
    driver = DRIVER
    _options: Options
    _engine: DockerEngine
    _snapshots: Snapshots

    def __init__(self, options: Options, engine: DockerEngine, allocator: DeviceAllocator, root_images: RootImages,
                 snapshots: Snapshots, commands: Commands, guests: Guests, nics: Nics, host: Host,
                 connect: Connect) -> None:
        super().__init__(options, engine, allocator, snapshots, commands, host)
        self._root_images = root_images
        self._guests = guests
        self._nics = nics
        self._connect = connect

    # Life.

    def deploy(self, call: Call) -> str:
        self.recover_migration(call.vm_id)
        self._root_images.require_newest(call.vm_id, self._root_images.file(call.vm))
        return super().deploy(call)

    def _end(self, call: Call, *, force: bool) -> None:
        own, vm, file = own_name(call), call.vm, self._root_images.file(call.vm)
        remains = validation.stays(vm) or lcm_states.resumed(vm)
        keeps = not remains and lcm_states.keeps(vm, vm.is_persistent)
        forced = vm.lcm_state in lcm_states.CLEANUP
        if not forced:
            self.recover_migration(vm.id)
        found = self._find(own, vm) is not None
        if not found and not forced:
            self._require_here(file)

        def stop() -> None:
            self._commands.cancel(own)
            self._stop(own, force=force)

        if found and keeps:
            self._root_images.keep(vm.id, file, stop)
        elif found:
            stop()
        elif keeps:
            require_left(Path(self._options.state), vm.id)
        if remains:
            return
        self._remove(call.vm_id)
        try:
            self._root_images.release(call.vm_id)
        except EngineError as error:
            LOG.warning("VM %s has ended, and its images stay until the transfer driver deletes or moves its disks: %s",
                        call.vm_id, error)

    def _unfreeze(self, vm: Vm) -> None:
        """Resume a VM, and reconnect its ports of Open vSwitch, which OpenNebula removed at its suspension."""
        for nic in vm.nics:
            self._nics.make(vm, nic, running=True)
        super()._unfreeze(vm)

    def _require_suspendable(self, vm: Vm) -> None:
        lcm_states.of_taking_memory_along(vm)

    def drop(self, vm_id: int) -> None:
        """Remove a VM like :meth:`remove`, by an id that another VM may have had before.

        A container that OpenNebula did not create stays, and the VM, which never had one besides it, ends."""
        own = name(vm_id)
        if self._is_namesake(own):
            LOG.warning("Container %s belongs to an older VM %s, and stays", own, vm_id)
            return
        try:
            self._find(own)
        except EngineConflict as error:
            LOG.warning("The container of VM %s was not created by this driver and is not changed: %s", vm_id, error)
            self._remove_beside(vm_id)
        else:
            self._remove(vm_id)
        self._root_images.release(vm_id)

    def leave(self, vm_id: int, system_ds: int) -> None:
        """Prepare a stopped VM to move to another host, saving its data to its disk. Idempotent."""
        own = name(vm_id)
        if self._is_namesake(own):
            raise EngineConflict(f"container {own} belongs to an older VM {vm_id}")
        if not self.recover_migration(vm_id):
            return
        state = self._find(own)
        if state is None:
            require_left(Path(self._options.state), vm_id)
        elif state.status is not Status.STOPPED:
            raise DriverError(f"container {own} is {state.status.value}; only a stopped one can leave")
        else:
            self._root_images.keep(vm_id, self._root_images.file_in(vm_id, system_ds))
        self.remove(vm_id)  # of one without a container, what its end could not

    # Disks and network interfaces of a VM that exists.

    def attach_disk(self, call: Call) -> None:
        self._existing(call)
        disk = attached_disk(call)
        translate.require_volume(disk)
        self._guests.mount(call.vm, disk)

    def detach_disk(self, call: Call) -> None:
        """Detach a disk. The TM driver owns the disk file."""
        self._existing(call)
        self._guests.unmount(call.vm, attached_disk(call))

    def resize_disk(self, call: Call) -> None:
        self._existing(call)
        disk, size = translate.require_resizable(call.vm, call.arguments["disk_id"], call.arguments["size"])
        self._guests.grow(call.vm, disk, size)

    def uses_disk(self, vm_id: int, system_ds: int, disk_id: int) -> bool:
        """Return whether the VM's container has the disk mounted, after unmounting every disk of a stopped one.

        :raises DriverError: another node has the VM
        :raises DeviceInUse: another process on this node uses the disk's file
        """
        self.recover_migration(vm_id)
        state = self._find(name(vm_id))
        if state is None:
            self._require_here(self._root_images.file_in(vm_id, system_ds))
        if state is None or state.status is Status.STOPPED:
            self._guests.unmount_all(vm_id)
        elif self._guests.has(vm_id, disk_id):
            return True
        self._guests.require_unused(self._root_images.file_in(vm_id, system_ds, disk_id))
        return False

    def frozen_disk(self, vm_id: int, disk_id: int) -> AbstractContextManager[None]:
        """Block writes to a disk that the VM's container has mounted, within the block."""
        return self._guests.frozen(vm_id, disk_id, self._options.operation_timeout)

    def _attach_interface(self, vm: Vm, nic: Nic) -> None:
        own = name(vm.id)
        with Rollback(f"attaching NIC {nic.id} to {own}") as undo:
            if self._nics.make(vm, nic, running=self._has_interface(own, nic)):
                undo.on_error("the pair", self._nics.remove_one, vm, nic)
            self._engine.attach(own, spec_nic(vm, nic))
        self._guests.write(vm)

    def _has_interface(self, own: str, nic: Nic) -> bool:
        state = self._engine.container(own)
        return state.status is not Status.STOPPED and f"eth{nic.id}" in state.interfaces

    def detach_nic(self, call: Call) -> None:
        """Detach a NIC or device without reading addresses, which its owner may have broken in the context."""
        super().detach_nic(call._replace(vm=call.vm._replace(context={})))

    def _detach_interface(self, vm: Vm, nic: Nic) -> None:
        self._engine.detach(name(vm.id), spec_nic(vm, nic))
        self._nics.remove_one(vm, nic)

    def limit_nic(self, vm_id: int, nic_id: int, received: int | None, sent: int | None) -> None:
        """Limit the rates of an existing VM's NIC: bytes per second; None is no limit."""
        self._find(name(vm_id))
        self._nics.limit(vm_id, nic_id, received, sent)

    # Changes.

    def _reconfigure(self, vm: Vm, spec: ContainerSpec) -> None:
        with self._cores.bound(spec) as bound:
            self._engine.reconfigure(spec.name, self._notices.resized(bound))

    def reconfigure(self, call: Call) -> None:
        """Update the guest's context, and the addresses of its interfaces."""
        own = self._existing(call).name
        self._guests.write(call.vm)
        present = self._engine.container(own).interfaces
        for part in self._nics.parts(call.vm):
            if part.name in present:
                self._engine.attach(own, part)

    def snapshot_revert(self, call: Call) -> None:
        """Revert the root; devices, limits and network interfaces keep their present state.

        A new container replaces the old one, which is removed when the new one works; on an error the old one is
        restored.

        The VM runs afterwards in any case: oned reverts only running VMs (source: its DispatchManager), and one that
        is off was stopped by an interrupted revert."""
        own, snapshot = self._existing(call).name, self._snapshot(call)
        image = self._snapshots.images(own).get(snapshot)
        if image is None:
            raise BadInput(f"container {own} has no snapshot {snapshot}")
        spec = self._spec(call.vm)
        view = self._allocator.view()
        self._require_startable(call.vm, view)
        # Made anew with all it may have, it gets at its start what it is to have then.
        parts: tuple[Part, ...] = (*self._nics.parts(call.vm), *self._held(call.vm, view))
        self._delete_aside(own)  # of an earlier revert that was killed
        with Rollback(f"revert of {own} to {snapshot}") as undo:
            undo.on_error("let it run", self._run_again, call.vm, spec, view)
            undo.on_error("the old container", self._bring_back, own)
            self._stop(own, force=True)
            self._create(call.vm, dataclasses.replace(spec, name=f"{own}-{ANEW}", parts=parts), image)
            self._engine.rename(own, f"{own}-{OLD}")
            self._engine.rename(f"{own}-{ANEW}", own)
            self._restart(call.vm, spec, view)
        self._root_images.hold(call.vm_id, image)
        self._engine.delete(f"{own}-{OLD}")

    def _bring_back(self, own: str) -> None:
        """Undo a revert from any step."""
        if self._engine.exists(f"{own}-{OLD}"):
            if self._engine.exists(own):
                self._stop(own, force=True)
                self._engine.rename(own, f"{own}-{ANEW}")
            self._engine.rename(f"{own}-{OLD}", own)
        self._engine.delete(f"{own}-{ANEW}")

    # Steps.

    def _requests(self, vm: Vm, pcis: Sequence[Pci], view: HostView) -> tuple[Request, ...]:
        return tuple(with_addresses(vm, pci, request)
                     for pci, request in zip(pcis, super()._requests(vm, pcis, view), strict=True))

    def _spec(self, vm: Vm) -> ContainerSpec:
        chosen = attributes.read(vm.own, vm.context, self._options.raw_options)
        self._guests.require_possible(vm)
        shared_memory(vm)
        return translate.spec(vm, chosen, self._options, self._node_cores(vm))

    def _boot(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        ref = self._root_images.ref(vm)
        rootowner.require_here(self._root_images.file(vm), ref)
        is_whole = self._root_images.is_kept(vm) and has_left(Path(self._options.state), vm.id)
        validation.of_a_new_container(vm, is_whole)
        requests = self._requests(vm, vm.pcis, view)
        with Rollback(f"boot of VM {vm.id}") as undo:
            undo.on_error("remove the container", self.remove, vm.id)
            self._guests.mark_left(vm.id)
            image = self._root_images.ensure(vm)
            rootowner.accept(Path(self._options.state), vm.id, ref.image)
            grants = self._acquire(vm, requests, view)
            self._guests.write(vm)
            self._guests.provide(vm)
            parts: tuple[Part, ...] = (*self._nics.provide(vm), *grants)
            self._create(vm, dataclasses.replace(spec, parts=parts), image)
            self._start(vm, parts)

    def _create(self, vm: Vm, spec: ContainerSpec, image: str) -> None:
        beside = attributes.raw(vm.own, self._options.raw_options)
        mounts = (*self._guests.mounts(vm.id), *translate.shared_memory(self._shared_memory(vm)),
                  *own_view(self._options.lxcfs))
        made = dataclasses.replace(spec, image=image, mounts=mounts)
        with self._cores.bound(made) as bound:
            self._engine.create(resources.with_document(bound), beside)

    def _restart(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        self._require_same_job(vm)
        self._join_job(vm)
        grants = self._acquire_anew(vm, view)
        self._guests.write(vm)
        self._guests.provide(vm)
        parts: tuple[Part, ...] = (*self._nics.provide(vm), *grants)
        self._nics.remove(vm.id, frozenset(nic.target for nic in vm.nics))
        self._engine.update_devices(spec.name, parts)
        with self._cores.bound(dataclasses.replace(spec, parts=parts)) as bound:
            self._engine.reconfigure(spec.name, self._notices.noted(bound))
        self._start(vm, parts)

    def _shared_memory(self, vm: Vm) -> str | None:
        """Return the mount point of the VM's shared memory on the host; None if it has none."""
        memory = self._join_job(vm)
        return None if memory is None else self._memories.path(memory)

    def _require_same_job(self, vm: Vm) -> None:
        """Raise NotSupported if HPC names other shared memory than the container's, whose mounts Docker fixes."""
        wanted = shared_memory(vm)
        if self._memories.of(self._consumer(vm.id)) != (wanted and self._memories.path(wanted)):
            raise NotSupported(f"HPC of VM {vm.id} names other shared memory than that of container {name(vm.id)}, "
                               "which Docker cannot change: restore it, or undeploy the VM and resume it")

    def _start(self, vm: Vm, parts: Sequence[Part]) -> None:
        """Start the container; stop it again if it fails immediately, or sees more or less than it was granted."""
        own = name(vm.id)
        self._guests.begin(vm.id)
        self._engine.start(own)
        with Rollback(f"start of {own}") as undo:
            undo.on_error("stop it", self._stop, own, force=True)
            self._require_begun(own)
            grants = grants_of(parts)
            if grants and self._is_running(own):
                self._engine.verify(own, grants)
            self._notices.tell(own)

    def _require_begun(self, own: str) -> None:
        """Raise DriverError if the container's program ended immediately with an error."""
        status = self._engine.wait_started(own, self._options.start_seconds)
        if status:
            last = " ".join(self._engine.console_log(own).decode(errors="replace").split())[-LAST_WORDS:]
            raise DriverError(f"container {own} started, but its program ended immediately with status {status}; its "
                              f"last output: {last or 'none'}")

    def has_container(self, vm_id: int) -> bool:
        own = name(vm_id)
        return any(self._engine.exists(each) or self._engine.has_record(each)
                   for each in (own, f"{own}-{OLD}", f"{own}-{ANEW}"))

    def remove(self, vm_id: int) -> None:
        """Remove the container and release the VM's resources, from any state, even a partial one."""
        self._remove(vm_id)
        self._root_images.release(vm_id)

    def _remove(self, vm_id: int) -> None:
        """Remove what :meth:`remove` does, except the images."""
        own = name(vm_id)
        self._find(own)
        self._commands.cancel(own)
        self._guests.mark_left(vm_id)
        self._engine.delete(own)
        self._remove_beside(vm_id)

    def _remove_beside(self, vm_id: int) -> None:
        self._delete_aside(name(vm_id))
        complain(self._allocator.release(self._consumer(vm_id)))
        self._memories.leave(self._consumer(vm_id))
        self._nics.remove(vm_id)
        self._guests.remove(vm_id)

    def _find(self, own: str, vm: Vm | None = None) -> ContainerState | None:
        return super()._find(own, vm) or self._found_aside(own, vm)

    def _found_aside(self, own: str, vm: Vm | None) -> ContainerState | None:
        """Return the container, old or new, of a killed revert during which no container had the VM's name."""
        for aside in self._aside(own):
            self._require_own(self._engine.container(aside), vm)
            self._engine.rename(aside, own)
            return self._engine.container(own)
        return None

    def _delete_aside(self, own: str) -> None:
        for aside in self._aside(own):
            self._engine.delete(aside)

    def _aside(self, own: str) -> Sequence[str]:
        """Return the containers of this driver that reverts left under other names, the old one first."""
        found = []
        for aside in (f"{own}-{OLD}", f"{own}-{ANEW}"):
            try:
                if LABEL in self._engine.container(aside).labels:
                    found.append(aside)
            except EngineNotFound:
                continue
        return found


def with_addresses(vm: Vm, pci: Pci, request: Request) -> Request:
    """Return the request for a device that is a NIC, with its addresses from the context."""
    if pci.mac is None or pci.mac not in addresses.prefixes(vm.context) or request.options.netdev_name is None:
        return request
    return dataclasses.replace(request, options=dataclasses.replace(
        request.options, setup=addresses.setup(vm.context, pci.mac)))
