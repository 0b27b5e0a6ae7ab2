# SPDX-License-Identifier: Apache-2.0
"""Clean devices that were detached from their containers, then free or block them, under each device's lock.

A device is free when no handle on it can be left: the containers that may have had it have ended, or its driver has
revoked all handles (:mod:`containerhost.allocation.scrub`). Otherwise it is blocked until these containers end.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from containerhost.allocation.functions import Functions
from containerhost.allocation.refusals import own_nodes
from containerhost.allocation.scrub import NO_RESET, scrub
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices import pci
from containerhost.devices.health import bus
from containerhost.devices.model import PARTS, REVOKED, Device, Kind
from containerhost.errors import (
    AllocationsUnreadable,
    DeviceNotFound,
    DeviceUnhealthy,
    EngineError,
    ScrubFailed,
)
from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.process.processes import Process, ProcReadTimeout
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

RESET_TIMEOUT = 3.0  # s; a short-lived client, such as a program that reads the state of GPUs, may hold the device
Holders = Callable[[Consumer], Collection[int]]


class Cleaner:
    """Clean devices that containers were detached from, then free them, or block those that cannot be cleaned.

    :param holders: returns the first processes of the running containers that may have a consumer's devices: its
        own, and those that it shares memory with
    """

    def __init__(self, store: AllocationStore, functions: Functions, privileged: Privileged, host: Host,
                 holders: Holders) -> None:
        self._store = store
        self._functions = functions
        self._privileged = privileged
        self._host = host
        self._holders = holders

    def free(self, record: Allocation, container: int | None, view: HostView, *, given: bool = True) -> str | None:
        """Clean a device and free it, or block it. A device that is only claimed needs no cleaning.

        :param container: first process of the container that had it; None if that is not running
        :param given: False if no container has had it
        :returns: why it is blocked, or stays allocated; None when it is free
        """
        evidence = None
        if record.state is not State.CLAIMED:
            try:
                record = (self._begin(record, container) if given
                          else self._store.begin_cleaning(record.device_id, holders=()))
                done = self.clean(record, view)
                evidence = self.evidence(done, record.device_id, view.inventory)
            except (ScrubFailed, DeviceNotFound, DeviceUnhealthy) as error:
                return str(error)
        self._store.release(record.device_id, record.consumer, evidence)
        return None

    def evidence(self, done: Sequence[str], device_id: str, inventory: Inventory) -> dict[str, Any]:
        """Return the hand-over record's entry for a cleaning."""
        whole, _, _ = device_id.partition("/")
        device = inventory.get(whole if has_ended(device_id, inventory) else device_id)
        directory = pci.directory(self._host, device.address)
        firmware = device.rdma and self._host.text(f"/sys/class/infiniband/{device.rdma.ibdev}/fw_ver")
        return {
            "cleaned": list(done),
            "reset": None if done[-1] == NO_RESET else "kernel" if device.kind is Kind.NET else device.plugin,
            "driver": device.driver, "driver_version": self._host.text(f"/sys/module/{device.driver}/version"),
            "firmware": firmware,
            "errors": {name: count for name in bus.COUNTERS if (count := bus.counted(self._host, directory, name))}}

    def _begin(self, record: Allocation, container: int | None) -> Allocation:
        """Record that a device is being cleaned, and which containers may have it.

        :raises ScrubFailed: the containers cannot be determined
        """
        try:  # before the records are locked: a tenant's process may take its time to answer
            pids = {*self._holders(record.consumer), *(() if container is None else (container,))}
            holders = {pid: Process.of(pid) for pid in pids}
        except (AllocationsUnreadable, EngineError, ProcReadTimeout) as error:
            self._store.begin_cleaning(record.device_id)
            raise ScrubFailed(
                f"cannot determine which containers may have the devices of {record.consumer}: {error}") from error
        own = record.container if container is None else holders[container]
        return self._store.begin_cleaning(record.device_id, own, holders.values())

    def clean(self, record: Allocation, view: HostView) -> tuple[str, ...]:
        """Clean a device whose record says that it is being cleaned.

        :returns: a description of each step
        :raises ScrubFailed, DeviceNotFound, DeviceUnhealthy: it is blocked for that reason
        """
        try:
            done = self.scrub_detached(record, view)
        except (ScrubFailed, DeviceNotFound, DeviceUnhealthy) as error:
            self._store.block(record.device_id, str(error))
            raise
        return done

    def scrub_detached(self, record: Allocation, view: HostView) -> tuple[str, ...]:
        """Clean a device that its container was detached from.

        :returns: a description of each step
        :raises ScrubFailed, DeviceNotFound, DeviceUnhealthy: it is not clean
        """
        running = self.running(record)
        # Its slices and shares are files, one of which may not be readable for once.
        if not running and has_ended(record.device_id, view.inventory) and has_ended(
                record.device_id, view.refresh([record.device_id])):
            return ("its GPU is not divided so any more", NO_RESET)
        device = view.inventory.get(record.device_id)
        users = functools.cache(functools.partial(self._users, device))  # takes seconds on a host with many processes
        try:
            done = self.scrub(device, record.restore, view, 0.0 if running else RESET_TIMEOUT)
            if device.kind in REVOKED and done[-1] == NO_RESET and (running or users()):
                raise ScrubFailed(f"its driver cannot revoke device {device.id}: {NO_RESET}")
        except ScrubFailed as error:
            raise ScrubFailed(self._reason(record, device, running, users, error)) from error
        require_well(record.device_id, view)
        return done

    @staticmethod
    def _reason(record: Allocation, device: Device, running: Collection[int], found: Callable[[], tuple[str, ...]],
                error: ScrubFailed) -> str:
        """Return why a device stays blocked, and until when."""
        users = found() if device.kind in REVOKED else ()
        if not running or device.kind not in REVOKED:
            return f"device {device.id} is still in use by {', '.join(users)}. {error}" if users else str(error)
        own = record.container is not None and record.container.pid in running
        container = str(record.consumer) if own else f"a container that shares memory with {record.consumer}"
        used = f" ({', '.join(users)})" if users else ""
        return (f"device {device.id} may still be in use by {container}{used}: when that has ended, it is cleaned and "
                f"freed. {error}")

    def _users(self, device: Device) -> tuple[str, ...]:
        return self._privileged.users([(node.major, node.minor) for node in own_nodes(device)])

    def running(self, record: Allocation) -> frozenset[int]:
        """Return the first processes of the running containers that may have the device.

        :raises ScrubFailed: the record does not name them
        """
        if not self._store.in_this_boot(record):
            return frozenset()
        if record.holders is None:
            raise ScrubFailed(f"device {record.device_id} may still be in use by {record.consumer}: end that "
                              "container, and its driver cleans the device. Its record does not name the containers "
                              "that may have it: an earlier release wrote it, or its engine did not answer")
        return frozenset(process.pid for process in record.holders if process.lives)

    def scrub(self, device: Device, restore: Mapping[str, str], view: HostView, timeout: float = 0.0
              ) -> tuple[str, ...]:
        """Call :func:`containerhost.allocation.scrub.scrub`."""
        others = self._unheld(device, view) if device.kind is Kind.GPU else ()
        return scrub(device, restore, self._functions.of(device), self._privileged, self._host, others, timeout)

    def _unheld(self, device: Device, view: HostView) -> tuple[str, ...]:
        """Return the addresses of the vendor's other unallocated whole GPUs; none if a record is unreadable.

        One that is allocated concurrently has no client yet, and waits for the reset."""
        try:
            records = self._store.records()
        except AllocationsUnreadable:
            return ()
        taken = {name.partition("/")[0] for name, record in records.items()
                 if record.state not in (State.CLEANING, State.BLOCKED)}
        divided = {part.parent for part in view.inventory.devices if part.kind in PARTS}
        return tuple(other.address for other in view.inventory.devices
                     if (other.kind, other.plugin) == (Kind.GPU, device.plugin) and other.id != device.id
                     and other.id not in taken | divided and not other.host_use)


def has_ended(device_id: str, inventory: Inventory) -> bool:
    """Return whether a slice or share no longer exists because its GPU was repartitioned: there is nothing to clean.

    Its GPU must be healthy: without its driver it lists no slices."""
    whole, _, _ = device_id.partition("/")
    return device_id not in inventory and whole in inventory and inventory.get(whole).sound


def require_well(device_id: str, view: HostView) -> None:
    device = view.refresh([device_id]).get(device_id)
    if not device.sound:
        raise DeviceUnhealthy(f"device {device_id} was released, but is not healthy: {'; '.join(device.health)}")
