# SPDX-License-Identifier: Apache-2.0
"""Finish or undo live migrations that a killed nova-compute left: nova itself clears the task state alone.

The source decides, by nova's record of the migration: what had not left stays, what had left is given to its
destination. So the volumes' attachments, the ports' bindings, claims and allocations are those of one host.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from oslo_log import log as logging

from containerhost.engines.contract import ContainerState, Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import recovery
from nova_lxd_ext.server.incoming import OVER
from nova_lxd_ext.server.livemigration import LEFT, LiveMigrations, nothing_shared
from nova_lxd_ext.server.recoveryrecords import log_errors, save, set_status

LOG = logging.getLogger(__name__)

ACCEPTED = "accepted"  # the request may wait in this host's queue
ATTRIBUTES = ["metadata", "system_metadata", "flavor", "migration_context", "info_cache"]


class LiveRecovery:
    """Recover, at the driver's start, servers that were leaving this host.

    :param manager: returns nova's ComputeManager, whose own steps end a migration
    :param once_started: does something when nova-compute has started (:class:`nova_lxd_ext.server.recovery.Recovery`)
    """

    def __init__(self, manager: Callable[[], Any], states: States, moves: LiveMigrations,
                 once_started: Callable[[str, Callable[[], None]], None]) -> None:
        self._manager = manager
        self._states = states
        self._moves = moves
        self._once_started = once_started
        self._later: threading.Timer | None = None

    def recover(self, context: Any, host: str, instances: Iterable[objects.Instance]) -> frozenset[str]:
        """Finish or undo the live migrations from this host, once nova-compute has started.

        :returns: the servers that nova must not look at before
        """
        found = {instance.uuid: move for instance in instances if instance.task_state == task_states.MIGRATING
                 and (move := last_from(context, host, instance.uuid)) is not None and move.status not in OVER}
        for uuid, move in found.items():
            if move.status != ACCEPTED:
                self._once_started(uuid, functools.partial(self._end, uuid, move))
        self.stop()
        if any(move.status == ACCEPTED for move in found.values()):
            self._later = threading.Timer(recovery.QUEUE_TIMEOUT, self._end_unbegun, (host, tuple(found)))
            self._later.daemon = True
            self._later.start()
        return frozenset(found)

    def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _end_unbegun(self, host: str, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            with log_errors(uuid):
                move = last_from(nova_context.get_admin_context(), host, uuid)
                if move is not None and move.status == ACCEPTED:
                    self._end(uuid, move)

    def _end(self, uuid: str, move: objects.Migration) -> None:
        context, manager = nova_context.get_admin_context(), self._manager()
        instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        if instance.task_state is None:  # nova 33 has looked at it
            save(instance, task_state=task_states.MIGRATING)
        data, before = nothing_shared(migration=move), self._volumes_before(context, instance)
        if move.status == LEFT:
            LOG.warning("The server had left for %s: its live migration is finished", move.dest_compute,
                        instance=instance)
            manager._post_live_migration_update_host(context, instance, move.dest_compute, False, data,
                                                     source_bdms=before)
            self._moves.discard(instance)
            return
        LOG.warning("The server had not left for %s: its live migration is undone", move.dest_compute,
                    instance=instance)
        self._moves.start_again(instance, before, move)
        if move.dest_compute is None:  # the conductor has not sent it
            manager._revert_allocation(context, instance, move)
            set_status(move, "failed")
            save(instance, task_state=None)
            return
        manager._rollback_live_migration(context, instance, move.dest_compute, data, source_bdms=before)

    def _volumes_before(self, context: Any, instance: objects.Instance) -> objects.BlockDeviceMappingList:
        """Return the server's volumes as they are attached here; nova's records may have the destination's."""
        volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
        state = self._states.find(instance)
        noted = json.loads(state.labels.get(labels.OUTGOING, "{}")) if state is not None else {}
        for volume in volumes:
            attachment = noted.get(volume.volume_id) if volume.is_volume else None
            if attachment and attachment != volume.attachment_id:
                found = self._manager().volume_api.attachment_get(context, attachment)["connection_info"]
                volume.attachment_id, volume.connection_info = attachment, json.dumps(
                    {"serial": volume.volume_id, **found})
        return volumes

    def purge(self, host: str) -> None:
        """Remove, at the driver's start, containers whose servers have left and run on their destination, or are gone.

        Both nova's record of the server and that of its last move must say so, and the container must be off."""
        context = nova_context.get_admin_context(read_deleted="yes")
        for state in self._states.all():
            uuid = labels.uuid(state.labels)
            if uuid and labels.OUTGOING in state.labels and state.status is Status.STOPPED:
                with log_errors(uuid):
                    self._purge(context, host, state, uuid)

    def _purge(self, context: Any, host: str, state: ContainerState, uuid: str) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=[])
        except exception.InstanceNotFound:
            return  # no evidence: it is reported as an orphan
        move = last_from(context, host, uuid)
        left = (move is not None and move.status in (LEFT, "completed") and instance.host == move.dest_compute
                and instance.task_state != task_states.MIGRATING)
        if not instance.deleted and not left:
            return
        if move is not None and move.status == LEFT:
            set_status(move, "completed")
        LOG.warning("The server has left this host: its container here is removed", instance_uuid=uuid)
        self._moves.discard(instance)


def last_from(context: Any, host: str, uuid: str) -> objects.Migration | None:
    """Return the server's last move if it is a live migration from ``host``."""
    moves = objects.MigrationList.get_by_filters(context, {"instance_uuid": uuid})
    last = max(moves, key=lambda move: move.id, default=None)
    return last if last is not None and last.migration_type == recovery.LIVE and last.source_compute == host else None
