# SPDX-License-Identifier: Apache-2.0
"""Finish or undo interrupted allocations from the records: see :data:`containerhost.allocation.states.RECOVERY`."""

import functools
from collections.abc import Callable, Collection

from containerhost.allocation.cleaning import Cleaner
from containerhost.allocation.functions import Functions, unbound
from containerhost.allocation.refusals import Foreign, View, concerned
from containerhost.allocation.states import Action, State, is_interrupted, recovery
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.errors import DeviceBusy, HostActionFailed
from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.process import rungroup
from containerhost.privileged import Privileged


class Reconciler:
    """Finish or undo allocations that a crash of a driver or of the host interrupted.

    :param view, foreign: of :class:`containerhost.allocation.allocator.DeviceAllocator`
    """

    def __init__(self, store: AllocationStore, view: View, functions: Functions, cleaner: Cleaner, foreign: Foreign,
                 privileged: Privileged) -> None:
        self._store = store
        self._view = view
        self._functions = functions
        self._cleaner = cleaner
        self._foreign = foreign
        self._privileged = privileged

    def reconcile(self, driver: str, engine: str, alive: Collection[str]) -> tuple[str, ...]:
        """Finish or undo the interrupted allocations of this driver and engine only, and thaw containers.

        :param alive: containers that are known to exist. The caller has confirmed by a second source that all others
            are gone; this method also reads the engine's configurations
        :returns: complaints
        """
        complaints: list[str] = []
        try:
            self._privileged.thaw_left()
        except HostActionFailed as error:
            complaints.append(f"a container may be frozen: {error}")
        view = self._view()
        for consumer in sorted(self._store.consumers_of(driver, engine), key=str):
            complaints += self.reconcile_one(consumer, exists=consumer.container in alive, view=view)
        return (*complaints, *self.reconcile_runs(view))

    def reconcile_runs(self, view: HostView | None = None) -> tuple[str, ...]:
        """Release the devices of killed runs: the supervisor is gone, and the control group has no process.

        :returns: complaints
        """
        runs = {record.consumer: self._store.in_this_boot(record) for record in self._store.records().values()
                if record.consumer.driver == rungroup.DRIVER}
        ended = [run for run, in_boot in runs.items() if not in_boot or rungroup.has_ended(run.container, run.uuid)]
        view, complaints = view or self._view(), list[str]()
        for run in sorted(ended, key=str):
            complaints += self.reconcile_one(run, exists=False, view=view)
            rungroup.remove(run.uuid)
        return tuple(complaints)

    def reconcile_one(self, consumer: Consumer, *, exists: bool, view: HostView | None = None) -> tuple[str, ...]:
        """Finish or undo the interrupted allocations of one consumer. No process may be acquiring its devices.

        :param exists: its container is known to exist. If False, the caller has confirmed by two sources that it
            does not exist
        :returns: complaints
        """
        view, due = view or self._view(), list[str]()
        for device_id, record in self._store.held_by(consumer).items():
            action = self._action(record, exists, None)
            if action is not Action.KEEP and (action is not Action.REBIND or unbound({device_id: record}, view)):
                due.append(device_id)
        return self._recover_all(due, consumer, exists, view)

    def clean_ended(self, consumer: Consumer) -> tuple[str, ...]:
        """Clean and free the consumer's blocked devices whose containers have all ended.

        No process may be acquiring its devices.

        :returns: complaints
        """
        due = [device_id for device_id, record in self._store.held_by(consumer).items()
               if record.state is State.BLOCKED and record.ended]
        return self._recover_all(due, consumer, True, self._view()) if due else ()

    def _recover_all(self, due: Collection[str], consumer: Consumer, exists: bool, view: HostView) -> tuple[str, ...]:
        complaints: list[str] = []
        for device_id in due:
            try:
                complaints += self._recover(device_id, consumer, exists, view)
            except (HostActionFailed, DeviceBusy) as error:
                complaints.append(f"a device of {consumer} does not come back: {error}")
        return tuple(complaints)

    def interrupted(self, driver: str, engine: str, exists: Callable[[Consumer], bool]) -> frozenset[Consumer]:
        """Return the consumers of which :meth:`reconcile_one` would free a device, judging by the records alone.

        :param exists: asked only about consumers whose devices are freed if they do not exist
        """
        def is_due(record: Allocation) -> bool:
            due = functools.partial(is_interrupted, record.state, same_boot=self._store.in_this_boot(record),
                                    ended=record.ended)
            return due(exists=True) or (due(exists=False) and not exists(record.consumer))

        return frozenset(record.consumer for record in self._store.records().values()
                         if (record.consumer.driver, record.consumer.engine) == (driver, engine) and is_due(record))

    def _recover(self, device_id: str, consumer: Consumer, exists: bool, view: HostView) -> tuple[str, ...]:
        """Finish or undo the allocation of one device after a crash."""
        with self._store.working([device_id]):
            record = self._store.held_by(consumer).get(device_id)
            if record is None:
                return ()
            user = self._configured(device_id, view.refresh([device_id]))
            action = self._action(record, exists, user)
            if action in (Action.DROP, Action.CLEAN):
                complaint = self._cleaner.free(record, None, view)
                return (complaint,) if complaint else ()
            if action is Action.REBIND:
                self._functions.rebind(record, view)
            if not exists:
                return (f"device {device_id} is kept for {consumer}, which is gone: the configuration of container "
                        f"{user} has it",)
        return ()

    def _action(self, record: Allocation, exists: bool, user: str | None) -> Action:
        """Return what to do about one allocation.

        :param user: the container whose configuration has the device
        """
        return recovery(record.state, same_boot=self._store.in_this_boot(record), exists=exists,
                        configured=user is not None, ended=record.ended)

    def _configured(self, device_id: str, inventory: Inventory) -> str | None:
        """Return the container whose configuration names the device; None also if the device left the host."""
        device = next((device for device in inventory.devices if device.id == device_id), None)
        return self._foreign(concerned(device, inventory)).get(device_id) if device else None
