# SPDX-License-Identifier: Apache-2.0
"""Finish or undo the tasks of servers that a killed nova-compute interrupted.

Nova itself does so only for boots, reboots, power actions and deletions; every other server would stay in its task
state, with the allocations of both sizes.

A request that this host had begun is sent again if all its steps can be repeated, and undone otherwise: for example,
a tenant's image is readable only with the tenant's token, which is lost. Such requests wait in this host's own queue
until nova-compute takes requests. The second request of a resize or revert may already be in the queue, or
nova-compute was killed between the queue and its first event: it is sent again if it has not begun after a while.
Any other request that has not begun may wait as long, and is ended then.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import instance_actions, rpcapi, vm_states
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_lxd_ext.hardware.placedclaims import UNCLAIMED
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import recoverysteps
from nova_lxd_ext.server.deferred import Deferred
from nova_lxd_ext.server.incoming import OVER
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.lostrequests import Lost
from nova_lxd_ext.server.moverecovery import (
    ATTRIBUTES,
    CLAIMED,
    COMPLETED,
    CONFIRMING,
    FAILED,
    PRE_MIGRATING,
    MoveRecovery,
    lost_by,
    prepares,
)
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.recoveryrecords import (
    delete_allocation,
    has_resources,
    is_deleted,
    is_in_flight,
    is_under_way,
    leave_host,
    log_errors,
    move_allocation,
    save,
    set_status,
)
from nova_lxd_ext.server.recoverysteps import SECOND_REQUESTS, Step
from nova_lxd_ext.server.taskrecovery import TaskRecovery, is_failed

LOG = logging.getLogger(__name__)

MOVES = frozenset({instance_actions.RESIZE, instance_actions.MIGRATE, instance_actions.EVACUATE})
LIVE = "live-migration"
RECENT = 1000  # number of migrations to examine
QUEUE_TIMEOUT = 600.0  # s for which a request may stay in the queue after the start of nova-compute


class Recovery:
    """Recover, at the driver's start, the servers whose tasks a killed nova-compute left unfinished.

    :param await_changes: waits until the engine has ended its operations on the container of this name
    :param deferred: sends requests when nova-compute has started, and checks for those that have not begun
    :param requests: sends requests to compute hosts
    :param placement: nova's client of Placement; created at the first use, because it looks up the service's address
    """

    def __init__(self, states: States, lifecycle: Lifecycle, power: Power,
                 await_changes: Callable[[str], None], deferred: Deferred,
                 requests: Callable[[], Any] = rpcapi.ComputeAPI,
                 placement: Callable[[], Any] = report.report_client_singleton) -> None:
        self._states = states
        self._await_changes = await_changes
        self._placement = placement
        self._failed: set[str] = set()
        self._deferred = deferred
        self._moves = MoveRecovery(states, lifecycle, requests, placement, deferred)
        self._tasks = TaskRecovery(states, lifecycle, power, requests, placement)

    def complete_evacuations(self, host: str, instances: Iterable[objects.Instance]) -> None:
        """Complete evacuations from this host whose servers have returned, before nova removes their containers.

        An evacuation that ends after a start of this host, which completed it, becomes ``done`` again for nova,
        which would then remove a container that arrives here by a later move."""
        context = nova_context.get_admin_context()
        mine = {instance.uuid for instance in instances}
        for move in objects.MigrationList.get_by_filters(context, {
                "source_compute": host, "status": "done", "migration_type": "evacuation"}):
            if move.instance_uuid in mine or returns(context, host, move):
                LOG.warning("Move %s, an evacuation, has ended: the server is on this host again, or returning",
                            move.uuid, instance_uuid=move.instance_uuid)
                set_status(move, COMPLETED)

    def await_engine(self, instances: Iterable[objects.Instance]) -> None:
        """Wait until the engine has ended its operations, before the containers are read.

        Operations of a killed nova-compute continue in the engine, and a container that is being stopped still runs."""
        for instance in instances:
            if instance.task_state is not None:
                with log_errors(instance.uuid):
                    self._await_changes(instance.name)
        self._states.changed()

    def recover(self, host: str, instances: Iterable[objects.Instance]) -> None:
        """Recover the servers at the driver's start, before nova processes them; a failure does not affect others."""
        context = nova_context.get_admin_context()
        found = moves_of(context, host)
        moves = current(context, host, found)
        mine = {instance.uuid: instance for instance in instances}
        unplaced = self._tasks.unplaced(context)
        if unbegun := self._unbegun(context, host, moves, mine, unplaced):
            self._deferred.call(QUEUE_TIMEOUT, ", ".join(sorted(unbegun)), self._end_unbegun, host, unbegun)
        for instance in unplaced:
            with log_errors(instance.uuid):
                self._tasks.recover_unplaced(context, host, instance)
        for uuid, move in moves.items():
            if uuid not in mine:
                with log_errors(uuid):
                    self._recover_elsewhere(context, host, uuid, move)
        for uuid, instance in mine.items():
            if instance.task_state is not None or uuid in moves or instance.vm_state == vm_states.SHELVED_OFFLOADED:
                with log_errors(uuid, self._failed):
                    self._recover_here(context, host, instance, moves.get(uuid))
        for move in found:
            if move.migration_type == LIVE:
                continue  # the source handles it
            if move.status in CLAIMED or (move.status in UNCLAIMED and move is not moves.get(move.instance_uuid)):
                with log_errors(move.instance_uuid):
                    self._moves.end_other(context, host, move)
        with log_errors("whose move is over"):
            self._free_allocations(context, host, mine)

    def _unbegun(self, context: Any, host: str, moves: Mapping[str, objects.Migration],
                 mine: Mapping[str, objects.Instance], unplaced: Iterable[objects.Instance]) -> Mapping[str, str]:
        """Return the servers with requests that may wait in this host's queue, with the ids of the requests."""
        unbegun: dict[str, str] = {}
        for uuid, move in moves.items():
            if uuid not in mine or mine[uuid].task_state in SECOND_REQUESTS \
                    or move.status in (CONFIRMING, PRE_MIGRATING):
                with log_errors(uuid):
                    found = self._moves.unbegun(context, host, uuid, move)
                    if found and found[1].action:
                        unbegun[uuid] = found[1].action.request_id
        for instance in (*mine.values(), *unplaced):
            with log_errors(instance.uuid):
                claimed = instance.uuid in mine or has_resources(self._placement(), context, host, instance.uuid)
                if claimed and (request := self._tasks.await_request(context, host, instance)):
                    unbegun[instance.uuid] = request
        return unbegun

    def _end_unbegun(self, host: str, unbegun: Mapping[str, str]) -> None:
        """Check again for requests that have not begun, and end or repeat them."""
        context = nova_context.get_admin_context()
        with log_errors(", ".join(sorted(unbegun))):
            for move in current(context, host, moves_of(context, host)).values():
                if move.instance_uuid in unbegun:
                    with log_errors(move.instance_uuid):
                        found = self._moves.unbegun(context, host, move.instance_uuid, move)
                        if found:
                            self._moves.send_again(context, host, *found, move)
        for uuid, request in unbegun.items():
            with log_errors(uuid):
                self._tasks.end_unbegun(context, host, uuid, request)

    def queue_reboots(self, context: Any, instances: objects.InstanceList) -> objects.InstanceList:
        """Queue reboots that nova would repeat during its start, where a failure would end the start.

        :returns: the other servers that nova may process. It would end the task of a server that could not be
            recovered: one that is being unshelved would then be in ERROR, without a container
        """
        others = []
        for instance in instances:
            with log_errors(instance.uuid):
                if self._tasks.queue_reboot(context, instance):
                    continue
            if instance.uuid not in self._failed:
                others.append(instance)
        return objects.InstanceList(context, objects=others)

    def _recover_here(self, context: Any, host: str, instance: objects.Instance, move: objects.Migration | None
                      ) -> None:
        lost = lost_by(context, instance, host)
        if is_failed(instance, lost):
            save(instance, task_state=None)
            return
        if lost.methods and instance.task_state is not None:
            LOG.warning("nova-compute was interrupted during %s (task state %s): it is finished or undone",
                        ", ".join(sorted(lost.methods)), instance.task_state, instance=instance)
        step = recoverysteps.here(instance.task_state, instance.vm_state, lost.methods, moves=move is not None,
                                  unbegun=move is not None and is_unbegun(move), evacuates=move is not None
                                  and move.migration_type == "evacuation" and move.dest_compute == host)
        if step is Step.RECOVER_TASK:
            self._tasks.recover(context, instance, lost)
        elif step is Step.LEAVE_HOST:
            leave_host(instance)
        elif move is not None:
            self._moves.recover(context, host, step, instance, move, lost)

    def _recover_elsewhere(self, context: Any, host: str, uuid: str, move: objects.Migration) -> None:
        """Recover a server that moved away from this host, or was about to arrive."""
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
        except exception.InstanceNotFound:
            return
        if prepares(move, host) and is_overtaken(instance, move):
            LOG.warning("Move %s was lost while this host prepared it, and the server is in another one since: it "
                        "is discarded", move.uuid, instance=instance)
            delete_allocation(self._placement(), context, move.uuid)
            set_status(move, FAILED)
            return
        lost = lost_by(context, instance, host)
        if is_failed(instance, lost):
            save(instance, task_state=None)
        if is_superseded(move, host, lost):
            self._moves.drop_superseded(context, instance, move)
        if not lost.methods:
            return
        LOG.warning("nova-compute was interrupted during %s of a server on %s: it is finished or undone",
                    ", ".join(sorted(lost.methods)), instance.host, instance=instance)
        step = recoverysteps.elsewhere(instance.task_state, instance.vm_state, lost.methods, lost.others,
                                       evacuates=move.migration_type == "evacuation",
                                       leaving=move.status not in UNCLAIMED)
        self._moves.recover(context, host, step, instance, move, lost)

    def _free_allocations(self, context: Any, host: str, mine: Mapping[str, objects.Instance]) -> None:
        """Delete the allocations of ended moves, of moves of deleted servers, and of shelved servers here.

        Nova itself deletes those of deleted servers."""
        try:
            nodes = objects.ComputeNodeList.get_all_by_host(context, host)
        except exception.ComputeHostNotFound:
            return  # first start of this host
        for node in nodes:
            info = self._placement().get_allocations_for_resource_provider(context, node.uuid)
            foreign = set(info.allocations) - set(mine)
            if not foreign:
                continue
            # Nova soft-deletes the migrations of a deleted server, too.
            for move in objects.MigrationList.get_by_filters(context.elevated(read_deleted="yes"),
                                                             {"uuid": list(foreign)}):
                # Nova sets the status to reverted before the server is on its old host again.
                over = move.status in OVER and not is_in_flight(context, move.instance_uuid)
                if over and move.instance_uuid in mine and not has_resources(self._placement(), context, host,
                                                                             move.instance_uuid):
                    LOG.warning("Move %s (%s) has ended, but holds the server's allocations here in Placement: they "
                                "are returned", move.uuid, move.status, instance_uuid=move.instance_uuid)
                    move_allocation(self._placement(), context, move.uuid, move.instance_uuid)
                elif over or is_deleted(context, move.instance_uuid):
                    LOG.warning("Move %s (%s) has ended or its server is deleted, and it held resources in Placement: "
                                "they are freed", move.uuid, move.status, instance_uuid=move.instance_uuid)
                    delete_allocation(self._placement(), context, move.uuid)


def moves_of(context: Any, host: str) -> list[objects.Migration]:
    """Return the migrations from or to this host, and those not yet claimed by a new host; latest last."""
    found = {move.id: move for filters in ({"host": host}, {"status": list(UNCLAIMED)})
             for move in objects.MigrationList.get_by_filters(context, filters, sort_keys=["id"],
                                                              sort_dirs=["desc"], limit=RECENT)}
    return [move for _, move in sorted(found.items())]


def current(context: Any, host: str, moves: Iterable[objects.Migration]) -> dict[str, objects.Migration]:
    """Return each server's migration in progress by uuid; none for a server live-migrated since.

    Usually this is the latest one. Nova permits another one after a start has cleared the task state of the previous
    one, which continues nevertheless: until a host has claimed the later one, the previous one counts. It also
    counts for ``host`` if an evacuation from there has failed.
    """
    found: dict[str, objects.Migration] = {}
    for move in moves:
        if is_failed_evacuation(move, host):
            continue
        before = found.get(move.instance_uuid)
        if before is None or before.status in OVER or not is_made(context, before):
            found[move.instance_uuid] = move
    return {uuid: move for uuid, move in found.items() if move.migration_type in ("resize", "migration", "evacuation")}


def is_failed_evacuation(move: objects.Migration, host: str) -> bool:
    """Return whether this is a failed evacuation from ``host``, on which the server stayed."""
    return bool(move.migration_type == "evacuation" and move.source_compute == host
                and move.status in (FAILED, "error"))


def returns(context: Any, host: str, evacuation: objects.Migration) -> bool:
    """Return whether a later move of the server has this host as destination."""
    return any(move.id > evacuation.id and move.dest_compute == host for move in objects.MigrationList.get_by_filters(
        context, {"instance_uuid": evacuation.instance_uuid}))


def is_made(context: Any, move: objects.Migration) -> bool:
    """Return whether the server's record names this migration as its current one."""
    try:
        instance = objects.Instance.get_by_uuid(context, move.instance_uuid, expected_attrs=["migration_context"])
    except exception.InstanceNotFound:
        return False
    return is_under_way(instance, move)


def is_superseded(move: objects.Migration, host: str, lost: Lost) -> bool:
    """Return whether ``host`` was killed while preparing the move, and nova accepted another request since.

    The server's host cleared the task state at a start."""
    return prepares(move, host) and lost.action is not None and lost.action.action not in MOVES


def is_overtaken(instance: objects.Instance, move: objects.Migration) -> bool:
    """Return whether a later move of the server is in progress, to which its resources belong."""
    context = instance.migration_context
    return context is not None and context.migration_id > move.id


def is_unbegun(move: objects.Migration) -> bool:
    """Return whether no other host has claimed this resize or cold migration of a server on this host."""
    return (move.status == PRE_MIGRATING and move.migration_type != "evacuation"
            and move.dest_compute in (None, move.source_compute))
