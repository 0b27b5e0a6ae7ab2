# SPDX-License-Identifier: Apache-2.0
"""Nova's database, Placement, Glance and message bus in memory, behind nova's own objects and RPC client.

What a process has not saved is lost when it is killed: every object is handed out and stored as a copy.
"""

import collections
import contextlib
import copy
import datetime
import sys
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import oslo_messaging as messaging
from nova import availability_zones, exception, exception_wrapper, objects, utils
from nova import context as nova_context
from nova.compute import rpcapi, task_states, vm_states
from nova.compute import utils as compute_utils
from nova.network import model as network_model
from nova.virt import node
from oslo_messaging.rpc import dispatcher as rpc_dispatcher

from containerhost import errors
from nova_lxd_ext.server import deferred
from tests.model.disk import FULL, POWER_CUT
from tests.model.hardware import FORMER_ANSWER, NO_ANSWER
from tests.model.inmemory import STALLS
from tests.model.nova.placement import Placement

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
OWNER = {"user_id": "tenant", "project_id": "project"}
ENGINE_FAULTS = ("fails", "times out", "unavailable", NO_ANSWER, FORMER_ANSWER)
MET_AT = {**dict.fromkeys((*ENGINE_FAULTS, STALLS), "engine"), FULL: "disk"}  # steps of which kind alone a fault meets
FAULTS = ("killed", *ENGINE_FAULTS, "other host restarts", "locked")
EXPECTED = (exception.NovaException, errors.ContainerHostError, rpc_dispatcher.ExpectedException,
            messaging.MessagingTimeout)


class Killed(BaseException):
    """The process ends here, as by kill -9: no handler of the driver may see it."""


class Message(NamedTuple):
    """A request in a host's queue.

    :ivar number: of all requests, in the order in which they were sent
    """

    number: int
    method: str
    context: Any
    arguments: dict[str, Any]


class Cloud:
    """:ivar current: the nova-compute that runs now; None while the API, the conductor or the test does
    :ivar faults: what goes wrong next, each after so many steps: a step is a request to the engine, or a write to an
        allocation record, to the database, to Placement, to the bus
    :ivar stalls: whether the engines stall
    :ivar restart_other: restarts the other host's nova-compute
    :ivar end_all: ends all processes of both hosts
    :ivar defects: errors that no caller of the driver expects
    :ivar images: ids of the images that Glance has
    :ivar pci: uuid of the server and id of the request, by (host, address) of a claimed device
    :ivar coming: those of them that are claimed for a server which is migrated live
    :ivar process_of: returns the nova-compute that runs on a host, if one does
    :ivar ended: notes that the one on a host was killed
    :ivar timers: what nova-compute does later, by host
    """

    def __init__(self) -> None:
        self.current: Any = None
        self.faults: list[tuple[int, str]] = []
        self.stalls = False
        self.restart_other: Callable[[str], None] = lambda host: None
        self.end_all: Callable[[], None] = lambda: None
        self.instances: dict[str, objects.Instance] = {}
        self.deleted: dict[str, objects.Instance] = {}
        self.migrations: dict[int, objects.Migration] = {}
        self.actions: list[objects.InstanceAction] = []
        self.events: list[objects.InstanceActionEvent] = []
        self.defects: list[BaseException] = []
        self.images: set[str] = set()
        self.pci: dict[tuple[str, str], tuple[str, str]] = {}
        self.coming: set[tuple[str, str]] = set()
        self.process_of: Callable[[str], Any] = lambda host: None
        self.ended: Callable[[str], None] = lambda host: None
        self.nodes: dict[str, objects.ComputeNode] = {}
        self.queues: dict[str, collections.deque[Message]] = collections.defaultdict(collections.deque)
        self.timers: dict[str, list[Any]] = collections.defaultdict(list)
        self.placement = Placement(self.step)
        self.rpc = Rpc(self)
        self._count = self._readings = 0
        self._waiting: list[Any] = []

    def count(self) -> int:
        self._count += 1
        return self._count

    def clock(self) -> float:
        """Return the time of a clock that nothing but its own readings move."""
        self._readings += 1
        return self._readings / 10

    def new_uuid(self) -> str:
        return f"00000000-0000-4000-8000-{self.count():012x}"

    def send(self, host: str, method: str, context: Any, **arguments: Any) -> None:
        """Put a request into a host's queue; copied, as the message bus does."""
        self.step("bus")
        copied = {name: value.obj_clone() if hasattr(value, "obj_clone") else value
                  for name, value in arguments.items()}
        self.queues[host].append(Message(self.count(), method, context, copied))

    def call(self, host: str, method: str, context: Any, **arguments: Any) -> Any:
        """Let another host do something, and wait for its answer.

        :raises MessagingTimeout: it does not answer, also because it waits itself for what goes on here
        """
        self.step("bus")
        process = self.process_of(host)
        if process is None or process in self._waiting:
            raise messaging.MessagingTimeout(method)
        copied = {name: value.obj_clone() if hasattr(value, "obj_clone") else value
                  for name, value in arguments.items()}
        try:
            with self.on(process):
                answer = getattr(process.manager, method)(context, **copied)
        except Killed:
            self.ended(host)
            self.step("bus")
            raise messaging.MessagingTimeout(method) from None
        except rpc_dispatcher.ExpectedException as error:
            raise error.exc_info[1] from error
        self.step("bus")
        return answer.obj_clone() if hasattr(answer, "obj_clone") else answer

    def step(self, what: str = "database") -> str | None:
        """Pass one step of the process that runs.

        :returns: how a request to the engine, or a change of a disk, ends, if not well
        """
        if self.current is None:
            return None
        if not self.current.alive:
            raise Killed
        if self.stalls or not self.faults:
            return STALLS if self.stalls and what in ("engine", "list") else None
        at, fault = self.faults[0]
        met_at = MET_AT.get(fault, what)
        if at > 0 or (met_at != what and (met_at, what) != ("engine", "list")):
            self.faults[0] = max(0, at - 1), fault
            return None
        self.faults.pop(0)
        if fault == "killed":
            self.current.alive = False
            raise Killed
        self.stalls = fault == STALLS
        if fault == POWER_CUT:
            self.end_all()
            raise Killed
        if fault == "other host restarts":
            process = self.current
            self.restart_other(process.name)
            if not process.alive:  # the next fault restarted this one's host
                raise Killed
        elif fault == "locked":
            self._lock_busy()
        return fault

    def _lock_busy(self) -> None:
        """Lock each server on which nova works."""
        for uuid in [uuid for uuid, stored in self.instances.items() if stored.task_state is not None]:
            self.begin_action(uuid, "lock")

    def note_unexpected(self, *_: Any, **__: Any) -> None:
        """Note an error that the driver logs, unless a fault may cause it."""
        error = sys.exception()
        if error is not None and not isinstance(error, EXPECTED):
            self.defects.append(error)

    @contextlib.contextmanager
    def on(self, process: Any) -> Iterator[None]:
        """Let ``process`` run."""
        before, self.current = self.current, process
        self._waiting.append(before)
        try:
            yield
        finally:
            self.current = self._waiting.pop()

    # The database

    def instance(self, uuid: str, context: Any = None) -> objects.Instance:
        """Return a copy of a server's record."""
        if uuid in self.deleted and reads_deleted(context):
            return self._copy(self.deleted[uuid])
        if uuid not in self.instances:
            raise exception.InstanceNotFound(instance_id=uuid)
        return self._copy(self.instances[uuid])

    def _copy(self, stored: objects.Instance) -> objects.Instance:
        found, uuid = stored.obj_clone(), stored.uuid
        found.pci_devices = objects.PciDeviceList(objects=[
            pci_device(address, self.nodes[host].id, request, uuid)
            for (host, address), (holder, request) in sorted(self.pci.items())
            if holder == uuid and (host, address) not in self.coming])
        found.obj_reset_changes()
        return found

    def save_instance(self, instance: objects.Instance, expected_vm_state: Any = None, expected_task_state: Any = None,
                      admin_state_reset: bool = False) -> None:
        self.step()
        if instance.uuid not in self.instances:
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        stored = self.instances[instance.uuid]
        expected = expected_task_state if isinstance(expected_task_state, list | tuple) else [expected_task_state]
        if expected_task_state is not None and stored.task_state not in expected:
            kind = (exception.UnexpectedDeletingTaskStateError if stored.task_state == task_states.DELETING
                    else exception.UnexpectedTaskStateError)
            raise kind(instance_uuid=instance.uuid, expected={"task_state": expected},
                       actual={"task_state": stored.task_state})
        for name in instance.obj_what_changed() - {"pci_devices"}:
            setattr(stored, name, copy.deepcopy(getattr(instance, name)))
        instance.obj_reset_changes()

    def refresh_instance(self, instance: objects.Instance) -> None:
        found = self.instance(instance.uuid)
        for name in found.fields:
            if found.obj_attr_is_set(name):
                setattr(instance, name, getattr(found, name))
        instance.obj_reset_changes()

    def drop_migration_context(self, instance: objects.Instance) -> None:
        if instance.migration_context:
            self.step()
            self.instances[instance.uuid].migration_context = instance.migration_context = None

    def destroy_instance(self, instance: objects.Instance) -> None:
        self.step()
        gone = self.instances.pop(instance.uuid, None)
        if gone is not None:
            gone.deleted, gone.deleted_at = True, None
            self.deleted[instance.uuid] = gone

    def by_filters(self, context: Any, filters: dict[str, Any], **_: Any) -> objects.InstanceList:
        found = self.deleted if filters.get("deleted") else self.instances
        return objects.InstanceList(objects=[
            self._copy(stored) for stored in found.values()
            if all(matches(getattr(stored, name), wanted) for name, wanted in filters.items()
                   if name not in ("deleted", "soft_deleted"))])

    def migration(self, context: Any, number: int, *_: Any) -> objects.Migration:
        if number not in self.migrations:
            raise exception.MigrationNotFound(migration_id=number)
        return self.migrations[number].obj_clone()

    def migration_with(self, context: Any, uuid: str, status: str) -> objects.Migration:
        for move in self.migrations_by(context, {"instance_uuid": uuid, "status": status}):
            return move
        raise exception.MigrationNotFoundByStatus(instance_id=uuid, status=status)

    def save_migration(self, move: objects.Migration) -> None:
        self.step()
        self.migrations[move.id] = move.obj_clone()

    def create_migration(self, **values: Any) -> objects.Migration:
        nowhere = dict.fromkeys(("dest_compute", "dest_node", "dest_host", "dest_compute_id", "source_compute"))
        move = objects.Migration(context=nova_context.get_admin_context(), id=self.count(), uuid=self.new_uuid(),
                                 hidden=False, **nowhere | values)
        self.save_migration(move)
        return move

    def migrations_by(self, context: Any, filters: dict[str, Any], **_: Any) -> objects.MigrationList:
        def wanted(move: objects.Migration) -> bool:
            if move.instance_uuid in self.deleted and not reads_deleted(context):
                return False  # with a server nova marks its moves as deleted, too
            hosts = (move.source_compute, move.dest_compute)
            return all(value in hosts if name == "host" else matches(getattr(move, name), value)
                       for name, value in filters.items())
        return objects.MigrationList(objects=[move.obj_clone() for number, move in sorted(
            self.migrations.items(), reverse=True) if wanted(move)])

    # Actions and their events

    def begin_action(self, uuid: str, action: str) -> Any:
        """Record what the API begins for a server, and return the request's context."""
        context = nova_context.RequestContext(**OWNER, is_admin=True, overwrite=False)
        self.actions.append(objects.InstanceAction(
            id=self.count(), action=action, instance_uuid=uuid, request_id=context.request_id, start_time=NOW, **OWNER))
        return context

    def actions_of(self, context: Any, uuid: str, limit: int | None = None, **_: Any) -> list[objects.InstanceAction]:
        return [action for action in reversed(self.actions) if action.instance_uuid == uuid][:limit]

    def events_of(self, context: Any, action: int) -> list[objects.InstanceActionEvent]:
        return [event for event in reversed(self.events) if event.action_id == action]

    def _action(self, context: Any, uuid: str) -> objects.InstanceAction:
        """Return the action of the request; at the start of nova-compute the latest one, as nova does."""
        for action in self.actions_of(context, uuid):
            if action.request_id == context.request_id or not context.project_id:
                return action
        raise exception.InstanceActionNotFound(request_id=context.request_id, instance_uuid=uuid)

    def event_start(self, context: Any, uuid: str, name: str, want_result: bool = True, host: str | None = None
                    ) -> None:
        self.step()
        self.events.append(objects.InstanceActionEvent(
            id=self.count(), event=name, action_id=self._action(context, uuid).id, start_time=NOW, finish_time=None,
            result=None, host=host))

    def event_finish(self, context: Any, uuid: str, name: str, exc_val: Any = None, exc_tb: Any = None,
                     want_result: bool = True) -> None:
        self.step()
        for event in self.events_of(context, self._action(context, uuid).id):
            if event.event == name:
                event.finish_time, event.result = NOW, "Success" if exc_val is None and exc_tb is None else "Error"
                return
        raise exception.InstanceActionEventNotFound(event=name, action_id=0)


class Rpc(rpcapi.ComputeAPI):
    """Nova's RPC client of its compute hosts on the bus in memory."""

    router = None  # in place of nova's property

    def __init__(self, cloud: Cloud) -> None:
        self.router = SimpleNamespace(client=lambda context: Client(cloud))


class Client:
    """Put the casts of nova's RPC client into the queues, and make its calls."""

    def __init__(self, cloud: Cloud, server: str | None = None) -> None:
        self._cloud = cloud
        self._server = server

    def can_send_version(self, version: str) -> bool:
        return True

    def prepare(self, server: str | None = None, **_: Any) -> "Client":
        return Client(self._cloud, server)

    def cast(self, context: Any, method: str, **arguments: Any) -> None:
        assert self._server is not None
        self._cloud.send(self._server, method, context, **arguments)

    def call(self, context: Any, method: str, **arguments: Any) -> Any:
        assert self._server is not None
        return self._cloud.call(self._server, method, context, **arguments)


class Timer:
    """threading.Timer, which the test fires: minutes pass."""

    def __init__(self, cloud: Cloud, interval: float, function: Callable[..., None], args: tuple[Any, ...] = ()
                 ) -> None:
        self.daemon = True
        self._process = cloud.current
        self._call = lambda: function(*args)
        self._pending = cloud.timers[cloud.current.name]

    def start(self) -> None:
        self._pending.append(self)

    def run(self) -> None:
        """Call the function, unless its process has ended."""
        if self._process.alive:
            self._call()

    def cancel(self) -> None:
        if self in self._pending:
            self._pending.remove(self)


def reads_deleted(context: Any) -> bool:
    return context is not None and context.read_deleted == "yes"


def matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list | tuple | set | frozenset) else value == wanted


def pci_device(address: str, node: int, request: str, uuid: str | None, coming: bool = False) -> objects.PciDevice:
    return objects.PciDevice(address=address, compute_node_id=node, request_id=request, instance_uuid=uuid,
                             status="claimed" if coming else "allocated" if uuid else "available")


def request_of(count: int, uuid: str, request_id: str) -> objects.InstancePCIRequests:
    """Return what a flavor with so many GPUs asks of nova's PCI tracker."""
    return objects.InstancePCIRequests(instance_uuid=uuid, requests=[objects.InstancePCIRequest(
        request_id=request_id, alias_name="gpu", count=count, spec=[{}])] if count else [])


def new_instance(cloud: Cloud, flavor: objects.Flavor, gpus: int, image: str) -> objects.Instance:
    """Record a server as the API does: nova places it nowhere yet."""
    uuid, number = cloud.new_uuid(), cloud.count()
    values: dict[str, Any] = {name: None for name in (
        "host", "node", "compute_id", "launched_on", "availability_zone", "key_name", "key_data", "user_data",
        "new_flavor", "old_flavor", "migration_context", "numa_topology", "trusted_certs", "launched_at",
        "terminated_at", "resources", "access_ip_v4", "access_ip_v6", "device_metadata", "power_state")}
    instance = objects.Instance(
        context=nova_context.get_admin_context(), id=number, uuid=uuid, hostname=f"host-{number}",
        display_name=f"server {number}", image_ref=image, vm_state=vm_states.BUILDING,
        task_state=task_states.SCHEDULING, config_drive="", system_metadata={"image_min_disk": "0"}, metadata={},
        progress=0, root_device_name="/dev/root", flavor=flavor, instance_type_id=flavor.id,
        memory_mb=flavor.memory_mb, vcpus=flavor.vcpus, root_gb=flavor.root_gb, ephemeral_gb=0,
        auto_disk_config=False, deleted=False, cleaned=False,
        keypairs=objects.KeyPairList(objects=[]), pci_requests=request_of(gpus, uuid, cloud.new_uuid()),
        info_cache=objects.InstanceInfoCache(instance_uuid=uuid, network_info=network_model.NetworkInfo()),
        **OWNER, **values)
    cloud.instances[uuid] = instance.obj_clone()
    cloud.instances[uuid].obj_reset_changes()
    return cloud.instance(uuid)


def install(cloud: Cloud, stack: contextlib.ExitStack) -> None:
    """Let nova's objects read and write ``cloud`` until the stack ends."""
    def patch(target: Any, name: str, new: Any) -> None:
        stack.enter_context(mock.patch.object(target, name, new))

    def method(target: Any, name: str, action: Callable[..., None]) -> None:
        # A bound method would not get the object.
        patch(target, name, lambda *args, **more: action(*args, **more))  # noqa: PLW0108

    def hosts(context: Any, host: str, **_: Any) -> objects.InstanceList:
        return cloud.by_filters(context, {"host": host})

    def missing(*_: Any) -> None:
        raise exception.RequestSpecNotFound(instance_uuid="")

    method(objects.Instance, "save", cloud.save_instance)
    method(objects.Instance, "refresh", cloud.refresh_instance)
    method(objects.Instance, "destroy", cloud.destroy_instance)
    method(objects.Instance, "drop_migration_context", cloud.drop_migration_context)
    patch(objects.Instance, "get_by_uuid", lambda context, uuid, *_, **__: cloud.instance(uuid, context))
    patch(objects.InstanceList, "get_by_host", hosts)
    patch(objects.InstanceList, "get_by_filters", cloud.by_filters)
    patch(objects.InstanceList, "get_uuids_by_host", lambda context, host: [it.uuid for it in hosts(context, host)])
    method(objects.Migration, "save", cloud.save_migration)
    patch(objects.Migration, "get_by_id", cloud.migration)
    patch(objects.Migration, "get_by_id_and_instance", cloud.migration)
    patch(objects.Migration, "get_by_instance_and_status", cloud.migration_with)
    patch(objects.PciDeviceList, "get_by_instance_uuid", lambda context, uuid: cloud.instance(uuid).pci_devices)
    patch(objects.InstancePCIRequests, "get_by_instance_uuid",
          lambda context, uuid: cloud.instance(uuid).pci_requests)
    patch(objects.MigrationList, "get_by_filters", cloud.migrations_by)
    patch(objects.InstanceActionList, "get_by_instance_uuid", cloud.actions_of)
    patch(objects.InstanceActionEventList, "get_by_action", cloud.events_of)
    patch(objects.InstanceActionEvent, "event_start", cloud.event_start)
    patch(objects.InstanceActionEvent, "event_finish_with_failure", cloud.event_finish)
    patch(availability_zones, "get_host_availability_zone", lambda context, host: f"zone of {host}")
    patch(objects.RequestSpec, "get_by_instance_uuid", missing)
    for kind in (objects.BlockDeviceMappingList, objects.VirtualInterfaceList):
        patch(kind, "get_by_instance_uuid", lambda *_, kind=kind, **__: kind(objects=[]))
    patch(objects.ComputeNode, "get_by_host_and_nodename", lambda context, host, _: cloud.nodes[host])
    patch(node, "read_local_node_uuid", lambda: cloud.nodes[cloud.current.name].uuid)
    patch(objects.ComputeNode, "get_by_uuid",
          lambda context, uuid: next(each for each in cloud.nodes.values() if each.uuid == uuid))
    patch(objects.ComputeNodeList, "get_all_by_host", lambda context, host: [cloud.nodes[host]])
    for name in (name for name in dir(compute_utils) if name.startswith("notify_")):
        patch(compute_utils, name, lambda *_, **__: None)
    patch(compute_utils, "add_instance_fault_from_exc", lambda *_, **__: None)
    for kind in (objects.Flavor, objects.KeyPairList, objects.InstanceInfoCache):  # nobody changes them here
        stack.enter_context(mock.patch.object(kind, "__deepcopy__", lambda value, memo: value, create=True))
    patch(exception_wrapper, "_emit_legacy_exception_notification", lambda *_: None)
    patch(exception_wrapper, "_emit_versioned_exception_notification", lambda *_: None)
    patch(utils, "synchronized", lambda *_: lambda function: function)  # two hosts have one thread
    stack.enter_context(mock.patch("os.fsync", lambda file: None))  # a killed process loses nothing that it wrote
    patch(deferred.LOG, "exception", cloud.note_unexpected)
    stack.enter_context(mock.patch("threading.Timer", lambda *args, **more: Timer(cloud, *args, **more)))


def placed(cloud: Cloud, host: str) -> Iterable[str]:
    return [uuid for uuid, stored in cloud.instances.items() if stored.host == host]
