# SPDX-License-Identifier: Apache-2.0
"""Allocate devices of this host to containers, and release them.

The states of an allocation and their order: :mod:`containerhost.allocation.states`. A process that changes a device
holds that device's lock (:meth:`AllocationStore.working`) from its look at the record to the end of the change, and
writes the new state first. After a crash the record alone tells how to finish or undo what was begun.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from containerhost import faults
from containerhost.allocation.states import Action, State, recovery
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices import pci
from containerhost.devices.model import CharNode, Device, Kind, NodeUse, Role
from containerhost.devices.netdev import Netdevs
from containerhost.devices.scan import HostView, Inventory
from containerhost.errors import (
    DeviceBusy,
    DeviceHeld,
    DeviceInUse,
    DeviceNotFound,
    DeviceUnhealthy,
    HostActionFailed,
    ScrubFailed,
    SpecError,
)
from containerhost.grants import Grant, GrantOptions
from containerhost.network.netfunction import NO_MAC, NetFunction
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback
from containerhost.scrub import scrub
from containerhost.sysfs import Host
from containerhost.vendors import make_grant
from containerhost.vendors.base import refuse_host_use

LOG = logging.getLogger(__name__)

OPERATOR = Consumer(driver="containerhost", engine="host", container="scrub", uuid="operator")
Foreign = Callable[[Iterable[Device]], Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Request:
    """:ivar address: PCI address, or the id of a slice
    """

    address: str
    options: GrantOptions = dataclasses.field(default_factory=GrantOptions)


class DeviceAllocator:
    """Methods that read the host take the view of the operation that they are a part of; without one, a call is an
    operation of its own. Below a device's lock they read that device anew.

    :param view: makes the view of a new operation
    :param foreign: device id -> container, for what containers of the engine use by their configuration, in any
        project; an engine's ``held``
    """

    def __init__(self, store: AllocationStore, view: Callable[[], HostView], privileged: Privileged,
                 foreign: Foreign = lambda devices: {}, host: Host | None = None) -> None:
        self._store = store
        self.view = view
        self._privileged = privileged
        self._foreign = foreign
        self._host = host or Host()

    def acquire(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
                ) -> tuple[Grant, ...]:
        """Claim, prepare and attach all the devices, or none. Idempotent: what the consumer has already it keeps.

        :returns: one grant for each request, in order
        :raises DeviceNotFound, DeviceUnhealthy, DeviceHeld, AllocationsUnreadable, SpecError: nothing was changed
        :raises HostActionFailed: preparing failed; what was newly claimed is released
        """
        view = view or self.view()
        chosen = [view.inventory.get(request.address) for request in requests]
        self._refuse_held(chosen, requests, consumer, view)
        with (self._store.working(device.id for device in chosen),
              Rollback(f"acquisition by {consumer}") as undo):
            mine, inventory = self._records(consumer), view.refresh(device.id for device in chosen)
            wanted = self._wanted(inventory, requests, mine)
            self._refuse_foreign(inventory, wanted, consumer)
            for device, options in wanted:
                make_grant(device, options)  # whatever cannot be granted is refused before anything changes
            self._store.claim([device for device, _ in wanted], consumer, inventory.related)
            for device, _ in wanted:
                if device.id not in mine:
                    undo.on_error(f"allocation of {device.id}", self._undo, device.id, consumer, view)
            changed = [device.id for device, options in wanted
                       if self._prepare(device, options, consumer, mine.get(device.id))]
            grants = self._grants(view.refresh(changed), requests, self._records(consumer), consumer)
            self._store.attach([device.id for device, _ in wanted], consumer)
            return grants

    def grants(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
               ) -> tuple[Grant, ...]:
        """Return what the consumer has, as grants. Changes nothing.

        :raises DeviceHeld: it does not have one of them
        """
        return self._grants((view or self.view()).inventory, requests, self._records(consumer), consumer)

    def preview(self, requests: Sequence[Request], consumer: Consumer, view: HostView | None = None
                  ) -> tuple[Grant, ...]:
        """Return the grants of :meth:`acquire`, without GUIDs and MACs, which are not prepared. Changes nothing.

        :raises DeviceNotFound, DeviceUnhealthy, SpecError:
        """
        inventory, mine = (view or self.view()).inventory, self._records(consumer)
        wanted = [(self._usable(inventory, request, mine), request.options) for request in requests]
        require_distinct(wanted)
        return tuple(make_grant(device, options) for device, options in wanted)

    def users(self, grants: Iterable[Grant], container: int | None = None, view: HostView | None = None
              ) -> tuple[str, ...]:
        """Return the processes in containers that have a device of ``grants`` open, in words. For a share of a GPU this
        is the whole GPU, because nothing tells by which share a process has it open.

        :param container: first process of the one that has the devices
        """
        nodes, view = list[CharNode](), view or self.view()
        for grant in grants:
            shared = grant.device.kind is Kind.GPU_SHARE and grant.device.parent
            nodes += own_nodes(view.inventory.get(shared)) if shared else grant.own_nodes
        own = [(node.major, node.minor) for node in nodes]
        return self._privileged.users(own, holders_of(container)) if own else ()

    def faults(self, consumer: Consumer) -> tuple[str, ...]:
        """Return what is wrong with the consumer's devices, one text each; see :func:`containerhost.faults.of`."""
        records = self._store.held_by(consumer)
        return faults.of(records, self.view().inventory) if records else ()

    def require_unused(self, grants: Iterable[Grant], container: int | None = None) -> None:
        """Refuse devices that a process in the container uses. For a share of a GPU, which others use too, this cannot
        be told.

        :param container: first process of the one that has the devices
        :raises DeviceInUse: a process in a container has a device of ``grants`` open or mapped
        """
        for grant in grants:
            own = [(node.major, node.minor) for node in grant.own_nodes]
            users = self._privileged.users(own, holders_of(container)) if own else ()
            if users:
                raise DeviceInUse(f"device {grant.device.id} is in use by {', '.join(users)}: end what uses it, or "
                                  "stop the container, then try again")

    def held(self, consumer: Consumer, view: HostView | None = None) -> tuple[Grant, ...]:
        """Return the consumer's devices that are still on this host as grants without options, which tell the nodes and
        the interface of each. Changes nothing."""
        inventory, mine = (view or self.view()).inventory, self._records(consumer)
        there = {device.id for device in inventory.devices}
        return self._grants(inventory, [Request(device) for device in mine if device in there], mine, consumer)

    def held_by(self, consumer: Consumer) -> frozenset[str]:
        """Return the ids of the devices that the consumer has; blocked ones too."""
        return frozenset(self._records(consumer))

    def consumers_of(self, driver: str, engine: str) -> frozenset[Consumer]:
        """Return the containers of this driver and engine that have devices.

        :raises AllocationsUnreadable: a record cannot be read
        """
        consumers = {record.consumer for record in self._store.records().values()}
        return frozenset(consumer for consumer in consumers if (consumer.driver, consumer.engine) == (driver, engine))

    def release(self, consumer: Consumer, view: HostView | None = None) -> tuple[str, ...]:
        """Clean and free all devices of a deleted or stopped container. Idempotent.

        :returns: complaints, one for each device that could not be cleaned: it stays blocked with that reason, and the
            next call tries again
        """
        return self._release_all(self.held_by(consumer), consumer, None, view or self.view())

    def release_device(self, device_id: str, consumer: Consumer, container: int | None, view: HostView | None = None
                       ) -> tuple[str, ...]:
        """Clean and free one device that was detached from a container, which may run on. Idempotent.

        :param container: its first process; None when it does not run
        """
        return self._release_all(self.held_by(consumer) & {device_id}, consumer, container, view or self.view())

    def reset_devices(self, consumer: Consumer, view: HostView | None = None) -> tuple[str, ...]:
        """Reset the consumer's unhealthy GPUs, which stay its own. Its container is stopped.

        :returns: complaints, one for each that could not be reset
        """
        complaints, view = [], view or self.view()
        for device_id in self._sick_gpus(self._records(consumer), view):
            try:
                with self._store.working([device_id]):
                    mine, inventory = self._records(consumer), view.refresh([device_id])
                    for device in self._sick_gpus({device_id} & mine.keys(), view):
                        self._scrub(inventory.get(device), mine[device].restore, holders_of(None))
                        view.refresh([device])
            except (ScrubFailed, DeviceBusy) as error:
                complaints.append(str(error))
        return tuple(complaints)

    @staticmethod
    def _sick_gpus(device_ids: Collection[str], view: HostView) -> tuple[str, ...]:
        if not device_ids:
            return ()
        return tuple(device.id for device in view.inventory.devices
                     if device.id in device_ids and device.kind is Kind.GPU and not device.healthy)

    def clean(self, device_id: str) -> tuple[str, ...]:
        """Clean a device for the operator, and free it: one that is blocked or free, or whose cleaning was interrupted.

        :returns: what was done, one text each
        :raises DeviceNotFound, DeviceHeld, AllocationsUnreadable: nothing was changed
        :raises ScrubFailed, DeviceUnhealthy: it is blocked for that reason
        """
        view = self.view()
        device_id = view.inventory.get(device_id).id
        with self._store.working([device_id]):
            inventory = view.refresh([device_id])
            device = inventory.get(device_id)
            record = self._store.records().get(device.id)
            if record is None:
                self._take_for_cleaning(device, inventory)
            elif not is_cleanable(record):
                raise DeviceHeld(f"device {device.id} is not cleaned: {record.consumer} holds it; detach it or end its "
                                 "container first, and it is cleaned then")
            record = self._store.begin_cleaning(device.id)
            try:
                done = self._scrub(device, record.restore, None)
                self._require_well(device.id, view)
            except (ScrubFailed, DeviceUnhealthy) as error:
                self._store.block(device.id, str(error))
                raise
            self._store.release(device.id, record.consumer)
            return done

    def _take_for_cleaning(self, device: Device, inventory: Inventory) -> None:
        """Mark the device blocked before it is cleaned, so that a crash leaves a device that nobody is given."""
        refuse_host_use(device)
        if device.netdev_away:
            raise DeviceHeld(f"device {device.id} is not cleaned: its interface is in another network namespace, so a "
                             "container has it; stop or detach that one first")
        self._refuse_foreign(inventory, [(device, GrantOptions())], OPERATOR)
        self._store.claim([device], OPERATOR, inventory.related)
        self._store.block(device.id, "`containerhost scrub` has begun to clean it")

    def rebind_driver(self, consumer: Consumer, view: HostView | None = None) -> None:
        """Bind the drivers of the consumer's functions that a killed process unbound to clean them.

        :raises HostActionFailed: one does not come back
        :raises DeviceBusy: another process is at work on it
        """
        view = view or self.view()
        for device_id in self._unbound(self._records(consumer), view):
            with self._store.working([device_id]):
                record = self._records(consumer).get(device_id)
                view.refresh([device_id])
                if record is not None:
                    self._rebind(record, view)

    def _rebind(self, record: Allocation, view: HostView) -> None:
        for device_id in self._unbound({record.device_id: record}, view):
            self._function(view.inventory.get(device_id)).rebind(driver=record.restore.get("driver"))
            view.refresh([device_id])

    @staticmethod
    def _unbound(records: Mapping[str, Allocation], view: HostView) -> tuple[str, ...]:
        if not records:
            return ()
        return tuple(device.id for device in view.inventory.devices
                     if device.kind is Kind.NET and not device.driver
                     and device.id in records and not records[device.id].blocked)

    def reconcile(self, driver: str, engine: str, alive: Collection[str]) -> tuple[str, ...]:
        """Finish or undo what a crash interrupted, of this driver and engine only: see
        :data:`containerhost.allocation.states.RECOVERY`. A container that a look left frozen is thawed.

        :param alive: containers that are known to exist. The caller has made sure by a second source that all others
            are gone; here the engine's configurations are asked as well
        :returns: complaints
        """
        complaints: list[str] = []
        try:
            self._privileged.thaw_left()
        except HostActionFailed as error:
            complaints.append(f"a container may be frozen: {error}")
        view = self.view()
        for consumer in sorted(self.consumers_of(driver, engine), key=str):
            exists = consumer.container in alive
            for device_id, record in self._records(consumer).items():
                action = self._action(record, exists, None)
                if action is Action.KEEP or (action is Action.REBIND
                                             and not self._unbound({device_id: record}, view)):
                    continue
                try:
                    complaints += self._recover(device_id, consumer, exists, view)
                except (HostActionFailed, DeviceBusy) as error:
                    complaints.append(f"a device of {consumer} does not come back: {error}")
        return tuple(complaints)

    def _recover(self, device_id: str, consumer: Consumer, exists: bool, view: HostView) -> tuple[str, ...]:
        """Finish or undo the allocation of one device after a crash.

        :returns: complaints
        """
        with self._store.working([device_id]):
            record = self._records(consumer).get(device_id)
            if record is None:
                return ()
            user = self._configured(device_id, view.refresh([device_id]))
            action = self._action(record, exists, user)
            if action in (Action.DROP, Action.CLEAN):
                complaint = self._release_record(record, None, view)
                return (complaint,) if complaint else ()
            if action is Action.REBIND:
                self._rebind(record, view)
            if not exists:
                return (f"device {device_id} is kept for {consumer}, which is gone: the configuration of container "
                        f"{user} has it",)
        return ()

    def _action(self, record: Allocation, exists: bool, user: str | None) -> Action:
        """Return what to do about one allocation.

        :param user: the container whose configuration has the device
        """
        return recovery(record.state, same_boot=self._store.in_this_boot(record), exists=exists,
                        configured=user is not None)

    def _configured(self, device_id: str, inventory: Inventory) -> str | None:
        """Return the container whose configuration has the device; None also for one that left the host."""
        device = next((device for device in inventory.devices if device.id == device_id), None)
        return self._foreign(concerned(device, inventory)).get(device_id) if device else None

    def set_link_state(self, consumer: Consumer, up: bool, view: HostView | None = None) -> tuple[str, ...]:
        """Take the link from the consumer's virtual functions while its container is frozen, or restore it: the kernel,
        which is not frozen, would go on answering.

        :returns: complaints, one for each function whose link is as it was
        """
        complaints, view = [], view or self.view()
        for device_id in self._records(consumer):
            try:
                device = view.inventory.get(device_id)
                if device.kind is Kind.NET and device.role is Role.VF:
                    with self._store.working([device_id]):
                        self._store.prepare(device_id, consumer, {"link": "auto"})
                        self._function(device).set_link(up)
            except (DeviceNotFound, DeviceHeld, HostActionFailed) as error:
                complaints.append(str(error))
        return tuple(complaints)

    # Before

    def _records(self, consumer: Consumer) -> dict[str, Allocation]:
        return {record.device_id: record for record in self._store.held_by(consumer)}

    def _refuse_held(self, devices: Sequence[Device], requests: Sequence[Request], consumer: Consumer, view: HostView
                     ) -> None:
        """Refuse what another consumer has, without waiting for its lock."""
        try:
            self._store.require_claimable(devices, consumer, view.inventory.related)
        except DeviceHeld:
            # That a device is unhealthy, or asked for twice, is told first.
            self._wanted(view.refresh(device.id for device in devices), requests, self._records(consumer))
            raise

    def _wanted(self, inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation]
                ) -> list[tuple[Device, GrantOptions]]:
        """Return the requested devices with their options.

        :raises DeviceNotFound, DeviceUnhealthy, SpecError: the consumer cannot be given all of them
        """
        wanted = [(self._usable(inventory, request, mine), request.options) for request in requests]
        require_distinct(wanted, mine)
        return wanted

    def _usable(self, inventory: Inventory, request: Request, mine: Mapping[str, Allocation]) -> Device:
        device = inventory.get(request.address)
        if device.id in mine:
            device = with_own_netdev(device, mine[device.id])
        if not (device.sound if device.id in mine else device.healthy):
            raise DeviceUnhealthy(f"device {device.id} is not healthy: {'; '.join(device.health)}")
        return device

    def _refuse_foreign(self, inventory: Inventory, wanted: Sequence[tuple[Device, GrantOptions]],
                        consumer: Consumer) -> None:
        users = self._foreign({other.id: other for device, _ in wanted
                               for other in concerned(device, inventory)}.values())
        for device, _ in wanted:
            for other in (device, *inventory.related(device)):
                user = users.get(other.id)
                if user not in (None, consumer.container):
                    raise DeviceHeld(f"device {device.id} cannot be given to {consumer}: the configuration of "
                                     f"container {user} has {other.id}")

    # Preparing

    def _prepare(self, device: Device, options: GrantOptions, consumer: Consumer, former: Allocation | None) -> bool:
        """Give an interface its own name, and a VF its GUIDs, or its MAC and VLAN; whether anything was changed.

        :param former: the consumer's record, if it had the device before
        """
        if device.kind is not Kind.NET:
            return False
        function = self._function(device)
        if former and "link" in former.restore:
            function.set_link(True)  # its container ended while it was frozen
        if device.netdev_away:
            return False
        # By what it is called now: udev may have renamed it since the lock was taken.
        restore = {"netdev": function.netdev() or device.netdev or "", "driver": device.driver or ""}
        now = function.guids()
        guids = (options.node_guid or now[0], options.port_guid or now[1])
        if guids != now:
            restore |= {"node_guid": now[0], "port_guid": now[1]}
        restore |= port_before(options, function)
        name = self._store.prepare(device.id, consumer, restore).restore["netdev"]
        changed = guids != now
        if changed:
            function.set_guids(*guids)
            function.rebind()
            function.await_guids(*guids)
        if options.mac is not None:
            function.set_port(options.mac, options.vlan, options.spoof_check, options.trust)
            if function.mac() != options.mac:
                changed = True
                function.rebind()
                function.await_mac(options.mac)
        if function.netdev() != name:
            function.rename(name)
            changed = True
        return changed

    @staticmethod
    def _grants(inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation], consumer: Consumer
                ) -> tuple[Grant, ...]:
        grants = []
        for request in requests:
            device = inventory.get(request.address)
            if device.id not in mine:
                raise DeviceHeld(f"device {device.id} is not held by {consumer}")
            grants.append(make_grant(with_own_netdev(device, mine[device.id]), request.options))
        return tuple(grants)

    # After

    def _undo(self, device_id: str, consumer: Consumer, view: HostView) -> None:
        """Restore a device after a failed acquisition, under the device's lock. No container has had it."""
        record = self._records(consumer).get(device_id)
        if record is not None:
            view.refresh([device_id])
            complaint = self._release_record(record, None, view)
            if complaint:
                LOG.error("After a failed acquisition: %s", complaint)

    def _release_all(self, device_ids: Collection[str], consumer: Consumer, container: int | None, view: HostView
                     ) -> tuple[str, ...]:
        """Clean and free devices, and return complaints.

        :param device_ids: what the consumer had a moment ago; another process may have cleaned it since
        """
        if not device_ids:
            return ()
        try:
            with self._store.working(device_ids):
                records = [record for name, record in self._records(consumer).items() if name in device_ids]
                if records:
                    view.refresh(record.device_id for record in records)
                complaints = [self._release_record(record, container, view) for record in records]
        except DeviceBusy as error:
            return (str(error),)
        return tuple(complaint for complaint in complaints if complaint)

    def _release_record(self, record: Allocation, container: int | None, view: HostView) -> str | None:
        """Clean a device and free it, under its lock, or block it. One that is only claimed was not changed.

        :returns: why it is blocked; None when it is free
        """
        if record.state is not State.CLAIMED:
            record = self._store.begin_cleaning(record.device_id)
            try:
                self._scrub(view.inventory.get(record.device_id), record.restore, holders_of(container))
                self._require_well(record.device_id, view)
            except (ScrubFailed, DeviceNotFound, DeviceUnhealthy) as error:
                self._store.block(record.device_id, str(error))
                return str(error)
        self._store.release(record.device_id, record.consumer)
        return None

    def _scrub(self, device: Device, restore: Mapping[str, str], holders: Collection[int] | None) -> tuple[str, ...]:
        return scrub(device, restore, self._function(device), self._privileged, self._host, holders)

    @staticmethod
    def _require_well(device_id: str, view: HostView) -> None:
        device = view.refresh([device_id]).get(device_id)
        if not device.sound:
            raise DeviceUnhealthy(f"device {device_id} came back, but is not healthy: {'; '.join(device.health)}")

    def _function(self, device: Device) -> NetFunction:
        parent = device.parent if device.role is Role.VF else None
        netdev = Netdevs(self._host).of(pci.directory(self._host, parent)).netdev if parent else None
        return NetFunction(device, netdev.name if netdev else None, self._privileged, self._host)


def concerned(device: Device, inventory: Inventory) -> tuple[Device, ...]:
    """Return the device and those by which a container's configuration may name it. With the other parts of the same
    GPU: a container that has one of those by its nodes names the GPU's node, too."""
    return tuple({other.id: other for other in (
        device, *inventory.related(device), *inventory.by_address(device.address))}.values())


def is_cleanable(record: Allocation) -> bool:
    """Return whether the operator may clean the device, under its lock: no container has it, and nobody is cleaning
    it."""
    return record.state in (State.BLOCKED, State.CLEANING) or record.consumer == OPERATOR


def holders_of(container: int | None) -> tuple[int, ...]:
    """Return the processes whose containers may use the devices.

    :param container: the first process of the one that has the devices; None when it does not run
    """
    return () if container is None else (container,)


def port_before(options: GrantOptions, function: NetFunction) -> dict[str, str]:
    """Return the settings of a VF's port to restore after ``options``."""
    if options.mac is None:
        return {}
    checked = {} if options.spoof_check is None else {"spoof_check": "on" if function.spoof_check() else "off"}
    return {"mac": NO_MAC} | checked | ({} if options.trust is None else {"trust": "off"})


def with_own_netdev(device: Device, record: Allocation) -> Device:
    """Return the device with the interface's name from its record: the interface is in the container."""
    if device.netdev is None and device.netdev_away and record.restore.get("netdev"):
        return dataclasses.replace(device, netdev=record.restore["netdev"])
    return device


def own_nodes(device: Device) -> tuple[CharNode, ...]:
    return tuple(node for node in device.nodes if node.use is NodeUse.OWN)


def require_distinct(wanted: Iterable[tuple[Device, GrantOptions]], mine: Iterable[str] = ()) -> None:
    """Refuse devices that one container cannot have together.

    :param mine: ids of what the container has already
    :raises SpecError: one device or one interface name is asked for twice
    """
    devices, names = set(), set()
    shares = {name.partition("/share")[0]: name for name in mine if "/share" in name}
    for device, options in wanted:
        if device.id in devices:
            raise SpecError(f"device {device.id} is asked for twice by one container")
        if device.kind is Kind.GPU_SHARE and shares.setdefault(device.address, device.id) != device.id:
            raise SpecError(f"one container would have two shares of GPU {device.address}, {shares[device.address]} "
                            f"and {device.id}, which are no more than one: choose shares of two GPUs")
        if options.netdev_name in names:
            raise SpecError(f"two devices of one container would be called {options.netdev_name}")
        devices.add(device.id)
        if options.netdev_name:
            names.add(options.netdev_name)
