# SPDX-License-Identifier: Apache-2.0
"""Allocate devices of this host to containers, and release them.

The states of an allocation and their order: :mod:`containerhost.allocation.states`. A process that changes a device
holds that device's lock (:meth:`AllocationStore.working`) from reading the record until the change is complete, and
writes the new state first. After a crash the record alone determines how an interrupted operation is finished or
undone.
"""

import logging
from collections.abc import Collection, Iterable, Sequence

from containerhost.allocation import faults, refusals
from containerhost.allocation.cleaning import Cleaner, Holders
from containerhost.allocation.functions import Functions
from containerhost.allocation.reconciliation import Reconciler
from containerhost.allocation.refusals import Foreign, Request, View
from containerhost.allocation.repair import DeviceRepair
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.allocation.timings import Operation, Timings
from containerhost.devices.grants import Grant
from containerhost.devices.model import REVOKED, CharNode, Device, Kind
from containerhost.errors import DeviceBusy, DeviceHeld, DeviceInUse
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback
from containerhost.vendors import make_grant

LOG = logging.getLogger(__name__)


class DeviceAllocator:
    """Allocate a host's devices to consumers and reclaim them clean, on the records that all drivers share.

    Methods that read the host take the view of the enclosing operation; without one, each call scans the host
    itself. Under a device's lock they read that device again.

    :param view: returns the view of a new operation
    :param foreign: device id -> container, for what containers of the engine use by their configuration, in any
        project; an engine's ``held``
    :ivar repair: repairs what stays allocated
    """

    def __init__(self, store: AllocationStore, view: View, privileged: Privileged,
                 foreign: Foreign = lambda devices: {}, host: Host | None = None,
                 holders: Holders = lambda consumer: ()) -> None:
        host = host or Host()
        self._store = store
        self._timings = Timings(store.directory)
        self.view = view
        self._privileged = privileged
        self._foreign = foreign
        self._functions = Functions(store, privileged, host)
        self._cleaner = Cleaner(store, self._functions, privileged, host, holders)
        self.repair = DeviceRepair(store, view, self._functions, self._cleaner, foreign)
        self.reconciler = Reconciler(store, view, self._functions, self._cleaner, foreign, privileged)

    def acquire(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
                ) -> tuple[Grant, ...]:
        """Claim, prepare and attach all the devices, or none. Idempotent: the consumer keeps those that it already has.

        :raises DeviceNotFound, DeviceUnhealthy, DeviceHeld, AllocationsUnreadable, SpecError: nothing was changed
        :raises HostActionFailed: preparing failed; what was newly claimed is released
        """
        with self._timings.measured(Operation.ACQUIRE, consumer):
            return self._acquire(requests, consumer, view or self.view())

    def _acquire(self, requests: Sequence[Request], consumer: Consumer, view: HostView) -> tuple[Grant, ...]:
        chosen = [view.inventory.get(request.address) for request in requests]
        self._refuse_held(chosen, requests, consumer, view)
        with (self._store.working(device.id for device in chosen),
              Rollback(f"acquisition by {consumer}") as undo):
            mine, inventory = self._store.held_by(consumer), view.refresh(device.id for device in chosen)
            wanted = refusals.requested(inventory, requests, mine, mine)
            devices = [device for device, _ in wanted]
            users = self._foreign({other.id: other for device in devices
                                   for other in refusals.concerned(device, inventory)}.values())
            refusals.refuse_configured(users, inventory, devices, consumer)
            for device, options in wanted:
                make_grant(device, options)  # refuses what cannot be granted before anything changes
            self._store.claim(devices, consumer, inventory.related)
            for device in devices:
                if device.id not in mine:
                    undo.on_error(f"allocation of {device.id}", self._undo, device.id, consumer, view)
            changed = [device.id for device, options in wanted
                       if self._functions.prepare(device, options, consumer, mine.get(device.id))]
            grants = refusals.granted(view.refresh(changed), requests, self._store.held_by(consumer), consumer)
            self._store.attach([device.id for device in devices], consumer)
            return grants

    def leave_out(self, requests: Sequence[Request], consumer: Consumer, least: int, view: HostView | None = None
                  ) -> tuple[Request, ...]:
        """Detach faulty GPUs from a stopped container that can run without some; they stay allocated.

        :param least: the minimum number of GPUs
        :raises SpecError, DeviceUnhealthy: it cannot have that many
        """
        view, mine = view or self.view(), self._store.held_by(consumer)
        refusals.require_gpus(view.inventory, requests, mine, least)
        left = refusals.left_out(view.inventory, requests, mine, least)
        if left:
            with self._store.working(left):
                self._store.detach(left, consumer, None)
        return tuple(request for request in requests if view.inventory.get(request.address).id not in left)

    def require_gpus(self, requests: Sequence[Request], consumer: Consumer, least: int, view: HostView) -> None:
        """Refuse a container whose minimum of GPUs exceeds what it can have. Changes nothing.

        :raises SpecError, DeviceUnhealthy: it is refused
        """
        refusals.require_gpus(view.inventory, requests, self._store.held_by(consumer), least)

    def present(self, requests: Sequence[Request], consumer: Consumer) -> tuple[Request, ...]:
        """Return the requests, without those for devices currently detached from the consumer's container."""
        away = self.detached(consumer)
        return tuple(request for request in requests if request.address not in away)

    def gone(self, consumer: Consumer, view: HostView) -> frozenset[str]:
        """Return the ids of those of :meth:`detached` that this host no longer has."""
        mine = self._store.held_by(consumer)
        return refusals.gone(view.inventory, mine) if refusals.detached(mine) else frozenset()

    def detached(self, consumer: Consumer) -> frozenset[str]:
        """Return the ids of devices that are allocated to the consumer but currently detached from its container."""
        return refusals.detached(self._store.held_by(consumer))

    def grants(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
               ) -> tuple[Grant, ...]:
        """Return the grants of the consumer's devices. Changes nothing.

        :raises DeviceHeld: it does not hold one of them
        """
        return refusals.granted((view or self.view()).inventory, requests, self._store.held_by(consumer), consumer)

    def preview(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
                ) -> tuple[Grant, ...]:
        """Return the grants of :meth:`acquire`, without GUIDs and MACs, which are not prepared. Changes nothing.

        :raises DeviceNotFound, DeviceUnhealthy, SpecError:
        """
        wanted = refusals.requested((view or self.view()).inventory, requests, self._store.held_by(consumer))
        return tuple(make_grant(device, options) for device, options in wanted)

    def users(self, grants: Iterable[Grant], view: HostView | None = None) -> tuple[str, ...]:
        """Describe the container processes that have a device of ``grants`` open.

        For a share of a GPU, the whole GPU is checked: which share a process opened it by is unknown."""
        nodes, view = list[CharNode](), view or self.view()
        for grant in grants:
            shared = grant.device.kind is Kind.GPU_SHARE and grant.device.parent
            nodes += refusals.own_nodes(view.inventory.get(shared)) if shared else grant.own_nodes
        return self._users_of(nodes)

    def require_unused(self, grants: Iterable[Grant]) -> None:
        """Refuse devices that a container process has open; not detectable for a share of a GPU.

        :raises DeviceInUse: a process in a container has a device of ``grants`` open
        """
        for grant in grants:
            users = self._users_of(grant.own_nodes)
            if users:
                raise DeviceInUse(f"device {grant.device.id} is in use by {', '.join(users)}: end these processes, or "
                                  "stop the container, then try again")

    def _users_of(self, nodes: Iterable[CharNode]) -> tuple[str, ...]:
        return self._privileged.users([(node.major, node.minor) for node in nodes])

    def faults(self, consumer: Consumer) -> tuple[str, ...]:
        """Describe the faults of the consumer's devices, one text each; see :func:`.faults.of`."""
        records = self._store.held_by(consumer).values()
        return faults.of(records, self.view().inventory) if records else ()

    def held(self, consumer: Consumer, view: HostView | None = None) -> tuple[Grant, ...]:
        """Return the consumer's devices that are still on this host, as grants without options.

        They name each device's nodes and interface. Excluded are devices that its container runs without, and a GPU
        that is blocked because the container may still use it after its detachment."""
        inventory, mine = (view or self.view()).inventory, self._store.held_by(consumer)
        there = {device.id for device in inventory.devices
                 if not (device.kind in REVOKED and device.id in mine and mine[device.id].holders)}
        there -= refusals.detached(mine)
        return refusals.granted(inventory, [Request(device) for device in mine if device in there], mine, consumer)

    def held_by(self, consumer: Consumer) -> frozenset[str]:
        """Return the ids of the consumer's devices, blocked ones included."""
        return frozenset(self._store.held_by(consumer))

    def consumers_of(self, driver: str, engine: str) -> frozenset[Consumer]:
        """Return the containers of this driver and engine that have devices.

        :raises AllocationsUnreadable: a record cannot be read
        """
        return self._store.consumers_of(driver, engine)

    def release(self, consumer: Consumer, view: HostView | None = None) -> tuple[str, ...]:
        """Clean and free all devices of a deleted or stopped container. Idempotent.

        :returns: complaints, one for each device that could not be cleaned: it stays blocked with that reason, and the
            next call tries again
        """
        return self._release_all(self.held_by(consumer), consumer, None, view or self.view())

    def release_device(self, device_id: str, consumer: Consumer, container: int | None, view: HostView | None = None
                       ) -> tuple[str, ...]:
        """Clean and free one device that was detached from a container, which may still run. Idempotent.

        :param container: its first process; None if it is not running
        """
        return self._release_all(self.held_by(consumer) & {device_id}, consumer, container, view or self.view())

    def cancel(self, device_id: str, consumer: Consumer, view: HostView) -> None:
        """Release a device that :meth:`acquire` newly claimed and the engine then refused. Idempotent."""
        with self._store.working([device_id]):
            self._undo(device_id, consumer, view)

    def _refuse_held(self, devices: Sequence[Device], requests: Sequence[Request], consumer: Consumer, view: HostView
                     ) -> None:
        """Refuse what another consumer has, without waiting for its lock."""
        try:
            self._store.require_claimable(devices, consumer, view.inventory.related)
        except DeviceHeld:
            # Report an unhealthy device or a duplicate request first. A device that is being prepared has no driver for
            # a moment, and counts as healthy.
            names, mine = {device.id for device in devices}, self._store.held_by(consumer)
            if not any(name in names and record.state in (State.CLAIMED, State.PREPARED)
                       for name, record in self._store.records().items()):
                refusals.requested(view.refresh(names), requests, mine, mine)
            raise

    def _undo(self, device_id: str, consumer: Consumer, view: HostView) -> None:
        """Restore a device after a failed acquisition, under the device's lock. It was never in a container."""
        record = self._store.held_by(consumer).get(device_id)
        if record is not None:
            view.refresh([device_id])
            complaint = self._cleaner.free(record, None, view, given=False)
            if complaint:
                LOG.error("Device %s was not freed after a failed acquisition: %s", device_id, complaint)

    def _release_all(self, device_ids: Collection[str], consumer: Consumer, container: int | None, view: HostView
                     ) -> tuple[str, ...]:
        """Clean and free devices, and return complaints.

        :param device_ids: ids read without a lock: another process may have cleaned these devices since
        """
        if not device_ids:
            return ()
        with self._timings.measured(Operation.RELEASE, consumer) as complaints:
            complaints.extend(self._cleaned(device_ids, consumer, container, view))
        return tuple(complaints)

    def _cleaned(self, device_ids: Collection[str], consumer: Consumer, container: int | None, view: HostView
                 ) -> tuple[str, ...]:
        try:
            with self._store.working(device_ids):
                records = [record for name, record in self._store.held_by(consumer).items() if name in device_ids]
                if records:
                    view.refresh(record.device_id for record in records)
                complaints = [self._cleaner.free(record, container, view) for record in records]
        except DeviceBusy as error:
            return (str(error),)
        return tuple(complaint for complaint in complaints if complaint)
