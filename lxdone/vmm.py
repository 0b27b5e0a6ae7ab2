# SPDX-License-Identifier: Apache-2.0
"""Run oned's actions on a VM's container on LXD: those parts that are specific to LXD."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.engines.contract import ContainerState, Engine, Status
from containerhost.engines.network import openvswitch
from containerhost.engines.spec import ContainerSpec, Mount, Part, grants_of
from containerhost.errors import EngineBusy, EngineConflict, EngineError, EngineNotFound
from containerhost.guest import resources
from containerhost.inventory.scan import HostView
from containerhost.linux.poll import retry
from containerhost.linux.storage.idmounts import IdMap
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback
from lxdone import lcm_states, livemigration, reasons, translate
from lxdone.conf import DRIVER, Options
from lxdone.disk import diskformat, filesystems
from lxdone.disk.images import Images
from lxdone.disk.qcow2 import Origin
from lxdone.migrations import AWAY, MigratingVmm
from lxdone.root import root_files, root_state
from lxdone.root.root_images import RootImages
from lxdone.root.root_writeback import RootWriteback
from onedriver import graphics
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError
from onedriver.node import context, datastores, validation
from onedriver.node.commands import Commands
from onedriver.node.consoles import Consoles
from onedriver.node.context import Contexts
from onedriver.node.limits import shared_memory
from onedriver.node.vm_ids import attached_disk, complain, own_name
from onedriver.node.vmm import SNAPSHOT
from onedriver.vm import OVS, Disk, Nic, Vm

if TYPE_CHECKING:
    from containerhost.engines.capabilities import RestorableSnapshots, Transfers

LOG = logging.getLogger(__name__)

BUSY_INTERVAL = 1.0  # s from one look at a busy container to the next
COPY = "lxdone.copy."  # begins the name of a disk's copy, in the VM's directory in the datastore
IMAGE_TRIES = 3  # an image may be removed between its import and its use


class Vmm(MigratingVmm):
    """Run oned's actions on LXD containers, their disks, snapshots and consoles included.

    :param transfers: of containers to other nodes
    :param connect: to the destination of a live migration
    :param ids: returns the id map of a container by its name; None for a privileged one
    :param limit_interface: limits the receive and transmit rates of a container's interface, in bits per second
    """

    driver = DRIVER
    _options: Options
    _engine: Engine
    _snapshots: "RestorableSnapshots"

    def __init__(self, options: Options, engine: Engine, allocator: DeviceAllocator, snapshots: "RestorableSnapshots",
                 root_images: RootImages, writeback: RootWriteback, disks: Images, contexts: Contexts,
                 commands: Commands, consoles: Consoles, host: Host, ids: Callable[[str], IdMap | None],
                 limit_interface: Callable[[str, str, int | None, int | None], None], transfers: "Transfers",
                 connect: livemigration.Connect) -> None:
        super().__init__(options, engine, allocator, snapshots, commands, host)
        self._root_images = root_images
        self._writeback = writeback
        self._disks = disks
        self._contexts = contexts
        self._consoles = consoles
        self._ids = ids
        self._limit_interface = limit_interface
        self._transfers = transfers
        self._connect = connect

    # Life. A console that is there already goes on; one ends by itself with its container.

    def deploy(self, call: Call) -> str:
        """Deploy a VM; its container is recreated if OpenNebula changed or moved its disk while it was off."""
        self._leave_what_is_old(call.vm)
        own = super().deploy(call)
        self._consoles.provide(call.vm)
        return own

    def _stop_and_start(self, call: Call, *, force: bool) -> None:
        super()._stop_and_start(call, force=force)
        self._consoles.provide(call.vm)

    def save(self, call: Call) -> None:
        """Suspend or stop a VM.

        If the VM stays, its processes are frozen here, and its disks are complete meanwhile, because OpenNebula may
        move or end it. If it leaves, it boots on its destination: LXD cannot move its memory."""
        if lcm_states.leaves(call.vm):
            self._end(call, force=False, patience=False)
            return
        self._require_suspendable(call.vm)
        own = self._existing(call).name
        with Rollback(f"suspension of {own}") as undo:
            self._engine.freeze(own)
            undo.on_error("let it run", self._unfreeze, call.vm)
            self._disks.hold_all(call.vm_id)
            self._writeback.save(own, self._contexts.home(own))
        self._consoles.end(own)

    def _require_suspendable(self, vm: Vm) -> None:
        """Refuse nothing: while its processes are frozen, its disks have all its data."""

    def restore(self, call: Call) -> None:
        """Resume a VM. One that is not suspended here boots from its disk, as after stop and migrate."""
        self._leave_what_is_old(call.vm)
        state = self._find(own_name(call), call.vm)
        if state is None or call.vm.lcm_state != lcm_states.RESTORING:
            self.deploy(call)
        else:
            super().restore(call)
            self._consoles.provide(call.vm)

    def _leave_what_is_old(self, vm: Vm) -> None:
        own = translate.name(vm.id)
        state = self._find(own, vm)
        if state is None or state.status is Status.RUNNING:
            return
        if self._is_outdated(vm, state):
            self._spec(vm)  # what cannot be made is refused while the old one is there
            view = self._allocator.view()
            self._all_requests(vm, view)
            LOG.info("Container %s is recreated: the VM's disk was changed since it stopped", own)
            self.forget(vm.id, view)
        elif state.status is Status.STOPPED:
            self._leave_old_snapshots(vm, own)

    def _is_outdated(self, vm: Vm, state: ContainerState) -> bool:
        """Return whether OpenNebula changed or moved a complete disk since the container stopped or was suspended.

        :raises DriverError: a disk was changed, and the container's data is in no disk
        """
        home = self._contexts.home(state.name)
        current = self._writeback.is_current(home, vm, self._root_file(vm))
        if state.status is Status.STOPPED:
            if not current:
                self._disks.release_all(vm.id)
            return not current
        if current and not self._disks.is_changed(vm.id):
            return False
        if self._writeback.is_unsaved(home) or self._disks.is_unsaved(vm.id):
            raise DriverError(f"nothing is deleted: a disk of VM {vm.id} was changed while container {state.name} was "
                              "frozen, and the container's data is in no disk: save the needed data, then recreate "
                              "the VM (onevm recover --recreate)")
        return True

    def _leave_old_snapshots(self, vm: Vm, own: str) -> None:
        """Delete the snapshots of a VM that was off: OpenNebula forgets them (KEEP_SNAPSHOTS=no) and numbers from 0."""
        for snapshot in self._snapshots.names(own):
            if snapshot.startswith(SNAPSHOT) and snapshot not in vm.snapshots:
                self._snapshots.delete(own, snapshot)

    def _unfreeze(self, vm: Vm) -> None:
        self._writeback.begin(self._contexts.home(translate.name(vm.id)), vm, self._root_file(vm))
        self._disks.let_go_all(vm.id)
        for nic in vm.nics:  # OpenNebula's network driver took the ports away when the VM was suspended
            if nic.bridge_type == OVS and nic.bridge:
                openvswitch.add_port(nic.target, nic.bridge, nic.vlan_id, nic.tagged)
        super()._unfreeze(vm)

    def _end(self, call: Call, *, force: bool, patience: bool = True) -> None:
        """Stop the container, without ``patience`` by force if it does not end in time, and update its disks."""
        own = own_name(call)
        state = self._find(own, call.vm)
        if call.vm.lcm_state not in lcm_states.CLEANUP:
            self._writeback.require_here(self._contexts.home(own), call.vm_id, self._root_file(call.vm))
        if state is not None:
            self._commands.cancel(own)
            if state.status is Status.FROZEN:  # its processes may go on until they end
                if lcm_states.keeps_root(call.vm):
                    self._writeback.reopen(self._contexts.home(own))
                self._disks.let_go_all(call.vm_id)
            if patience:
                self._stop(own, force=force)
            else:
                self._stop_at_last(own)
            if lcm_states.keeps_root(call.vm):
                self._writeback.save(own, self._contexts.home(own))
        elif lcm_states.keeps_root(call.vm):
            self._require_saved(own)
        self._disks.release_all(call.vm_id)
        if not validation.stays(call.vm):
            self.remove(call.vm_id)

    def _require_saved(self, own: str) -> None:
        """Refuse a VM without a container whose disk is not complete.

        LXD's pool may be missing, or the option `project` may have changed.

        :raises DriverError: the container has data that the VM's disk lacks
        """
        if self._writeback.is_unsaved(self._contexts.home(own)):
            raise DriverError(f"LXD has no container {own}, though its data is not in the VM's disk: is LXD's storage "
                              "available, and the option `project` unchanged? Nothing is changed. Delete or "
                              "recreate the VM (onevm recover --delete, --recreate) if its data may be lost")

    # Disks and network interfaces of a VM that exists.

    def attach_disk(self, call: Call) -> None:
        disk = self._attached_disk(call)
        name, part = self._existing(call).name, self._disks.part(call.vm_id, disk)
        if self._disks.is_replaced(call.vm_id, disk.id):  # oned did not get the answer to an attachment before
            self._detach(call.vm, disk)
        with Rollback(f"attaching disk {disk.id} to {name}") as undo:
            if self._disks.make(call.vm, disk):
                undo.on_error("what it needs on the host", self._disks.release, call.vm_id, disk.id)
            undo.on_error("the disk in the container", self._engine.detach, name, part)
            self._engine.attach(name, part)

    def detach_disk(self, call: Call) -> None:
        """Detach a disk; one that is in use stays."""
        self._detach(call.vm, self._attached_disk(call))

    def _detach(self, vm: Vm, disk: Disk) -> None:
        name, part = translate.name(vm.id), self._disks.part(vm.id, disk)
        with Rollback(f"detaching disk {disk.id} from {name}") as undo:
            undo.on_error("the disk in the container", self._engine.attach, name, part)
            undo.on_error("what it needs on the host", self._disks.make, vm, disk)
            self._engine.detach(name, part)
            self._disks.release(vm.id, disk.id)

    def resize_disk(self, call: Call) -> None:
        name = self._existing(call).name
        vm, disk = translate.resized(call.vm, call.arguments["disk_id"], call.arguments["size"])
        if disk.id == vm.root.id:
            file = self._root_file(vm)
            with root_files.opened(root_files.of(vm, file)) as content:
                self._writeback.require_possible(vm, file, content)
            self._resize(name, vm)
            self._writeback.enlarge(self._contexts.home(name), disk.size or 0)
            return
        with self._disks.enlarged(vm.id, disk) as done:
            if not done:
                # A file system that nothing uses grows where the kernel does not let one grow that is mounted.
                self._detach(vm, disk)
                self._disks.make(vm, disk)
                self._engine.attach(name, self._disks.part(vm.id, disk))

    def copy_disk(self, call: Call) -> str:
        """Copy a disk of a running VM into a file beside it, which OpenNebula's user removes, and return its path."""
        state = self._existing(call)
        if state.status is not Status.RUNNING:
            raise DriverError(f"container {state.name} is {state.status.value}: the disks of a VM that is not running "
                              "are complete, and OpenNebula copies them itself")
        disk = translate.disk(call.vm, call.arguments["disk_id"])
        file = self._file(call.vm, disk.id)
        target = file.with_name(f"{COPY}{disk.id}")
        if disk.id == call.vm.root.id:
            self._writeback.copy(state.name, self._contexts.home(state.name), target)
        else:
            self._disks.copy(call.vm_id, disk, file, target)
        return str(target)

    @staticmethod
    def _attached_disk(call: Call) -> Disk:
        disk = attached_disk(call)
        translate.require_further(disk)
        return disk

    def _attach_interface(self, vm: Vm, nic: Nic) -> None:
        self._engine.attach(translate.name(vm.id), translate.nic(vm.id, nic))

    def _detach_interface(self, vm: Vm, nic: Nic) -> None:
        self._engine.detach(translate.name(vm.id), translate.nic(vm.id, nic))

    def limit_nic(self, vm_id: int, nic_id: int, received: int | None, sent: int | None) -> None:
        """Limit the rates of an existing VM's NIC: bytes per second; None is no limit."""
        own = translate.name(vm_id)
        if self._find(own) is None:
            raise EngineNotFound(f"this host has no container {own}")
        bits = (None if rate is None else 8 * rate for rate in (received, sent))
        with reasons.naming_limits():
            self._limit_interface(own, f"eth{nic_id}", *bits)

    # Changes.

    def _device_options(self, vm: Vm) -> Options:
        wanted = translate.gpu_capabilities(vm.own)
        return self._options if wanted is None else dataclasses.replace(self._options,
                                                                        gpu_capabilities=tuple(sorted(wanted)))

    def _reconfigure(self, vm: Vm, spec: ContainerSpec) -> None:
        with self._cores.bound(spec) as bound:
            self._engine.set_limits(spec.name, self._notices.resized(bound))

    def reconfigure(self, call: Call) -> None:
        self._write_context(call.vm, self._engine.root_ids(self._existing(call).name))
        self._consoles.provide(call.vm)

    def snapshot_revert(self, call: Call) -> None:
        """Revert the root disk; devices, limits and network interfaces keep their present state.

        The VM runs afterwards, even if the revert fails: oned reverts only running VMs (source: its
        DispatchManager), and one that is off was stopped by an interrupted revert."""
        name, snapshot, spec = self._existing(call).name, self._snapshot(call), self._spec(call.vm)
        if snapshot not in self._snapshots.names(name):
            raise BadInput(f"container {name} has no snapshot {snapshot}")
        view = self._allocator.view()
        self._require_startable(call.vm, view)
        self._writeback.begin(self._contexts.home(name), call.vm, self._root_file(call.vm))
        with Rollback(f"revert of {name} to {snapshot}") as undo:
            undo.on_error("let it run", self._run_again, call.vm, spec, view)
            self._stop(name, force=True)
            self._snapshots.restore(name, snapshot)
            self._run_again(call.vm, spec, view)

    def _run_again(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        """Start the container, waiting for LXD's pending operations on it. Idempotent."""
        retry(functools.partial(super()._run_again, vm, spec, view), EngineBusy, self._options.operation_timeout,
              BUSY_INTERVAL)
        self._consoles.provide(vm)

    # Steps.

    def _write_context(self, vm: Vm, owner: tuple[int, int] | None) -> Path:
        """Write the context: variables come with the VM, files on the context disk created by the TM driver."""
        bring = None
        if context.has_files(vm.context):
            bring = functools.partial(self._bring_files, self._file(vm, translate.context_disk(vm)))
        return self._contexts.write(translate.name(vm.id), vm.context, owner, bring)

    def _bring_files(self, iso: Path, directory: Path) -> None:
        from lxdone.disk import isofiles  # noqa: PLC0415  (few contexts have files)

        with datastores.opened(iso) as disk:
            isofiles.extract(disk.path, directory, self._options.operation_timeout)

    def _spec(self, vm: Vm) -> ContainerSpec:
        translate.require_disks(vm)
        graphics.vnc(vm.id, vm.graphics)
        shared_memory(vm)
        return translate.spec(vm, self._options, self._node_cores(vm), packed=self._is_packed(vm))

    def _is_packed(self, vm: Vm) -> bool:
        """Return whether a root without its own SIZE is packed, or was packed and is now a larger file system."""
        root, file = vm.root, self._root_file(vm)
        if root.type != "FILE" or not translate.has_size_of_image(root):
            return False
        with datastores.opened(file) as disk:
            found = diskformat.of(filesystems.head(disk.path))
            return found in diskformat.PACKED or (
                found in diskformat.FILE_SYSTEMS and disk.path.stat().st_size > cast(int, root.size))

    def _boot(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        home, file = self._contexts.home(spec.name), self._root_file(vm)
        self._writeback.require_whole(home, vm, file)
        requests = self._requests(vm, vm.pcis, view)
        self._disks.recover_all(vm.id)
        with Rollback(f"boot of VM {vm.id}") as undo:
            undo.on_error("remove the container", self.remove, vm.id)
            self._writeback.announce(home, vm, file)
            grants = self._acquire(vm, requests, view)
            directory = self._write_context(vm, None)
            parts: tuple[Part, ...] = (*translate.nics(vm), *grants, *self._shared_memory(vm))
            with root_files.opened(root_files.restore(root_files.of(vm, file))) as disk, reasons.naming_size(vm, spec):
                self._writeback.require_possible(vm, file, disk)
                mounts = (Mount("context", str(directory), "/context"),)
                self._create(dataclasses.replace(spec, parts=parts, mounts=mounts), disk, home, vm)
            self._write_context(vm, self._engine.root_ids(spec.name))
            for part in self._disks.provide(vm):
                self._engine.attach(spec.name, part)
            with reasons.naming_size(vm, spec):
                self._start(vm, parts)
            if self._writeback.is_ended(home):
                raise DriverError(f"VM {vm.id} was deleted while its container was started: its remains are removed")

    def _create(self, spec: ContainerSpec, disk: Path, directory: Path, vm: Vm) -> None:
        """Create the container; ``directory`` is the VM's own."""
        root = vm.root
        origin = Origin(Path(self._options.datastores), root.source, root.size)
        limit = translate.unpacked_limit(vm, self._options)
        for last in (False,) * (IMAGE_TRIES - 1) + (True,):
            try:
                with self._root_images.held(disk, origin, directory, limit) as image:
                    labels = dict(spec.labels) | {translate.IMAGE_LABEL: image}
                    with self._cores.bound(dataclasses.replace(spec, image=image, labels=labels)) as bound:
                        return self._engine.create(resources.with_document(bound))
            except EngineNotFound:
                if last:
                    raise
                self._engine.delete(spec.name)

    def _restart(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        grants = self._acquire_anew(vm, view)
        self._write_context(vm, self._engine.root_ids(spec.name))
        self._disks.provide(vm)
        image = self._engine.container(spec.name).labels.get(translate.IMAGE_LABEL, "")
        parts = (*translate.nics(vm), *self._disks.parts(vm), *grants, *self._shared_memory(vm))
        fitted = dataclasses.replace(spec, parts=parts, labels=dict(spec.labels) | {translate.IMAGE_LABEL: image})
        with self._cores.bound(fitted) as bound:
            self._engine.reconfigure(spec.name, self._notices.noted(bound))
        self._disks.release_others(vm)
        self._start(vm, parts)

    def _shared_memory(self, vm: Vm) -> tuple[Part, ...]:
        memory = self._join_job(vm)
        return () if memory is None else translate.shared_memory(self._memories.view(memory, self._consumer(vm.id)))

    def _start(self, vm: Vm, parts: Sequence[Part]) -> None:
        """Start the container; stop it again if it sees more or less than it was granted."""
        name = translate.name(vm.id)
        self._writeback.begin(self._contexts.home(name), vm, self._root_file(vm))
        if memory := shared_memory(vm):
            self._memories.show(memory, self._consumer(vm.id), self._ids(name))
        with self._alone(vm):
            with reasons.naming_limits():
                self._engine.start(name)
            grants = grants_of(parts)
            if grants:
                with Rollback(f"start of {name}") as undo:
                    undo.on_error("stop it", self._stop, name, force=True)
                    self._engine.verify(name, grants)

    def has_container(self, vm_id: int) -> bool:
        own = translate.name(vm_id)
        return self._engine.exists(own) or self._writeback.is_begun(self._contexts.home(own))

    def remove(self, vm_id: int) -> None:
        """Remove the container and release its resources, from any state, even a partial one."""
        self._remove(vm_id, self._disks.release_all)

    def forget(self, vm_id: int, view: HostView | None = None) -> None:
        """Remove the remains of a VM that OpenNebula ended or moved, without writing to its disks."""
        name = translate.name(vm_id)
        state = self._find(name)
        if self._is_namesake(name):
            raise EngineConflict(f"container {name} belongs to an older VM {vm_id}: it is not removed")
        if state is not None and state.status not in AWAY:
            raise EngineConflict(f"container {name} is {state.status.value}: it is not removed")
        self._disks.abandon_all(vm_id)
        self._remove(vm_id, self._disks.discard_all, view)

    def _remove(self, vm_id: int, clear: Callable[[int], None], view: HostView | None = None) -> None:
        """Remove a VM's container, its disks by ``clear``, and its devices."""
        name = translate.name(vm_id)
        state = self._find(name)
        self._commands.cancel(name)
        self._consoles.end(name)
        self._disks.let_go_all(vm_id)
        self._engine.delete(name)
        complain(self._allocator.release(self._consumer(vm_id), view))
        self._memories.leave(self._consumer(vm_id))
        self._writeback.discard(name)
        clear(vm_id)
        self._contexts.clear(name, but=root_state.FILE)
        self._writeback.end(self._contexts.home(name))  # last: what a killed removal leaves is found by this record
        self._contexts.remove(name)
        try:
            self._root_images.release(state.labels.get(translate.IMAGE_LABEL) if state else None,
                                      self._engine.containers)
        except EngineError as error:
            LOG.warning("VM %s has ended, and its image stays until another VM ends: %s", vm_id, error)
