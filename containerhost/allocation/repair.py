# SPDX-License-Identifier: Apache-2.0
"""Repair devices that stay allocated, and clean devices for the operator."""

from collections.abc import Collection

from containerhost.allocation.cleaning import Cleaner
from containerhost.allocation.functions import Functions, unbound
from containerhost.allocation.refusals import Foreign, View, concerned, refuse_configured
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices.model import Device, Kind, Role
from containerhost.errors import DeviceBusy, DeviceHeld, DeviceNotFound, HostActionFailed, ScrubFailed
from containerhost.inventory.scan import HostView, Inventory
from containerhost.vendors.base import refuse_host_use

OPERATOR = Consumer(driver="containerhost", engine="host", container="scrub", uuid="operator")


class DeviceRepair:
    """Repair devices that stay allocated (reset, driver, link), and clean devices for the operator.

    :param view, foreign: of :class:`containerhost.allocation.allocator.DeviceAllocator`
    """

    def __init__(self, store: AllocationStore, view: View, functions: Functions, cleaner: Cleaner, foreign: Foreign
                 ) -> None:
        self._store = store
        self._view = view
        self._functions = functions
        self._cleaner = cleaner
        self._foreign = foreign

    def reset_devices(self, consumer: Consumer, view: HostView | None = None) -> tuple[str, ...]:
        """Reset the consumer's unhealthy GPUs, which stay allocated to it. Its container is stopped.

        :returns: complaints, one for each that could not be reset
        """
        complaints, view = [], view or self._view()
        for device_id in sick_gpus(self._store.held_by(consumer), view):
            try:
                with self._store.working([device_id]):
                    mine, inventory = self._store.held_by(consumer), view.refresh([device_id])
                    for device in sick_gpus({device_id} & mine.keys(), view):
                        self._cleaner.scrub(inventory.get(device), mine[device].restore, view)
                        view.refresh([device])
            except (ScrubFailed, DeviceBusy) as error:
                complaints.append(str(error))
        return tuple(complaints)

    def rebind_driver(self, consumer: Consumer, view: HostView | None = None) -> None:
        """Bind the drivers of the consumer's functions that a killed process unbound to clean them.

        :raises HostActionFailed: a driver does not bind
        :raises DeviceBusy: another process is changing it
        """
        view = view or self._view()
        for device in unbound(self._store.held_by(consumer), view):
            with self._store.working([device.id]):
                record = self._store.held_by(consumer).get(device.id)
                view.refresh([device.id])
                if record is not None:
                    self._functions.rebind(record, view)

    def set_link_state(self, consumer: Consumer, up: bool, view: HostView | None = None) -> tuple[str, ...]:
        """Disable the link of the consumer's virtual functions while its container is frozen, or restore it.

        The kernel, which is not frozen, would still answer.

        :returns: complaints, one for each function whose link is unchanged
        """
        complaints, view = [], view or self._view()
        for device_id, record in self._store.held_by(consumer).items():
            try:
                device = view.inventory.get(device_id)
                if device.kind is Kind.NET and device.role is Role.VF:
                    with self._store.working([device_id]):
                        self._functions.set_link(device, record, up)
            except (DeviceNotFound, DeviceHeld, HostActionFailed) as error:
                complaints.append(str(error))
        return tuple(complaints)

    def clean(self, device_id: str) -> tuple[str, ...]:
        """Clean and free, for the operator, a device that is blocked, free, or whose cleaning was interrupted.

        A device that its consumer's container runs without stays allocated.

        :returns: what was done, one text each
        :raises DeviceNotFound, DeviceHeld, AllocationsUnreadable: nothing was changed
        :raises ScrubFailed, DeviceUnhealthy: it is blocked for that reason, or stays allocated; also on
            DeviceNotFound if it left the host meanwhile
        """
        view = self._view()
        device_id = view.inventory.get(device_id).id
        with self._store.working([device_id]):
            inventory = view.refresh([device_id])
            device = inventory.get(device_id)
            record = self._store.records().get(device.id)
            if record is None:
                self._take_for_cleaning(device, inventory)
            elif record.state is State.DETACHED:
                return self._cleaner.scrub_detached(record, view)
            elif not is_cleanable(record):
                raise DeviceHeld(f"device {device.id} is not cleaned: {_holder(record.consumer)}")
            elif record.consumer != OPERATOR:
                self._cleaner.running(record)  # if they are unknown, the device stays bound to its driver
            had = None if record and record.consumer != OPERATOR else ()  # a free device was not used by any container
            record = self._store.begin_cleaning(device.id, holders=had)
            done = self._cleaner.clean(record, view)
            self._store.release(device.id, record.consumer, self._cleaner.evidence(done, device.id, view.inventory))
            return done

    def _take_for_cleaning(self, device: Device, inventory: Inventory) -> None:
        """Mark the device blocked before its cleaning, so that a crash leaves it unavailable."""
        refuse_host_use(device)
        if device.netdev_away:
            raise DeviceHeld(f"device {device.id} is not cleaned: its interface is in another network namespace, so a "
                             "container has it; stop or detach that one first")
        refuse_configured(self._foreign(concerned(device, inventory)), inventory, [device], OPERATOR)
        self._store.claim([device], OPERATOR, inventory.related)
        self._store.block(device.id, "`containerhost scrub` has begun to clean it")


def _holder(consumer: Consumer) -> str:
    """Describe who has a device and how to free it."""
    if consumer.driver == OPERATOR.driver:  # a command: the container field has its name, such as mig-apply
        command = consumer.container.replace("-", " ")
        return f"an interrupted `containerhost {command}` holds it: repeat that, unless it is still at work"
    return f"{consumer} holds it; detach it or end its container first, and it is cleaned then"


def is_cleanable(record: Allocation) -> bool:
    """Return whether the operator may clean the device, under its lock: no process holds or cleans it."""
    return record.state in (State.BLOCKED, State.CLEANING) or record.consumer == OPERATOR


def sick_gpus(device_ids: Collection[str], view: HostView) -> tuple[str, ...]:
    if not device_ids:
        return ()
    return tuple(device.id for device in view.inventory.devices
                 if device.id in device_ids and device.kind is Kind.GPU and not device.sound)
