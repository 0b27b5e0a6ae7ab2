# SPDX-License-Identifier: Apache-2.0
"""Finish or undo what nova-compute was doing for servers when it was killed. Nova itself does so for boots, reboots,
power and deletions only; every other server would stay in its task state, with the allocations of both sizes.

A request that this host had begun is sent once more where all its steps can be repeated, and undone where they cannot:
a tenant's image, say, is readable with the tenant's token only, which is gone. Requests that are sent wait in this
host's own queue until nova-compute takes requests. There the second request of a resize or revert may wait already, or
nova-compute was killed between the queue and its first event: it is sent once more when it has not begun for a while.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import oslo_messaging as messaging
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception, objects, utils
from nova.compute import power_state, rpcapi, task_states, vm_states
from nova.compute import utils as compute_utils
from nova.scheduler.client import report
from nova.virt import hardware
from oslo_log import log as logging

from containerhost import errors
from nova_lxd_ext.server import known, lostrequests
from nova_lxd_ext.server.incoming import is_at_home
from nova_lxd_ext.server.lifecycle import WHOLE, Lifecycle
from nova_lxd_ext.server.lostrequests import Lost
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.states import States

LOG = logging.getLogger(__name__)

OVER = ("confirmed", "reverted", "error", "failed", "completed", "cancelled", "done")  # nova's last states of a move
UNCLAIMED = ["accepted", "pre-migrating"]
RECENT = 1000  # moves that are looked at
ATTRIBUTES = ["metadata", "system_metadata", "flavor", "migration_context", "info_cache"]
QUEUE_TIMEOUT = 600.0  # s that a request may wait in the queue, also while nova-compute is not done with its start
REBUILDS = frozenset({task_states.REBUILDING, task_states.REBUILD_BLOCK_DEVICE_MAPPING, task_states.REBUILD_SPAWNING})
SHELVINGS = frozenset({task_states.SHELVING, task_states.SHELVING_IMAGE_PENDING_UPLOAD,
                       task_states.SHELVING_IMAGE_UPLOADING})
UNSHELVINGS = frozenset({task_states.UNSHELVING, task_states.SPAWNING})
REVERTS = frozenset({"revert_resize", "finish_revert_resize"})
NOTHING_DONE = frozenset({task_states.IMAGE_BACKUP, task_states.UPDATING_PASSWORD})
SENT_AGAIN: Mapping[str, Callable[[Any, Any, objects.Instance], None]] = {
    task_states.UNRESCUING: lambda requests, context, instance: requests.unrescue_instance(context, instance),
    task_states.RESUMING: lambda requests, context, instance: requests.resume_instance(context, instance),
    task_states.SOFT_DELETING: lambda requests, context, instance: requests.soft_delete_instance(context, instance),
    task_states.RESTORING: lambda requests, context, instance: requests.restore_instance(context, instance),
    task_states.SHELVING_OFFLOADING: lambda requests, context, instance: requests.shelve_offload_instance(
        context, instance, clean_shutdown=False),
}
FROZEN = {task_states.PAUSING: vm_states.PAUSED, task_states.SUSPENDING: vm_states.SUSPENDED}


class Second(NamedTuple):
    """The second request of a move, which the first one sends as its last step.

    :ivar host: whether it goes to the move's ``source_compute`` or ``dest_compute``
    """

    first: str
    method: str
    host: str


SECOND_REQUESTS = {task_states.RESIZE_MIGRATED: Second("resize_instance", "finish_resize", "dest_compute"),
                   task_states.RESIZE_REVERTING: Second("revert_resize", "finish_revert_resize", "source_compute")}


class Killed(exception.NovaException):
    """What a server's owner is told of a request that nova-compute did not finish."""

    msg_fmt = "nova-compute on %(host)s was killed during this request: %(outcome)s"


class Recovery:
    """:param await_changes: waits until the engine has ended what it does to the container of this name
    :param requests: sends requests to compute hosts
    :param placement: nova's client of Placement; made at the first use, because it asks for the service's address
    """

    def __init__(self, states: States, lifecycle: Lifecycle, power: Power,
                 await_changes: Callable[[str], None],
                 requests: Callable[[], Any] = rpcapi.ComputeAPI,
                 placement: Callable[[], Any] = report.report_client_singleton) -> None:
        self._states = states
        self._lifecycle = lifecycle
        self._power = power
        self._await_changes = await_changes
        self._requests = requests
        self._placement = placement
        self._later: threading.Timer | None = None

    def await_engine(self, instances: Iterable[objects.Instance]) -> None:
        """Wait until the engine has ended what it was doing. At the driver's start, before anybody looks at the
        containers: what nova-compute began before it was killed goes on in the engine, and a container that is about to
        stop still runs.

        :param instances: the servers that nova places on this host
        """
        for instance in instances:
            if instance.task_state is not None:
                with log_errors(instance.uuid):
                    self._await_changes(instance.name)
        self._states.changed()

    def recover(self, host: str, instances: Iterable[objects.Instance]) -> None:
        """Recover the servers at the driver's start, before nova looks at them. One that cannot be recovered keeps no
        other from it.

        :param instances: the servers that nova places on this host
        """
        context = nova_context.get_admin_context()
        moves = {move.instance_uuid: move for move in self._moves(context, host)}
        mine = {instance.uuid: instance for instance in instances}
        unbegun = set()
        for uuid, move in moves.items():
            if uuid not in mine or mine[uuid].task_state in SECOND_REQUESTS:
                with log_errors(uuid):
                    if self._unbegun(context, host, uuid, move):
                        unbegun.add(uuid)
        self._look_again(host, unbegun)
        for uuid, move in moves.items():
            if uuid not in mine:
                with log_errors(uuid):
                    self._recover_elsewhere(context, host, uuid, move)
        for uuid, instance in mine.items():
            if instance.task_state is not None or uuid in moves or instance.vm_state == vm_states.SHELVED_OFFLOADED:
                with log_errors(uuid):
                    self._recover_one(context, host, instance, moves.get(uuid))
        with log_errors("whose move is over"):
            self._free_allocations(context, host, mine)

    def stop(self) -> None:
        """Send nothing any more."""
        if self._later is not None:
            self._later.cancel()

    def _look_again(self, host: str, uuids: Collection[str]) -> None:
        """Schedule another look for requests that have not begun, and cancel the previous one.

        :param uuids: of servers of which a request has not begun
        """
        self.stop()
        if uuids:
            self._later = threading.Timer(QUEUE_TIMEOUT, self._send_unbegun, (host, uuids))
            self._later.daemon = True
            self._later.start()

    def _send_unbegun(self, host: str, uuids: Collection[str]) -> None:
        context = nova_context.get_admin_context()
        with log_errors(", ".join(sorted(uuids))):
            for move in self._moves(context, host):
                if move.instance_uuid in uuids:
                    with log_errors(move.instance_uuid):
                        found = self._unbegun(context, host, move.instance_uuid, move)
                        if found:
                            self._send_second(*found, move)

    @staticmethod
    def _unbegun(context: Any, host: str, uuid: str, move: objects.Migration) -> tuple[objects.Instance, Lost] | None:
        """Return the server whose move waits for a second request on this host that has not begun; None where none
        does."""
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return None
        second = SECOND_REQUESTS.get(instance.task_state)
        if second is None or getattr(move, second.host) != host or not is_under_way(instance, move):
            return None
        lost = lostrequests.of(context, uuid, host)
        begun = lost.methods | lost.others
        return (instance, lost) if second.first in lost.ended and second.method not in begun else None

    def _send_second(self, instance: objects.Instance, lost: Lost, move: objects.Migration) -> None:
        LOG.warning("A request was lost (task state %s): it is sent once more", instance.task_state, instance=instance)
        if instance.task_state == task_states.RESIZE_MIGRATED:
            self._finish_move(instance, move, lost)
        else:
            self._requests().finish_revert_resize(lost.context(instance), instance, move, move.source_compute,
                                                  request_spec(lost.context(instance), instance))

    @staticmethod
    def _moves(context: Any, host: str) -> Iterable[objects.Migration]:
        """Return the latest migration of each server, of those from or to this host and of those whose new host has not
        claimed yet: until then nova does not record which one that is."""
        found = [move for filters in ({"host": host}, {"status": UNCLAIMED})
                 for move in objects.MigrationList.get_by_filters(context, filters, sort_keys=["id"],
                                                                  sort_dirs=["desc"], limit=RECENT)]
        latest = {move.instance_uuid: move for move in sorted(found, key=lambda move: move.id)}
        return [move for move in latest.values() if move.migration_type in ("resize", "migration", "evacuation")]

    def _recover_one(self, context: Any, host: str, instance: objects.Instance, move: objects.Migration | None) -> None:
        lost = lostrequests.of(context, instance.uuid, host)
        state = instance.task_state
        if not lost.methods:
            if move is not None and move.status == "pre-migrating" and is_at_home(move) \
                    and state in (None, task_states.RESIZE_PREP):
                # The second request of a resize was taken and not begun. Nova would clear the task state alone.
                self._record_outcome(context, instance, lost, "the server keeps its old size")
                self._forget_move(context, instance, move)
            return
        if state is not None:
            LOG.warning("nova-compute ended during %s (task state %s): it is finished or undone",
                        ", ".join(sorted(lost.methods)), state, instance=instance)
        if state in (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING) and move is not None:
            self._undo_move(context, instance, move, lost)
        elif state in (task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH) and move is not None:
            self._finish_move(instance, move, lost)
        elif state == task_states.RESIZE_REVERTING and move is not None:
            self._revert(instance, move, lost)
        elif "confirm_resize" in lost.methods and move is not None:
            self._confirm(context, instance, move, lost)
        elif state is not None:
            self._recover_task(context, instance, lost)
        elif instance.vm_state == vm_states.SHELVED_OFFLOADED:
            self._leave_host(instance)

    def _recover_task(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        state = instance.task_state
        if state in SENT_AGAIN:
            SENT_AGAIN[state](self._requests(), lost.context(instance), instance)
        elif state == task_states.REBOOT_STARTED:
            # Nova asks again for a reboot that is pending. One that was begun it takes for done where the guest runs:
            # it may have been asked to shut down.
            save(instance, task_state=task_states.REBOOT_PENDING)
        elif state in FROZEN:
            self._sync_state(instance, FROZEN[state])
        elif instance.vm_state == vm_states.SHELVED_OFFLOADED and state in UNSHELVINGS:
            self._end_unshelving(context, instance, lost)
        else:
            self._undo_task(context, instance, lost)

    def _undo_task(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        state = instance.task_state
        if state == task_states.RESCUING:
            self._start_again(context, instance, lost, "it is not rescued; it was started again from its own root")
        elif state in SHELVINGS:
            self._start_again(context, instance, lost, "it is not shelved, and was started again; its image may be "
                              "incomplete, delete that")
        elif state in REBUILDS:
            self._lifecycle.remove(context, instance, known.requested(context, instance))
            self._fail(context, instance, lost, "its root disk may be gone; rebuild it again")
        elif state in NOTHING_DONE:
            self._record_outcome(context, instance, lost, "ask for it again")
            save(instance, task_state=None)

    # Resize and migration

    def _undo_move(self, context: Any, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        """Let nova revert the move as a user would: both hosts release what they have claimed for the new size."""
        self._record_outcome(context, instance, lost, "the server keeps its old size and host")
        if instance.migration_context is None or (instance.task_state == task_states.RESIZE_PREP
                                                  and is_at_home(move)):
            self._forget_move(context, instance, move)
            return
        save(instance, old_flavor=instance.flavor, task_state=task_states.RESIZE_REVERTING)
        set_status(move, "reverting")
        self._requests().revert_resize(lost.context(instance), instance, move, move.dest_compute,
                                       resize_request_spec(context, instance))

    def _forget_move(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        """Drop a migration that has changed nothing of the server yet."""
        resize_request_spec(context, instance)
        self._give_allocations_back(context, instance.uuid, move)
        set_status(move, "failed")
        instance.drop_migration_context()
        save(instance, new_flavor=None, task_state=None)

    def _give_allocations_back(self, context: Any, uuid: str, move: objects.Migration) -> None:
        """Let the server have what the move holds: the resources of its old size."""
        client = self._placement()
        if client.get_allocations_for_consumer(context, move.uuid):
            client.move_allocations(context, move.uuid, uuid)

    def _finish_move(self, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        """Finish a migration. Nova's method begins with the server of the old size."""
        if instance.old_flavor is not None:
            set_flavor(instance, instance.old_flavor)
        save(instance, task_state=task_states.RESIZE_MIGRATED)
        set_status(move, "post-migrating")
        context = lost.context(instance)
        image = utils.get_image_from_system_metadata(instance.system_metadata)
        self._requests().finish_resize(context, instance, move, image, "[]", move.dest_compute,
                                       request_spec(context, instance))

    def _revert(self, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        context = lost.context(instance)
        if "finish_revert_resize" in lost.methods:
            if instance.host != move.source_compute:
                # Nova called it reverted already, and would free the devices that the server has here.
                set_status(move, "reverting")
            # Its allocations may be back already, so nova could not look up a port's part of them.
            self._requests().finish_revert_resize(context, instance, move, move.source_compute, None)
        elif "finish_revert_resize" not in lost.others:
            self._requests().revert_resize(context, instance, move, move.dest_compute, request_spec(context, instance))

    def _confirm(self, context: Any, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        if instance.vm_state == vm_states.RESIZED and instance.migration_context is not None:
            set_status(move, "confirming")
            self._requests().confirm_resize(lost.context(instance), instance, move, move.source_compute)
            return
        # All but nova's records was done.
        if instance.vm_state == vm_states.RESIZED:
            off = instance.power_state == power_state.SHUTDOWN
            instance.vm_state = vm_states.STOPPED if off else vm_states.ACTIVE
        set_status(move, "confirmed")
        self._placement().delete_allocation_for_instance(context, move.uuid, consumer_type="migration", force=True)
        instance.system_metadata.pop("old_vm_state", None)
        save(instance, old_flavor=None, new_flavor=None)

    def _recover_elsewhere(self, context: Any, host: str, uuid: str, move: objects.Migration) -> None:
        """Recover a server that moved away from this host, or was about to come."""
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return
        lost = lostrequests.of(context, uuid, host)
        if not lost.methods:
            return
        LOG.warning("nova-compute ended during %s of a server that is on %s: it is finished or undone",
                    ", ".join(sorted(lost.methods)), instance.host, instance=instance)
        if "rebuild_instance" in lost.methods and move.migration_type == "evacuation":
            self._undo_evacuation(context, host, instance, move, lost)
        elif "prep_resize" in lost.methods and instance.task_state == task_states.RESIZE_PREP:
            self._record_outcome(context, instance, lost, "the server keeps its old size and host")
            self._forget_move(context, instance, move)
        elif "resize_instance" in lost.methods and instance.task_state == task_states.RESIZE_MIGRATED \
                and "finish_resize" not in lost.others:
            self._finish_move(instance, move, lost)
        elif lost.methods & REVERTS and instance.task_state == task_states.RESIZE_REVERTING:
            self._revert(instance, move, lost)
        elif "confirm_resize" in lost.methods:
            self._confirm(context, instance, move, lost)

    def _undo_evacuation(self, context: Any, host: str, instance: objects.Instance, move: objects.Migration,
                         lost: Lost) -> None:
        if move.status in OVER:
            return
        self._lifecycle.remove(context, instance)
        if instance.migration_context is not None and instance.migration_context.migration_id == move.id:
            instance.drop_migration_context()
        for node in objects.ComputeNodeList.get_all_by_host(context, host):
            self._placement().remove_provider_tree_from_instance_allocation(context, instance.uuid, node.uuid)
        set_status(move, "failed")
        self._fail(context, instance, lost, "it is still on its old host; evacuate it again")

    # Others

    def _start_again(self, context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
        """Start a server that was stopped for an operation that is undone. A running guest may have been asked to shut
        down, and would do so later."""
        self._record_outcome(context, instance, lost, outcome)
        if instance.vm_state == vm_states.ACTIVE:
            self._power.reboot(context, instance, known.requested(context, instance), soft=True)
        save(instance, task_state=None)

    def _end_unshelving(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        """Finish an unshelving. Once the server runs nova deletes its image: then the container alone has the data."""
        if instance.progress == WHOLE and self._states.find(instance) is not None:
            LOG.warning("The server was unshelved already; if image %s is still there it can be deleted",
                        instance.system_metadata.get("shelved_image_id"), instance=instance)
            restore_unshelved(instance)
            compute_utils.remove_shelved_keys_from_system_metadata(instance)
            save(instance, vm_state=vm_states.ACTIVE, power_state=self._states.info(instance).state, task_state=None)
        else:
            self._undo_unshelving(context, instance, lost)

    def _undo_unshelving(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        self._lifecycle.remove(context, instance, known.requested(context, instance))
        self._placement().delete_allocation_for_instance(context, instance.uuid, force=True)
        self._record_outcome(context, instance, lost, "it is still shelved; unshelve it again")
        restore_unshelved(instance)
        instance.task_state = None
        self._leave_host(instance)

    def _recover_unplaced(self, context: Any, host: str, uuid: str) -> None:
        """Recover a server that was about to be unshelved here: until the claim nova places it nowhere.

        :param uuid: of a consumer in Placement, which may be something else
        """
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["metadata", "system_metadata",
                                                                                   "flavor", "info_cache"])
        except exception.InstanceNotFound:
            return
        if instance.host is None and instance.vm_state == vm_states.SHELVED_OFFLOADED \
                and instance.task_state in UNSHELVINGS:
            lost = lostrequests.of(context, uuid, host)
            if "unshelve_instance" in lost.methods:
                self._undo_unshelving(context, instance, lost)

    @staticmethod
    def _leave_host(instance: objects.Instance) -> None:
        save(instance, host=None, node=None, compute_id=None)

    def _sync_state(self, instance: objects.Instance, done: str) -> None:
        """Let nova know what the container does."""
        frozen = self._states.info(instance).state == power_state.PAUSED
        save(instance, task_state=None, **{"vm_state": done, "power_state": power_state.PAUSED} if frozen else {})

    def _fail(self, context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
        self._record_outcome(context, instance, lost, outcome)
        save(instance, vm_state=vm_states.ERROR, task_state=None)

    @staticmethod
    def _record_outcome(context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
        """Record the outcome as the server's fault and as the end of the action that was lost."""
        error = Killed(host=known.host(), outcome=outcome)
        LOG.warning("%s", error, instance=instance)
        compute_utils.add_instance_fault_from_exc(context, instance, error)
        for method in lost.methods:
            objects.InstanceActionEvent.event_finish_with_failure(
                lost.context(instance), instance.uuid, f"{lostrequests.PREFIX}{method}", exc_val=error,
                exc_tb=str(error), want_result=False)

    def _free_allocations(self, context: Any, host: str, mine: Mapping[str, objects.Instance]) -> None:
        """Delete what moves hold in Placement that nova has ended, and what servers hold here that are shelved."""
        try:
            nodes = objects.ComputeNodeList.get_all_by_host(context, host)
        except exception.ComputeHostNotFound:
            return  # its first start
        for node in nodes:
            info = self._placement().get_allocations_for_resource_provider(context, node.uuid)
            foreign = set(info.allocations) - set(mine)
            if not foreign:
                continue
            for uuid in foreign:
                with log_errors(uuid):
                    self._recover_unplaced(context, host, uuid)
            for move in objects.MigrationList.get_by_filters(context, {"uuid": list(foreign)}):
                # Nova calls a move reverted before the server is back on its old host.
                if move.status in OVER and not is_in_flight(context, move.instance_uuid):
                    LOG.warning("Move %s is over (%s), and held resources in Placement: they are freed", move.uuid,
                                move.status, instance_uuid=move.instance_uuid)
                    self._placement().delete_allocation_for_instance(context, move.uuid, consumer_type="migration",
                                                                     force=True)


@contextlib.contextmanager
def log_errors(uuid: str) -> Iterator[None]:
    """Log an error of the block, so that nova-compute serves the other servers.

    :param uuid: the server that the block is about
    """
    try:
        yield
    except (exception.NovaException, errors.ContainerHostError, keystone.ClientException, messaging.MessagingException,
            OSError):
        LOG.exception("What was interrupted could not be finished or undone, and is tried again at the next start of "
                      "nova-compute", instance_uuid=uuid)


def is_under_way(instance: objects.Instance, move: objects.Migration) -> bool:
    """Return whether it is this move that nova has not ended yet, and not one that was before."""
    context = instance.migration_context
    return context is not None and context.migration_id == move.id


def is_in_flight(context: Any, uuid: str) -> bool:
    """Return whether nova is doing something with the server; not if it is deleted."""
    try:
        return objects.Instance.get_by_uuid(context, uuid, expected_attrs=[]).task_state is not None
    except exception.InstanceNotFound:
        return False


def request_spec(context: Any, instance: objects.Instance) -> objects.RequestSpec | None:
    """Return the server's request spec, where nova's API database is reachable: only ports with a guaranteed bandwidth
    need it."""
    try:
        return objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except exception.NovaException as error:
        LOG.warning("The server's scheduling cannot be read: %s", error, instance=instance)
        return None


def resize_request_spec(context: Any, instance: objects.Instance) -> objects.RequestSpec | None:
    """Return the request spec after giving it the server's flavor, as nova's API does at a revert: an unshelving or an
    evacuation would schedule the size that the server did not get."""
    spec = request_spec(context, instance)
    if spec is not None and spec.flavor.flavorid != instance.flavor.flavorid:
        spec.flavor = instance.flavor
        spec.numa_topology = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
        spec.save()
    return spec


def save(instance: objects.Instance, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(instance, name, value)
    instance.save()


def set_status(move: objects.Migration, status: str) -> None:
    move.status = status
    move.save()


def restore_unshelved(instance: objects.Instance) -> None:
    """Set what nova replaces for the time of an unshelving."""
    if instance.image_ref == instance.system_metadata.get("shelved_image_id"):
        instance.image_ref = instance.system_metadata.get("image_base_image_ref") or instance.image_ref
    if instance.key_name and not instance.key_data and instance.keypairs:
        instance.key_data = instance.keypairs[0].public_key


def set_flavor(instance: objects.Instance, flavor: objects.Flavor) -> None:
    """Set the server's flavor as nova does: some of the flavor's values are the server's own columns."""
    instance.instance_type_id = flavor.id
    instance.memory_mb, instance.vcpus = flavor.memory_mb, flavor.vcpus
    instance.root_gb, instance.ephemeral_gb = flavor.root_gb, flavor.ephemeral_gb
    instance.flavor = flavor
