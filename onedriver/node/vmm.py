# SPDX-License-Identifier: Apache-2.0
"""Run oned's actions on a VM's container, for every engine: one repeatable method for each action.

A driver adds the engine-specific parts: images, disks, interfaces.

A VM's resources on this host are always found by its id: the container's name, the allocation records, the directory
of its context.
"""

import abc
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import JobMemory, SharedMemories
from containerhost.allocation.store import Consumer
from containerhost.devices.grants import Grant
from containerhost.engines import bounds
from containerhost.engines.contract import Containers, ContainerState, Status, first_process
from containerhost.engines.corebinding import CoreBinding
from containerhost.engines.resizelock import resizing
from containerhost.engines.spec import ContainerSpec, grants_of
from containerhost.errors import DeviceNotFound, EngineConflict, EngineNotFound, EngineTimeout, SpecError
from containerhost.guest import resources
from containerhost.inventory.scan import HostView
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback
from onedriver.actions import Call
from onedriver.errors import DriverError
from onedriver.node import devices, limits, namesakes, validation
from onedriver.node.commands import Commands
from onedriver.node.limits import NodeCores
from onedriver.node.names import LABEL, name
from onedriver.node.notices import ResourceNotices
from onedriver.node.options import NodeOptions
from onedriver.node.vm_ids import attached, complain, consumer, own_name
from onedriver.vm import Nic, Pci, Vm

if TYPE_CHECKING:
    from containerhost.engines.capabilities import Snapshots

LOG = logging.getLogger(__name__)

SNAPSHOT = "snap-"


class BaseVmm(abc.ABC):
    """Run oned's actions on VMs' containers; subclasses add their engine's images, disks and interfaces.

    :cvar driver: its name in the allocation records
    """

    driver: ClassVar[str]

    def __init__(self, options: NodeOptions, engine: Containers, allocator: DeviceAllocator, snapshots: "Snapshots",
                 commands: Commands, host: Host) -> None:
        reserved = id_list(options.reserved_cores)
        self._cores = CoreBinding(engine, host, Path(options.owners), LABEL, reserved)
        self._options = options
        self._engine = engine
        self._allocator = allocator
        self._snapshots = snapshots
        self._commands = commands
        self._host = host
        self._notices = ResourceNotices(engine, options.shrink_notice)

    # Life cycle.

    def deploy(self, call: Call) -> str:
        """Create and start the VM's container, and return the deploy id."""
        vm, own = call.vm, name(call.vm_id)
        spec = self._spec(vm)
        state = self._find(own, vm)
        if state is None:
            self._cores.preview(spec)
            self._boot(vm, spec, self._allocator.view())
        elif state.status is Status.FROZEN:
            self._unfreeze(vm)
        elif state.status is not Status.RUNNING:
            self._restart(vm, spec, self._allocator.view())
        return own

    def shutdown(self, call: Call) -> None:
        """Request a shutdown of the VM; it keeps running if it refuses."""
        self._end(call, force=False)

    def cancel(self, call: Call) -> None:
        self._end(call, force=True)

    def reboot(self, call: Call) -> None:
        self._stop_and_start(call, force=False)

    def reset(self, call: Call) -> None:
        self._stop_and_start(call, force=True)

    def _stop_and_start(self, call: Call, *, force: bool) -> None:
        own, spec = self._existing(call).name, self._spec(call.vm)
        view = self._allocator.view()
        if not force:  # a reset may repair the devices
            self._require_startable(call.vm, view)
        self._stop(own, force=force)
        if force:
            complain(self._allocator.repair.reset_devices(self._consumer(call.vm_id), view))
        self._restart(call.vm, spec, view)

    def save(self, call: Call) -> None:
        self._require_suspendable(call.vm)
        self._engine.freeze(self._existing(call).name)

    def restore(self, call: Call) -> None:
        """Resume a suspended VM; start one that was stopped (onevm stop) and whose host has restarted."""
        if call.vm.lcm_state == validation.BOOT_STOPPED:
            self.deploy(call)
            return
        state = self._existing(call)
        if state.status is Status.RUNNING:
            return
        if state.status is not Status.FROZEN:
            raise DriverError("run `onevm stop`, then `onevm resume`: the host restarted while the VM was suspended, "
                              f"container {state.name} is {state.status.value} and its memory is lost; its disk is not")
        self._unfreeze(call.vm)

    # Hot-plug of network interfaces and devices.

    def attach_nic(self, call: Call) -> None:
        part = attached(call)
        own = self._existing(call).name
        if isinstance(part, Nic):
            self._attach_interface(call.vm, part)
            return
        with resizing(Path(self._options.owners), own):
            self._attach_device(call, own, part)

    def _attach_device(self, call: Call, own: str, part: Pci) -> None:
        view = self._allocator.view()
        (request,) = self._requests(call.vm, [part], view)
        running, others = self._is_running(own), self._held(call.vm, view, part)
        had = request.address in self._allocator.held_by(self._consumer(call.vm_id))
        with Rollback(f"attaching {request.address} to {own}") as undo:
            (grant,) = self._allocator.acquire([request], self._consumer(call.vm_id), view)
            undo.on_error("the device", self._take_back, call.vm_id, grant, others, view)
            try:
                self._engine.attach(own, grant)
            except SpecError:  # nothing was changed
                if not had:
                    self._allocator.cancel(grant.device.id, self._consumer(call.vm_id), view)
                raise
            if running:
                self._engine.verify(own, grants_of((*others, grant)))
            self._notices.devices(own, (*others, grant))

    def detach_nic(self, call: Call) -> None:
        part = attached(call)
        own = self._existing(call).name
        if isinstance(part, Nic):
            self._detach_interface(call.vm, part)
            return
        with resizing(Path(self._options.owners), own):
            self._detach_device(call.vm, own, part)

    def _detach_device(self, vm: Vm, own: str, part: Pci) -> None:
        device_id, consumer, view = part.chosen().device_id, self._consumer(vm.id), self._allocator.view()
        if device_id not in self._allocator.held_by(consumer):
            self._notices.devices(own, self._allocator.held(consumer, view))  # a detachment may have been interrupted
            return
        try:
            requests = self._requests(vm, [part], view)
        except DeviceNotFound as error:
            # The engine's configuration keeps the device until the next start, which creates a new one.
            LOG.warning("The VM's device is detached without it: %s", error)
            complain(self._release(vm.id, device_id, view))
            self._notices.devices(own, self._allocator.held(consumer, view))
            return
        self._allocator.repair.rebind_driver(consumer, view)  # an attachment may have been interrupted
        (grant,) = self._allocator.grants(requests, consumer, view)
        others = self._others(vm.id, grant, view)
        with self._notices.losing(own, others):
            self._allocator.require_unused([grant])
            self._take_back(vm.id, grant, others, view)

    def _take_back(self, vm_id: int, grant: Grant, others: Sequence[Grant], view: HostView) -> None:
        """Detach a device after a failure. A device that cannot be detached stays with the VM."""
        self._engine.detach(name(vm_id), grant, others)
        complain(self._release(vm_id, grant.device.id, view))

    def _release(self, vm_id: int, device_id: str, view: HostView) -> tuple[str, ...]:
        """Release one device, or all of them, and return the complaints."""
        first = first_process(self._engine, name(vm_id))
        return self._allocator.release_device(device_id, self._consumer(vm_id), first, view)

    # Changes.

    def resize(self, call: Call) -> None:
        self._resize(self._existing(call).name, call.vm)

    def _resize(self, own: str, vm: Vm) -> None:
        spec = self._spec(vm)
        with resizing(Path(self._options.owners), own):
            if self._is_running(own):
                self._resize_running(vm, spec)
            else:
                self._reconfigure(vm, spec)

    def _resize_running(self, vm: Vm, spec: ContainerSpec) -> None:
        """Resize a running VM, keeping the size set by the elastic service while the bounds are unchanged."""
        labels = self._engine.container(spec.name).labels
        spec = bounds.keeping_size(spec, labels.get(bounds.LABEL), resources.parse(labels.get(resources.LABEL)))
        with self._notices.resizing(self._cores.preview(spec)):
            validation.of_shrinking(spec.name, spec.memory.size, self._engine.metrics(spec.name).memory)
            self._reconfigure(vm, spec)

    def exec(self, call: Call) -> None:
        """Start a command, and return once it has started; monitoring reports its end."""
        self._commands.start(self._existing(call).name, call.arguments["command"], call.arguments.get("stdin", ""))

    def exec_cancel(self, call: Call) -> None:
        self._commands.cancel(own_name(call))

    def snapshot_create(self, call: Call) -> str:
        """Create a snapshot, and return its name on this host."""
        own = self._existing(call).name
        snapshot = f"{SNAPSHOT}{validation.snapshot_number(call.arguments['snapshot'])}"
        if snapshot not in self._snapshots.names(own):
            self._snapshots.create(own, snapshot)
        return snapshot

    def snapshot_delete(self, call: Call) -> None:
        self._snapshots.delete(self._existing(call).name, self._snapshot(call))

    def _snapshot(self, call: Call) -> str:
        return f"{SNAPSHOT}{validation.snapshot_number(call.arguments['snapshot'].removeprefix(SNAPSHOT))}"

    # Engine-specific actions.

    @abc.abstractmethod
    def has_container(self, vm_id: int) -> bool:
        """Return whether the VM has a container, or had one that this driver's records do not show as removed.

        An engine without its storage reports none. Changes nothing.

        :raises DriverError, EngineError: this is unknown
        """

    @abc.abstractmethod
    def _spec(self, vm: Vm) -> ContainerSpec:
        """Return the VM's spec, refusing what can be checked without reading the host's containers."""

    @abc.abstractmethod
    def _boot(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        """Create and start its first container; steps are undone on an error."""

    def _run_again(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        """Start the container. Idempotent: does nothing if it runs."""
        if not self._is_running(spec.name):
            self._restart(vm, spec, view)

    @abc.abstractmethod
    def _restart(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None:
        """Start a stopped container with its VM's present parts. On an error it stays stopped, with its devices.

        It contains the VM's data, and for OpenNebula the VM still has the devices."""

    @abc.abstractmethod
    def _reconfigure(self, vm: Vm, spec: ContainerSpec) -> None:
        """Set the limits of ``spec`` on its container, stopped or running."""

    @abc.abstractmethod
    def _end(self, call: Call, *, force: bool) -> None:
        """Stop the container. A VM that stays on this host keeps its container, data and devices."""

    @abc.abstractmethod
    def _require_suspendable(self, vm: Vm) -> None:
        """Raise NotSupported if OpenNebula may request of a suspended VM what a frozen container does not support."""

    @abc.abstractmethod
    def _attach_interface(self, vm: Vm, nic: Nic) -> None: ...

    @abc.abstractmethod
    def _detach_interface(self, vm: Vm, nic: Nic) -> None: ...

    # Steps.

    def _unfreeze(self, vm: Vm) -> None:
        self._engine.unfreeze(name(vm.id))

    def _stop(self, own: str, *, force: bool) -> None:
        self._engine.stop(own, timeout=self._options.stop_timeout, force=force)

    def _stop_at_last(self, own: str) -> None:
        """Stop the container, by force if it does not end in time."""
        try:
            self._stop(own, force=False)
        except EngineTimeout:
            self._stop(own, force=True)

    def _join_job(self, vm: Vm) -> JobMemory | None:
        """Make the VM, whose container is not running, a member of its job's shared memory, or of none."""
        wanted = limits.shared_memory(vm)
        if wanted is None:
            self._memories.leave(self._consumer(vm.id))
        else:
            self._memories.join(wanted, self._consumer(vm.id))
        return wanted

    @property
    def _memories(self) -> SharedMemories:
        return SharedMemories(Path(self._options.owners), self.driver, self._engine.name, Privileged())

    def _acquire(self, vm: Vm, requests: Sequence[devices.Request], view: HostView) -> tuple[Grant, ...]:
        return self._allocator.acquire(requests, self._consumer(vm.id), view) if requests else ()

    def _acquire_anew(self, vm: Vm, view: HostView) -> tuple[Grant, ...]:
        """Acquire a stopped container's devices again: oned calls no script for detachments while it is off."""
        with self._alone(vm):
            pass  # wait for the elastic service, which may be detaching a GPU from the container
        consumer, bounds = self._consumer(vm.id), limits.elastic_gpus(vm, ())
        requests = self._all_requests(vm, view)
        wanted = {request.address for request in requests} | self._gone(vm, view)
        for device_id in sorted(self._allocator.held_by(consumer) - wanted):
            complain(self._release(vm.id, device_id, view))
        if bounds is not None:
            requests = self._allocator.leave_out(requests, consumer, bounds.least, view)
        return self._acquire(vm, requests, view)

    def _require_startable(self, vm: Vm, view: HostView) -> None:
        """Raise, before the stop, for a container that could not start again: a device is missing or unhealthy."""
        consumer, bounds, requests = self._consumer(vm.id), limits.elastic_gpus(vm, ()), self._all_requests(vm, view)
        if bounds is not None:
            self._allocator.require_gpus(requests, consumer, bounds.least, view)
        elif requests:
            self._allocator.preview(requests, consumer, view)

    def _alone(self, vm: Vm) -> AbstractContextManager[object]:
        """Exclude changes by the elastic service of the devices of a VM that may lose some."""
        elastic = limits.elastic_gpus(vm, ()) is not None
        return resizing(Path(self._options.owners), name(vm.id)) if elastic else nullcontext()

    # Queries.

    def _consumer(self, vm_id: int) -> Consumer:
        return consumer(self.driver, self._engine.name, vm_id)

    def _requests(self, vm: Vm, pcis: Sequence[Pci], view: HostView) -> tuple[devices.Request, ...]:
        """Return the VM's device requests, scanning the host only if there are any."""
        return devices.requests(pcis, view.inventory, self._device_options(vm)) if pcis else ()

    def _all_requests(self, vm: Vm, view: HostView) -> tuple[devices.Request, ...]:
        """Return the requests for the VM's devices, without detached GPUs that have left the host."""
        gone = self._gone(vm, view)
        return self._requests(vm, [pci for pci in vm.pcis if pci.chosen().device_id not in gone], view)

    def _gone(self, vm: Vm, view: HostView) -> frozenset[str]:
        return frozenset() if limits.elastic_gpus(vm, ()) is None else self._allocator.gone(self._consumer(vm.id), view)

    def _node_cores(self, vm: Vm) -> NodeCores:
        """Return the host's cores, for a VM that OpenNebula has placed on some, or that has an affinity."""
        if not vm.topology.nodes and vm.affinity is None:
            return NodeCores()
        from containerhost.inventory import topology  # noqa: PLC0415  (few VMs are placed on cores)

        found = topology.read(self._host)
        return NodeCores({node.id: node.cpus for node in found.nodes},
                         {node.id: min(found.memory_of([node.id])) for node in found.nodes})

    def _device_options(self, vm: Vm) -> NodeOptions:
        """Return the node's device options; a driver overrides this where its template can change them."""
        return self._options

    def _find(self, own: str, vm: Vm | None = None) -> ContainerState | None:
        """Find a VM's container.

        :param vm: required owner of the container
        :raises EngineConflict: a container of that name is not this driver's, or another VM's
        """
        try:
            state = self._engine.container(own)
        except EngineNotFound:
            return None
        if LABEL not in state.labels:
            raise EngineConflict(f"OpenNebula did not create container {own}: rename or remove it")
        self._require_own(state, vm)
        return state

    def _require_own(self, state: ContainerState, vm: Vm | None) -> None:
        if vm is not None:
            namesakes.require_own(state, vm, Path(self._options.state))

    def _is_namesake(self, own: str) -> bool:
        """Return whether the container is known to belong to an older VM with the same id."""
        try:
            return namesakes.is_marked(self._engine.container(own), Path(self._options.state))
        except EngineNotFound:
            return False

    def _existing(self, call: Call) -> ContainerState:
        own = own_name(call)
        state = self._find(own, call.vm)
        if state is None:
            raise EngineNotFound(f"this host has no container {own}")
        return state

    def _is_running(self, own: str) -> bool:
        return self._engine.container(own).status is Status.RUNNING

    def _held(self, vm: Vm, view: HostView, but: Pci | None = None) -> tuple[Grant, ...]:
        """Return the container's devices without ``but``; raise DeviceNotFound if one has left the host."""
        consumer = self._consumer(vm.id)
        elastic = limits.elastic_gpus(vm, ()) is not None
        away = self._allocator.detached(consumer) if elastic else frozenset[str]()
        held = self._allocator.held_by(consumer) - away
        others = [pci for pci in vm.pcis if pci != but and pci.chosen().device_id not in away]
        requests = self._requests(vm, others, view)
        mine = [request for request in requests if request.address in held]
        return self._allocator.grants(mine, consumer, view) if mine else ()

    def _others(self, vm_id: int, grant: Grant, view: HostView) -> tuple[Grant, ...]:
        """Return the VM's other devices on this host, as grants without options: they may share nodes."""
        return tuple(other for other in self._allocator.held(self._consumer(vm_id), view)
                     if other.device.id != grant.device.id)
