# SPDX-License-Identifier: Apache-2.0
"""Finish or undo interrupted resizes, migrations and evacuations of a killed nova-compute."""

from collections.abc import Callable
from typing import Any

from nova import exception, objects, utils
from nova.compute import power_state, task_states, vm_states
from oslo_log import log as logging

from containerhost.engines.contract import Status
from nova_lxd_ext.hardware.placedclaims import UNCLAIMED
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import lostrequests
from nova_lxd_ext.server.deferred import Deferred
from nova_lxd_ext.server.incoming import OVER, is_at_home, is_moving
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.lostrequests import Lost
from nova_lxd_ext.server.recoveryrecords import (
    delete_allocation,
    fail,
    has_resources,
    is_under_way,
    record_outcome,
    request_spec,
    resize_request_spec,
    return_allocation,
    save,
    set_flavor,
    set_status,
)
from nova_lxd_ext.server.recoverysteps import REBUILDS, REVERTS, SECOND_REQUESTS, Step

LOG = logging.getLogger(__name__)

# Nova's migration status
CLAIMED = ("migrating", "post-migrating", "finished")  # while the server has a migration context
CONFIRMING, PRE_MIGRATING, COMPLETED, FAILED = "confirming", "pre-migrating", "completed", "failed"
ATTRIBUTES = ["metadata", "system_metadata", "flavor", "migration_context", "info_cache"]


class MoveRecovery:
    """Finish, repeat or undo a server's resize, migration or evacuation after nova-compute was killed.

    :param states: of this host's containers
    :param requests, placement, deferred: of :class:`nova_lxd_ext.server.recovery.Recovery`
    """

    def __init__(self, states: States, lifecycle: Lifecycle, requests: Callable[[], Any], placement: Callable[[], Any],
                 deferred: Deferred) -> None:
        self._states = states
        self._lifecycle = lifecycle
        self._requests = requests
        self._placement = placement
        self._deferred = deferred

    def recover(self, context: Any, host: str, step: Step, instance: objects.Instance, move: objects.Migration,
                lost: Lost) -> None:
        match step:
            case Step.FORGET_MOVE:
                where = "" if is_at_home(move) else " and host"
                self._forget(context, instance, move)
                record_outcome(context, instance, lost, f"the server keeps its old size{where}")
            case Step.FINISH_MOVE | Step.REVERT_MOVE if is_half_done(instance, move, lost):
                LOG.warning("The second request of move %s may be in a queue", move.uuid, instance=instance)
            case Step.UNDO_MOVE:
                self._undo(context, instance, move, lost)
            case Step.FINISH_MOVE:
                self._finish(instance, move, lost)
            case Step.REVERT_MOVE:
                self._revert(instance, move, lost)
            case Step.CONFIRM_MOVE:
                self._confirm(context, instance, move, lost)
            case Step.FINISH_EVACUATION | Step.UNDO_EVACUATION:
                self._recover_evacuation(context, host, step, instance, move, lost)

    def unbegun(self, context: Any, host: str, uuid: str, move: objects.Migration
                ) -> tuple[objects.Instance, Lost] | None:
        """Return the server whose move waits for a request on this host that has not begun; None if there is none."""
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return None
        lost = lost_by(context, instance, host)
        if move.migration_type == "evacuation":
            waits = (instance.host != host and instance.task_state == task_states.REBUILDING and lost.is_unbegun
                     and move.dest_compute in (None, host))
            # Nova sets the destination when it claims resources there, unless the user chose it.
            comes = waits and (move.dest_compute == host or has_resources(self._placement(), context, host, uuid))
            return (instance, lost) if comes else None
        if not is_under_way(instance, move):
            return None
        second = SECOND_REQUESTS.get(instance.task_state)
        waits = (second is not None and getattr(move, second.host) == host and second.first in lost.ended
                 and second.method not in lost.methods | lost.others)
        confirms = move.status == CONFIRMING and instance.task_state is None and move.source_compute == host
        reverts = (instance.task_state == task_states.RESIZE_REVERTING and move.dest_compute == host
                   and lost.action is not None and not begun_reverts(lost))
        halved = is_half_done(instance, move, lost)
        # Nova's start has cleared the task state, and fails a second request that is still in the queue.
        prepared = (move.status == PRE_MIGRATING and instance.task_state in (None, task_states.RESIZE_PREP)
                    and move.source_compute == host and "prep_resize" in lost.ended
                    and "resize_instance" not in lost.methods | lost.others)
        return (instance, lost) if waits or prepared or reverts or halved or (lost.is_unbegun and confirms) else None

    def send_again(self, context: Any, host: str, instance: objects.Instance, lost: Lost, move: objects.Migration
                   ) -> None:
        """Repeat a lost request; end a move that was only prepared."""
        if move.migration_type == "evacuation":
            self.recover(context, host, Step.UNDO_EVACUATION, instance, move, lost)
            return
        if move.status == PRE_MIGRATING:
            self.recover(context, host, Step.FORGET_MOVE, instance, move, lost)
            return
        LOG.warning("A request was lost (task state %s): it is sent again", instance.task_state, instance=instance)
        if instance.task_state == task_states.RESIZE_MIGRATED:
            self._finish(instance, move, lost)
        elif instance.task_state is None:
            self._confirm(context, instance, move, lost)
        elif not begun_reverts(lost) or is_half_done(instance, move, lost):
            self._repeat_revert(instance, move, lost)
        else:
            self._requests().finish_revert_resize(lost.context(instance), instance, move, move.source_compute,
                                                  request_spec(lost.context(instance), instance))

    def _undo(self, context: Any, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        """Request a revert of the move like a user: both hosts release the claims of the new size.

        A revert from another host disconnects the server's volumes: if the server was not stopped, the migration is
        discarded instead.
        """
        runs = not is_at_home(move) and self._runs(instance)
        if instance.migration_context is None or (instance.task_state == task_states.RESIZE_PREP
                                                  and (runs or is_at_home(move))):
            self._forget(context, instance, move)
        elif runs:
            # Nova's start, which follows, lets the driver end the transfer and then clears the task state.
            self._drop(context, instance, move)
            save(instance, new_flavor=None)
        else:
            save(instance, old_flavor=instance.flavor, task_state=task_states.RESIZE_REVERTING)
            set_status(move, "reverting")
            self._requests().revert_resize(lost.context(instance), instance, move, move.dest_compute,
                                           resize_request_spec(context, instance))
        record_outcome(context, instance, lost, "the server keeps its old size and host")

    def _runs(self, instance: objects.Instance) -> bool:
        state = self._states.find(instance)
        return state is not None and state.status in (Status.RUNNING, Status.FROZEN)

    def _forget(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        """Discard a migration that has not changed the server yet."""
        self._drop(context, instance, move)
        instance.drop_migration_context()
        save(instance, new_flavor=None, task_state=None)

    def _drop(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        resize_request_spec(context, instance)
        return_allocation(self._placement(), context, instance, move)
        set_status(move, FAILED)

    def drop_superseded(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        """Discard a migration whose server has another task since, which is left alone."""
        LOG.warning("Move %s was lost while this host prepared it, and the server has had another task since: the "
                    "move is discarded", move.uuid, instance=instance)
        if instance.new_flavor is not None:
            save(instance, new_flavor=None)
        return_allocation(self._placement(), context, instance, move)
        if is_under_way(instance, move):
            instance.drop_migration_context()
        set_status(move, FAILED)

    def end_other(self, context: Any, host: str, move: objects.Migration) -> None:
        """End a migration that this host was claiming, or had claimed, for a server that is in another one."""
        try:
            instance = objects.Instance.get_by_uuid(context, move.instance_uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return
        if move.status in CLAIMED:
            if not is_under_way(instance, move):
                LOG.warning("Move %s (%s) was overtaken by another one: it is discarded", move.uuid, move.status,
                            instance=instance)
                self._drop_overtaken(context, instance, move)
        elif prepares(move, host):
            set_status(move, FAILED)
        elif move.source_compute == host and instance.host not in (None, host):
            LOG.warning("Move %s was lost before a host prepared it, and the server was evacuated since: it is "
                        "discarded",
                        move.uuid, instance=instance)
            self._drop_overtaken(context, instance, move)
        elif (move.dest_compute is None
              and "prep_resize" in (lost := lostrequests.of(context, instance.uuid, host)).methods):
            set_status(move, FAILED)
            record_outcome(context, instance, lost, "another move of the server was in progress, which continues")

    def _drop_overtaken(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        return_allocation(self._placement(), context, instance, move)
        free_destination(self._placement(), context, instance, move)
        set_status(move, FAILED)

    def _finish(self, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        """Finish a migration, with the server at the old size as nova's method expects."""
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
        if "finish_revert_resize" in lost.methods and instance.old_flavor is None:
            # Nova clears old_flavor when the request fails, before it clears the task state.
            fail(context, instance, lost, "reverting it had failed; reboot it hard")
        elif "finish_revert_resize" in lost.methods:
            if instance.host != move.source_compute:
                # Nova has set the status to reverted, and would free the server's devices on this host.
                set_status(move, "reverting")
            # Its allocations may have been restored, so nova could not look up those of its ports.
            self._requests().finish_revert_resize(context, instance, move, move.source_compute, None)
        elif not REVERTS & lost.others:  # nova would disconnect the volumes of a server that has been restored
            self._repeat_revert(instance, move, lost)

    def _repeat_revert(self, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        context = lost.context(instance)
        forget_freed(instance)
        self._requests().revert_resize(context, instance, move, move.dest_compute, request_spec(context, instance))

    def _confirm(self, context: Any, instance: objects.Instance, move: objects.Migration, lost: Lost) -> None:
        if instance.vm_state == vm_states.RESIZED and instance.migration_context is not None:
            set_status(move, "confirming")
            forget_freed(instance)
            # Nova refuses a second confirmation, which the task state does not show.
            self._deferred.call(0.0, instance.uuid, self._requests().confirm_resize, lost.context(instance), instance,
                                move, move.source_compute)
            return
        # Only nova's records are not updated.
        delete_allocation(self._placement(), context, move.uuid)
        if instance.vm_state == vm_states.RESIZED:
            off = instance.power_state == power_state.SHUTDOWN
            instance.vm_state = vm_states.STOPPED if off else vm_states.ACTIVE
        set_status(move, "confirmed")
        instance.system_metadata.pop("old_vm_state", None)
        save(instance, old_flavor=None, new_flavor=None)

    def _recover_evacuation(self, context: Any, host: str, step: Step, instance: objects.Instance,
                            move: objects.Migration, lost: Lost) -> None:
        """Finish or undo an evacuation to this host of a server that nova may still place on the old one."""
        # At its start the old host sets the status of every evacuation to completed, and removes its copy of the
        # server.
        removed = move.status == COMPLETED and instance.host == move.source_compute
        # Nova clears the task state of an evacuation that fails at the end.
        fails = move.status == FAILED and instance.host == move.source_compute and instance.task_state in REBUILDS
        if move.status in OVER and not removed and not fails:
            free_destination(self._placement(), context, instance, move)
            return
        nodes = objects.ComputeNodeList.get_all_by_host(context, host)
        if step is Step.FINISH_EVACUATION:
            instance.apply_migration_context()
            save(instance, host=host, node=nodes[0].hypervisor_hostname, compute_id=nodes[0].id)
            instance.drop_migration_context()
            set_status(move, "done")
            return
        self._lifecycle.remove(instance)
        if is_under_way(instance, move):
            instance.drop_migration_context()
        for node in nodes:
            self._placement().remove_provider_tree_from_instance_allocation(context, instance.uuid, node.uuid)
        set_status(move, FAILED)
        fail(context, instance, lost, "its old host has removed its root disk; rebuild it" if removed
             else "it is still on its old host; evacuate it again")


def lost_by(context: Any, instance: objects.Instance, host: str) -> Lost:
    """Return the requests lost on ``host`` that match the server's task state."""
    sent = instance.task_state in (task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)
    return lostrequests.of(context, instance.uuid, host, "resize_instance" if sent else None)


def prepares(move: objects.Migration, host: str) -> bool:
    """Return whether ``host`` had claimed the move's new size, and the server's host has not begun to send it."""
    return move.status in UNCLAIMED and move.dest_compute == host


def free_destination(placement: Any, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
    """Free the allocations on the new host of a move that has ended, or ends now.

    An evacuation adds them to the server's allocations. Does nothing while nova moves the server."""
    if (move.dest_compute and instance.host not in (None, move.dest_compute) and instance.task_state is None
            and not is_moving(context, instance.uuid, besides=move.id)
            and has_resources(placement, context, move.dest_compute, instance.uuid)):
        for node in objects.ComputeNodeList.get_all_by_host(context, move.dest_compute):
            placement.remove_provider_tree_from_instance_allocation(context, instance.uuid, node.uuid)


def begun_reverts(lost: Lost) -> frozenset[str]:
    """Return the methods of a revert that any host has begun, for the user or to undo a resize."""
    return REVERTS & (lost.methods | lost.others)


def is_half_done(instance: objects.Instance, move: objects.Migration, lost: Lost) -> bool:
    """Return whether this host may have sent the second request of a move, which has not begun, before a kill.

    Sending it is the last step of the first one. A second delivery would set the server to ERROR; repeating the
    first request of a revert, which has just marked the move reverted, would stop a restored server."""
    second = SECOND_REQUESTS.get(instance.task_state)
    return (second is not None and second.first in lost.methods and second.method not in lost.methods | lost.others
            and (instance.task_state == task_states.RESIZE_MIGRATED or move.status == "reverted"))


def forget_freed(instance: objects.Instance) -> None:
    """Remove devices that nova has freed from the server's migration context.

    Nova frees them before it saves the context, and fails to free one twice.
    """
    moving = instance.migration_context
    names = [name for name in ("old_pci_devices", "new_pci_devices")
             if moving.obj_attr_is_set(name) and getattr(moving, name)]
    if names:
        held = {(device.compute_node_id, device.address) for device in instance.pci_devices}
        for name in names:
            kept = [device for device in getattr(moving, name) if (device.compute_node_id, device.address) in held]
            setattr(moving, name, objects.PciDeviceList(objects=kept))
