# SPDX-License-Identifier: Apache-2.0
"""Finish or undo interrupted live migrations of a killed nova-compute: nova itself only clears the task state.

The source decides by nova's record of the migration: a server that had not left stays, one that had left belongs to
its destination. So the volumes' attachments, the ports' bindings, claims and allocations are consistent.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import recovery
from nova_lxd_ext.server.deferred import Deferred
from nova_lxd_ext.server.incoming import OVER
from nova_lxd_ext.server.livemigration import LEFT, LiveMigrations, nothing_shared
from nova_lxd_ext.server.moverecovery import ATTRIBUTES, COMPLETED, FAILED, free_destination
from nova_lxd_ext.server.recoveryrecords import (
    delete_allocation,
    log_errors,
    return_allocation,
    save,
    set_status,
    set_zone,
)

LOG = logging.getLogger(__name__)

ACCEPTED = "accepted"  # the request may be in this host's queue


class LiveRecovery:
    """Recover, at the driver's start, servers that were leaving this host.

    :param manager: returns nova's ComputeManager, whose own steps end a migration
    """

    def __init__(self, manager: Callable[[], Any], states: States, moves: LiveMigrations, deferred: Deferred
                 ) -> None:
        self._manager = manager
        self._states = states
        self._moves = moves
        self._deferred = deferred

    def recover(self, host: str, instances: Iterable[objects.Instance]) -> frozenset[str]:
        """Finish or undo the live migrations from this host, each in a thread once nova-compute has started.

        Not earlier, because ending a migration sends requests to other hosts, and needs nova's lock of its
        resources. Remains of ended migrations are removed immediately.

        A refused or lost evacuation clears the task state, and so does nova 33: it is set again if the server has
        not been started here since.

        :returns: the servers that nova must not process before
        """
        context = nova_context.get_admin_context(read_deleted="yes")
        moves = unfinished(context, host)
        self._purge(context, host, moves)
        pending = {move.instance_uuid for move in moves if move.status not in OVER}
        leaving = set()
        for instance in instances:
            if instance.task_state != task_states.MIGRATING and not (
                    instance.uuid in pending and instance.task_state is None
                    and instance.vm_state in (vm_states.ACTIVE, vm_states.ERROR)):
                continue
            move = last_from(context, host, instance.uuid)
            if move is None or move.status == COMPLETED:
                continue
            if instance.task_state is None:
                if move.status in OVER or not self._is_outgoing(instance, move):
                    continue
                save(instance, task_state=task_states.MIGRATING)
            leaving.add(instance.uuid)
            delay = recovery.QUEUE_TIMEOUT if move.status == ACCEPTED else 0.0
            self._deferred.call(delay, instance.uuid, self._end, host, instance.uuid, move.status)
        return frozenset(leaving)

    def _is_outgoing(self, instance: objects.Instance, move: objects.Migration) -> bool:
        """Return whether the server has not been started here since its migration began.

        Once it has left, it is on its destination, even if its container is still here."""
        state = self._states.find(instance)
        if state is None:
            return move.status == LEFT
        return labels.OUTGOING in state.labels and (state.status is Status.STOPPED or move.status != LEFT)

    def _end(self, host: str, uuid: str, status: str) -> None:
        """End a migration that has made no progress since."""
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        move = last_from(context, host, uuid)
        if status == LEFT and move is not None and has_left(instance, host):  # the destination was not restarted
            self._complete(context, move)
            self._moves.discard(instance)
            return
        if move is None or instance.host != host or instance.task_state not in (task_states.MIGRATING, None) \
                or (status == ACCEPTED and move.status != ACCEPTED):
            return
        if instance.task_state is None:  # nova 33 clears it
            save(instance, task_state=task_states.MIGRATING)
        # If it runs here, it was started again before the result of saving its record was known.
        (self._finish if status == LEFT and self._moves.is_off(instance) else self._undo)(context, instance, move)

    def _finish(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        LOG.warning("The server had left for %s: its live migration is finished", move.dest_compute, instance=instance)
        set_zone(context, instance, move.dest_compute)
        self._manager()._post_live_migration_update_host(
            context, instance, move.dest_compute, False, nothing_shared(migration=move),
            source_bdms=self._volumes_before(context, instance, connected=False))
        self._moves.discard(instance)

    def _undo(self, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
        LOG.warning("The server had not left for %s: its live migration is undone", move.dest_compute,
                    instance=instance)
        before = self._volumes_before(context, instance, connected=True, noted=move.status != ACCEPTED)
        try:
            if instance.vm_state != vm_states.STOPPED:  # stopped by its user after nova 33 had cleared the task state
                self._moves.start_again(instance, before, move)
        except (exception.NovaException, errors.ContainerHostError):
            LOG.exception("The server does not start again: hard-reboot it once the cause is fixed", instance=instance)
        if move.dest_compute is None:  # not yet sent by the conductor
            return_allocation(self._manager().reportclient, context, instance, move)
            set_status(move, FAILED)
            save(instance, task_state=None)
            return
        self._manager()._rollback_live_migration(context, instance, move.dest_compute, nothing_shared(migration=move),
                                                 source_bdms=before)

    def _volumes_before(self, context: Any, instance: objects.Instance, connected: bool, noted: bool = True
                        ) -> objects.BlockDeviceMappingList:
        """Return the server's volumes as attached here; nova's records may have the destination's.

        :param connected: returns a volume with Cinder's connection
        :param noted: whether this migration has recorded them; otherwise the container's label may be of an earlier,
            failed one
        """
        volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
        state = self._states.find(instance) if noted else None
        before = json.loads(state.labels.get(labels.OUTGOING, "{}")) if state is not None else {}
        for volume in volumes:
            attachment = before.get(volume.volume_id) if volume.is_volume else None
            if attachment and attachment != volume.attachment_id:
                volume.attachment_id = attachment
                if connected:
                    found = self._manager().volume_api.attachment_get(context, attachment)["connection_info"]
                    volume.connection_info = json.dumps({"serial": volume.volume_id, **found})
        return volumes

    def _purge(self, context: Any, host: str, moves: Iterable[objects.Migration]) -> None:
        """Remove containers of servers that run on their destination, or were deleted.

        Both nova's record of the server and that of its last move must confirm it, and the container must be
        stopped. A migration of a server that was evacuated meanwhile, or started here since, has failed.

        :param moves: that have not ended
        """
        for move in moves:
            with log_errors(move.instance_uuid):
                self._end_overtaken(context, host, move)
        for state in self._states.all():
            uuid = labels.uuid(state.labels)
            if uuid and labels.OUTGOING in state.labels and state.status is Status.STOPPED:
                with log_errors(uuid):
                    self._discard(context, host, uuid)

    def _end_overtaken(self, context: Any, host: str, move: objects.Migration) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, move.instance_uuid, expected_attrs=[])
        except exception.InstanceNotFound:
            return
        left = move.status == LEFT and has_left(instance, host)
        failed = instance.deleted or (move.status != LEFT and instance.host != host) or (
            instance.host == host and instance.task_state is None and not self._is_outgoing(instance, move))
        if not left and not failed:
            return
        if not instance.deleted:
            free_destination(self._manager().reportclient, context, instance, move)
        if left:
            self._complete(context, move)
        else:
            set_status(move, FAILED)

    def _complete(self, context: Any, move: objects.Migration) -> None:
        """Complete the migration of a server that runs on its destination; after an error the next start repeats it."""
        delete_allocation(self._manager().reportclient, context, move.uuid)
        set_status(move, COMPLETED)

    def _discard(self, context: Any, host: str, uuid: str) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=[])
        except exception.InstanceNotFound:
            return  # not sufficient evidence: it is reported as an orphan
        move = last_from(context, host, uuid)
        left = move is not None and move.status == COMPLETED and has_left(instance, host)
        if not instance.deleted and not left:
            return
        LOG.warning("The server has left this host: its container here is removed", instance_uuid=uuid)
        self._moves.discard(instance)


def unfinished(context: Any, host: str) -> list[objects.Migration]:
    """Return the live migrations from ``host`` that have not ended in nova's records."""
    return [move for move in objects.MigrationList.get_by_filters(context, {
        "source_compute": host, "migration_type": recovery.LIVE}) if move.status not in OVER]


def last_from(context: Any, host: str, uuid: str) -> objects.Migration | None:
    """Return the server's last move from ``host``, except failed evacuations, if it is a live migration."""
    moves = [move for move in objects.MigrationList.get_by_filters(context, {"instance_uuid": uuid})
             if move.source_compute == host and not recovery.is_failed_evacuation(move, host)]
    last = max(moves, key=lambda move: move.id, default=None)
    return last if last is not None and last.migration_type == recovery.LIVE else None


def has_left(instance: objects.Instance, host: str) -> bool:
    """Return whether nova places the server on another host, or has shelved it from there, and is not migrating it."""
    if instance.host is None:
        return instance.vm_state == vm_states.SHELVED_OFFLOADED and instance.task_state is None
    return instance.host != host and instance.task_state != task_states.MIGRATING
