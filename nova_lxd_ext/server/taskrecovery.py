# SPDX-License-Identifier: Apache-2.0
"""Finish or undo interrupted requests that change a server in place: rescue, shelving, rebuild, power."""

from collections.abc import Callable, Mapping
from typing import Any

from nova import exception, objects
from nova.compute import instance_actions, power_state, task_states, vm_states
from nova.compute import utils as compute_utils
from oslo_log import log as logging

from containerhost.engines.contract import Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import instance_records, lostrequests
from nova_lxd_ext.server.lifecycle import WHOLE, Lifecycle
from nova_lxd_ext.server.lostrequests import Lost
from nova_lxd_ext.server.moverecovery import ATTRIBUTES
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.recoveryrecords import delete_allocation, fail, leave_host, record_outcome, save
from nova_lxd_ext.server.recoverysteps import (
    FROZEN,
    MOVES,
    NOTHING_DONE,
    REBUILDS,
    REVERTS,
    SHELVINGS,
    SNAPSHOTS,
    UNSHELVINGS,
)

LOG = logging.getLogger(__name__)

REBOOTS = task_states.soft_reboot_states + task_states.hard_reboot_states

SENT_AGAIN: Mapping[str, Callable[[Any, Any, objects.Instance], None]] = {
    task_states.UNRESCUING: lambda requests, context, instance: requests.unrescue_instance(context, instance),
    task_states.RESUMING: lambda requests, context, instance: requests.resume_instance(context, instance),
    task_states.SOFT_DELETING: lambda requests, context, instance: requests.soft_delete_instance(context, instance),
    task_states.RESTORING: lambda requests, context, instance: requests.restore_instance(context, instance),
    task_states.SHELVING_OFFLOADING: lambda requests, context, instance: requests.shelve_offload_instance(
        context, instance, clean_shutdown=False),
}


class TaskRecovery:
    """Finish, repeat or undo a server's task other than a move after nova-compute was killed.

    :param requests, placement: of :class:`nova_lxd_ext.server.recovery.Recovery`
    """

    def __init__(self, states: States, lifecycle: Lifecycle, power: Power, requests: Callable[[], Any],
                 placement: Callable[[], Any]) -> None:
        self._states = states
        self._lifecycle = lifecycle
        self._power = power
        self._requests = requests
        self._placement = placement

    def recover(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        state = instance.task_state
        if state in SNAPSHOTS and instance.vm_state == vm_states.ACTIVE:
            found = self._states.find(instance)
            if found is not None and found.status is Status.FROZEN:
                self._power.unfreeze(instance)  # it was frozen only for the snapshot
        if state in SENT_AGAIN:
            SENT_AGAIN[state](self._requests(), lost.context(instance), instance)
        elif state == task_states.REBOOT_STARTED:
            # Nova repeats a pending reboot. It considers a started one done if the guest runs, although that may have
            # been asked to shut down.
            save(instance, task_state=task_states.REBOOT_PENDING)
        elif state in FROZEN:
            self._sync_state(instance, FROZEN[state])
        elif state == task_states.UNPAUSING and self._is_off(instance):
            clear_task(context, instance, lost)  # the host restarted; nova handles a running or frozen server
        elif instance.vm_state == vm_states.SHELVED_OFFLOADED and state in UNSHELVINGS:
            self._end_unshelving(context, instance, lost)
        else:
            self._undo(context, instance, lost)

    def _is_off(self, instance: objects.Instance) -> bool:
        found = self._states.find(instance)
        return found is not None and found.status is Status.STOPPED

    def _undo(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        state = instance.task_state
        if state == task_states.RESCUING:
            self._start_again(context, instance, lost, "it is not rescued; it was started again from its own root")
        elif state in SHELVINGS:
            self._start_again(context, instance, lost, "it is not shelved, and was started again; its image may be "
                              "incomplete, delete that")
        elif state in REBUILDS:
            # In this task state nova may not have requested the deletion of the container, which is complete then.
            if state == task_states.REBUILDING and self._states.find(instance) is not None:
                fail(context, instance, lost, "its root disk is unchanged; rebuild it again, or reboot it hard")
                return
            self._lifecycle.remove(instance, instance_records.requested(context, instance))
            fail(context, instance, lost, "its root disk may be gone; rebuild it again")
        # Nova does not handle servers in ERROR.
        elif state in NOTHING_DONE or (instance.vm_state == vm_states.ERROR and state != task_states.DELETING):
            clear_task(context, instance, lost)

    def queue_reboot(self, context: Any, instance: objects.Instance) -> bool:
        """Queue the reboot that nova would repeat at its start, a hard one if the guest is not running."""
        state = instance.task_state
        if instance.vm_state == vm_states.ERROR or state not in REBOOTS:
            return False
        try:
            runs = self._states.power(instance).state == power_state.RUNNING
        except exception.InstanceNotFound:
            runs = False
        if runs and state not in (task_states.REBOOT_PENDING, task_states.REBOOT_PENDING_HARD):
            return False
        if not runs and state in task_states.soft_reboot_states:
            save(instance, task_state=task_states.REBOOT_PENDING_HARD)
        kind = "SOFT" if instance.task_state in task_states.soft_reboot_states else "HARD"
        lost = lostrequests.of(context, instance.uuid, instance.host)
        self._requests().reboot_instance(lost.context(instance), instance, None, kind)
        return True

    def await_request(self, context: Any, host: str, instance: objects.Instance) -> str | None:
        """Return the id of a request that may be waiting in the queue; None if there is none.

        At its start nova sets every server with a rebuild to ERROR, unless it already is, and clears the task state.
        Without the task state it refuses the request, and writes the task state again permanently: so a rebuild must
        not be ended.
        """
        if instance.task_state is None:
            return None
        lost = lostrequests.of(context, instance.uuid, host)
        if is_pending(instance, lost):
            save(instance, vm_state=vm_states.ERROR)
        elif not may_wait(instance, lost):
            return None
        return lost.action.request_id if lost.action else None

    def end_unbegun(self, context: Any, host: str, uuid: str, request: str) -> None:
        """End a request that was lost between the queue and its first event, or a refused rebuild."""
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return
        lost = lostrequests.of(context, uuid, host)
        if lost.action is None or lost.action.request_id != request:
            return
        if is_pending(instance, lost):
            self._undo(context, instance, lost)
        elif may_wait(instance, lost):
            if is_unplaced(instance):
                self._undo_unshelving(context, instance, lost)
            else:
                clear_task(context, instance, lost)

    def _start_again(self, context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
        """Start a server that was stopped for an undone operation.

        A running guest may have received a shutdown request, and would follow it later."""
        if instance.vm_state == vm_states.ACTIVE:
            self._power.reboot(instance, instance_records.requested(context, instance), soft=True)
        save(instance, task_state=None)
        record_outcome(context, instance, lost, outcome)

    def _sync_state(self, instance: objects.Instance, done: str) -> None:
        """Update nova's record of the power state."""
        frozen = self._states.info(instance).state == power_state.PAUSED
        save(instance, task_state=None, **{"vm_state": done, "power_state": power_state.PAUSED} if frozen else {})

    def _end_unshelving(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        """Finish an unshelving. Once the server runs nova deletes its image: then only the container has the data.

        The progress may be that of the first boot, and the container the copy of a move."""
        state = self._states.find(instance)
        if instance.progress == WHOLE and state is not None and labels.INCOMING not in state.labels:
            LOG.warning("The server was already unshelved; if image %s still exists, it can be deleted",
                        instance.system_metadata.get("shelved_image_id"), instance=instance)
            restore_unshelved(instance)
            compute_utils.remove_shelved_keys_from_system_metadata(instance)
            save(instance, vm_state=vm_states.ACTIVE, power_state=self._states.info(instance).state, task_state=None)
        else:
            self._undo_unshelving(context, instance, lost)

    def _undo_unshelving(self, context: Any, instance: objects.Instance, lost: Lost) -> None:
        self._lifecycle.remove(instance, instance_records.requested(context, instance))
        delete_allocation(self._placement(), context, instance.uuid, "instance")
        restore_unshelved(instance)
        instance.task_state = None
        leave_host(instance)
        record_outcome(context, instance, lost, "it is still shelved; unshelve it again")

    @staticmethod
    def unplaced(context: Any) -> list[objects.Instance]:
        """Return the servers about to be unshelved on any host: before the claim nova places them nowhere."""
        found = objects.InstanceList.get_by_filters(
            context, {"vm_state": vm_states.SHELVED_OFFLOADED, "task_state": sorted(UNSHELVINGS), "deleted": False},
            expected_attrs=["metadata", "system_metadata", "flavor", "info_cache"])
        return [instance for instance in found if is_unplaced(instance)]

    def recover_unplaced(self, context: Any, host: str, instance: objects.Instance) -> None:
        lost = lostrequests.of(context, instance.uuid, host)
        if "unshelve_instance" in lost.methods:
            self._undo_unshelving(context, instance, lost)
        elif is_failed(instance, lost):
            save(instance, task_state=None)


def is_failed(instance: objects.Instance, lost: Lost) -> bool:
    """Return whether a request has failed except for its task state, which nova clears after the event's end."""
    if instance.task_state in (None, task_states.DELETING) or lost.methods or is_pending(instance, lost):
        return False
    # A revert follows the end of the resize.
    failed = lost.failed & REVERTS if instance.task_state == task_states.RESIZE_REVERTING else lost.failed
    # Nova fails an evacuation that begins after the old host's return, without clearing its task state.
    late = (instance.vm_state == vm_states.ERROR and instance.task_state == task_states.REBUILDING and bool(lost.ended)
            and lost.action is not None and lost.action.action != instance_actions.EVACUATE)
    return bool(failed) or late


def is_unplaced(instance: objects.Instance) -> bool:
    """Return whether nova is unshelving the server, and has not claimed anything for it yet."""
    return (instance.host is None and instance.vm_state == vm_states.SHELVED_OFFLOADED
            and instance.task_state in UNSHELVINGS)


def may_wait(instance: objects.Instance, lost: Lost) -> bool:
    """Return whether nova has a task state for a request that no host has begun, except moves and deletions.

    MoveRecovery handles moves, and nova repeats a deletion itself. When the old host returns, nova also ends an
    evacuation, but not that of a server in ERROR."""
    return (instance.task_state is not None and instance.task_state != task_states.DELETING
            and instance.task_state not in MOVES and instance.vm_state != vm_states.BUILDING and lost.is_unbegun
            and (lost.action is None or lost.action.action != instance_actions.EVACUATE
                 or instance.vm_state == vm_states.ERROR))


def clear_task(context: Any, instance: objects.Instance, lost: Lost) -> None:
    save(instance, task_state=None)
    record_outcome(context, instance, lost, "ask for it again")


def is_pending(instance: objects.Instance, lost: Lost) -> bool:
    """Return whether nova waits for a rebuild that is not in progress. An evacuation has the same task state."""
    return (instance.task_state == task_states.REBUILDING and not lost.methods and lost.action is not None
            and lost.action.action == instance_actions.REBUILD)


def restore_unshelved(instance: objects.Instance) -> None:
    """Restore the fields that nova replaces during an unshelving."""
    if instance.image_ref == instance.system_metadata.get("shelved_image_id"):
        instance.image_ref = instance.system_metadata.get("image_base_image_ref") or instance.image_ref
    if instance.key_name and not instance.key_data and instance.keypairs:
        instance.key_data = instance.keypairs[0].public_key
