# SPDX-License-Identifier: Apache-2.0
"""Clean devices that were detached from their containers, and free them, or block them. Under each device's lock."""

from collections.abc import Callable, Collection, Mapping

from containerhost.allocation.functions import Functions
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices.model import PARTS, Device, Kind, NodeUse
from containerhost.devices.scan import HostView
from containerhost.errors import (
    AllocationsUnreadable,
    DeviceNotFound,
    DeviceUnhealthy,
    EngineError,
    HostActionFailed,
    ScrubFailed,
)
from containerhost.privileged import Privileged
from containerhost.process.processes import NoAnswer, Process
from containerhost.scrub import NO_RESET, await_unused, scrub
from containerhost.sysfs import Host

REVOKED = frozenset({Kind.GPU, Kind.GPU_SLICE})  # those that isolate their holders, as a share of a GPU does not
Holders = Callable[[Consumer], Collection[int]]


class Cleaner:
    """:param holders: tells the first processes of the containers, of those that run, that may have got a consumer's
        devices: its own, and those that it shares memory with
    """

    def __init__(self, store: AllocationStore, functions: Functions, privileged: Privileged, host: Host,
                 holders: Holders) -> None:
        self._store = store
        self._functions = functions
        self._privileged = privileged
        self._host = host
        self._holders = holders

    def holders(self, consumer: Consumer, container: int | None = None) -> frozenset[int]:
        """Return the first processes of the containers that may have a consumer's devices.

        :param container: one of them, if the caller knows it
        :raises ScrubFailed: it cannot be told
        """
        try:
            return frozenset((*self._holders(consumer), *(() if container is None else (container,))))
        except (AllocationsUnreadable, EngineError) as error:
            raise ScrubFailed(f"no telling which containers may have the devices of {consumer}: {error}") from error

    def free(self, record: Allocation, container: int | None, view: HostView) -> str | None:
        """Clean a device and free it, or block it. One that is only claimed was not changed.

        :param container: first process of the container that had it; None when that does not run
        :returns: why it is blocked, or stays allocated; None when it is free
        """
        if record.state is not State.CLAIMED:
            try:
                record = self._begin(record, container)
                self.clean(record, view)
            except (ScrubFailed, DeviceNotFound, DeviceUnhealthy) as error:
                return str(error)
        self._store.release(record.device_id, record.consumer)
        return None

    def _begin(self, record: Allocation, container: int | None) -> Allocation:
        """Record that a device is being cleaned, and which containers may have it.

        :raises ScrubFailed: that cannot be told
        """
        try:
            holders = map(Process.of, self.holders(record.consumer, container))
            own = record.container if container is None else Process.of(container)
            return self._store.begin_cleaning(record.device_id, own, holders)
        except (ScrubFailed, NoAnswer) as error:
            self._store.begin_cleaning(record.device_id)
            raise ScrubFailed(str(error)) from error

    def clean(self, record: Allocation, view: HostView) -> tuple[str, ...]:
        """Clean a device whose record says that it is being cleaned.

        :returns: what was done, in words
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

        :returns: what was done, in words
        :raises ScrubFailed, DeviceNotFound, DeviceUnhealthy: it is not clean
        """
        device, running = view.inventory.get(record.device_id), self.running(record)
        container = record.container.pid if record.container and record.container.pid in running else None
        if container is not None and device.kind is not Kind.NET:
            self._require_unreached(device, container, self._kept_nodes(record.consumer, view))
        done = self.scrub(device, record.restore, running, view)
        if container is not None and device.kind in REVOKED and done[-1] == NO_RESET:
            # A reset fails while a process of the container reaches it by a node of another GPU that this keeps.
            self._require_unreached(device, container, frozenset())
        require_well(record.device_id, view)
        return done

    def running(self, record: Allocation) -> frozenset[int]:
        """Return the first processes of the containers that may have the device, of those that run on.

        :raises ScrubFailed: the record does not say which they are
        """
        if not self._store.in_this_boot(record):
            return frozenset()
        if record.holders is None:
            raise ScrubFailed(f"device {record.device_id} may still be in use by {record.consumer}: end that "
                              "container, and its driver cleans the device. Its record does not name the containers "
                              "that may have it: an earlier release wrote it, or its engine did not answer")
        return frozenset(process.pid for process in record.holders if process.lives)

    def _kept_nodes(self, consumer: Consumer, view: HostView) -> frozenset[str]:
        """Return the paths of the nodes of devices that the consumer's container keeps."""
        kept = {name for name, record in self._store.held_by(consumer).items() if record.state is State.ATTACHED}
        return frozenset(node.path for other in view.inventory.devices if other.id in kept for node in other.nodes)

    def _require_unreached(self, device: Device, container: int, kept: Collection[str]) -> None:
        """Refuse a GPU that a process in its container may reach by a node which GPUs have in common: what a process
        has allocated by that is its own until it closes that node, too.

        :param kept: paths of nodes that tell nothing, for the container has them for another GPU
        :raises ScrubFailed: a process has one open, or that cannot be told
        """
        nodes = {(node.major, node.minor) for node in device.nodes
                 if node.use is NodeUse.SHARED and node.path not in kept}
        try:
            await_unused(lambda: self._privileged.users(nodes, (container,), False) if nodes else (),
                         ", by a node that GPUs share")
        except HostActionFailed as error:
            raise ScrubFailed(f"device {device.id} could not be cleaned: {error}") from error

    def scrub(self, device: Device, restore: Mapping[str, str], holders: Collection[int], view: HostView
              ) -> tuple[str, ...]:
        others = self._unheld(device, view) if device.kind is Kind.GPU else ()
        return scrub(device, restore, self._functions.of(device), self._privileged, self._host, holders, others)

    def _unheld(self, device: Device, view: HostView) -> tuple[str, ...]:
        """Return the addresses of the vendor's other whole GPUs that no container has; none where a record cannot be
        read. One that is given away at this moment has no client yet, and waits for a reset."""
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


def require_well(device_id: str, view: HostView) -> None:
    device = view.refresh([device_id]).get(device_id)
    if not device.sound:
        raise DeviceUnhealthy(f"device {device_id} came back, but is not healthy: {'; '.join(device.health)}")
