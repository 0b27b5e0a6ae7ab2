# SPDX-License-Identifier: Apache-2.0
"""Receive servers from another host: fetch their containers, keep them for nova, or remove them again.

From the fetch until nova places the server here, the container has the migration's id as label. Until then it is a
copy: the complete server is on its old host.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_config import cfg
from oslo_log import log as logging

from containerhost.engines.capabilities import ChangesOffer, DiskOffer, Offer, Transfers
from containerhost.engines.contract import ContainerState, Engine, Status
from containerhost.engines.corebinding import unbound
from containerhost.engines.spec import ContainerSpec, Mount
from containerhost.rollback import Rollback
from nova_lxd_ext import compat
from nova_lxd_ext.host import startup
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import instance_records
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.recoveryrecords import log_errors
from nova_lxd_ext.storage import configdrive
from nova_lxd_ext.storage.ephemerals import Ephemerals

LOG = logging.getLogger(__name__)

OVER = ("confirmed", "reverted", "error", "failed", "completed", "cancelled", "done")  # final migration states


class IncomingMigrations:
    """Receive, keep and remove containers of servers from other hosts.

    :param virtapi: nova's interface, with the claims of a server on this host"""

    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, transfers: Transfers, states: States,
                 attachments: DeviceAttachments, lifecycle: Lifecycle, ephemerals: Ephemerals, virtapi: Any) -> None:
        self._conf = conf
        self._engine = engine
        self._transfers = transfers
        self._states = states
        self._attachments = attachments
        self._lifecycle = lifecycle
        self._ephemerals = ephemerals
        self._virtapi = virtapi

    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Fetch the container for the server's new flavor and claims, after all possible checks.

        :raises MigrationError: this host already has a container of that name
        """
        self._make(instance, lambda spec: self._transfers.fetch(spec, Offer(**offer), self._conf.lxd.migration_timeout))

    def receive_changes(self, context: Any, instance: objects.Instance, offer: dict[str, Any], last: bool) -> bool:
        """Fetch the container while it runs, or its changes since the previous request for the same migration.

        On an error the copy is removed.

        :param last: not read; a source names it for hosts of an earlier release
        :returns: False if this host cannot; nothing was changed
        """
        found, timeout = ChangesOffer(**offer), self._conf.lxd.migration_timeout
        coming = as_it_will_be(instance)
        spec = self._lifecycle.spec(coming)
        if not self._transfers.takes_changes(spec, found):
            return False
        if self._is_copy(self._states.find(instance), instance):
            with self._removed_on_error(instance):
                # A device may have disappeared since it was claimed.
                if instance.task_state == task_states.MIGRATING:
                    coming = self.as_it_comes_live(instance)
                self._attachments.require_possible(coming, NOTHING, self._attachments.view())
                self._transfers.fetch_changes(spec, found, timeout, refresh=True)
        else:
            self._make(instance, lambda spec: self._transfers.fetch_changes(spec, found, timeout, refresh=False))
        return True

    def as_it_comes_live(self, instance: objects.Instance) -> objects.Instance:
        """Return a copy of the server with what nova has claimed for it here by a live migration."""
        copy = instance.obj_clone()
        copy.apply_migration_context()
        copy.pci_requests, copy.pci_devices = instance.pci_requests, compat.pci_devices(self._virtapi, instance)
        return copy

    def _make(self, instance: objects.Instance, fetch: Callable[[ContainerSpec], None]) -> None:
        coming = as_it_will_be(instance)
        spec = self.require_possible(coming, NOTHING)
        self._attachments.end(instance.uuid)  # left by a killed driver, of a container that no longer exists
        with self._removed_on_error(instance):
            mark = {labels.INCOMING: str(instance.migration_context.migration_id)}
            spec = dataclasses.replace(spec, labels=dict(spec.labels) | mark, mounts=self._config_drive(coming))
            # The copy takes long, and other containers need the cores: it gets its own when nova finishes the
            # migration.
            fetch(unbound(spec))
        self._states.changed()

    @contextlib.contextmanager
    def _removed_on_error(self, instance: objects.Instance) -> Iterator[None]:
        with Rollback(f"incoming migration of server {instance.uuid}") as undo:
            undo.on_error("remove what arrived", self._lifecycle.discard, instance.name, instance.uuid)
            undo.on_error("wait for the daemon", startup.await_server, self._engine, self._conf.lxd.ready_timeout)
            yield

    def receive_disk(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Fetch one of the ephemeral disks of a fetched container; on an error the copy is removed."""
        with Rollback(f"incoming disk of server {instance.uuid}") as undo:
            undo.on_error("remove what arrived", self.forget, context, instance)
            undo.on_error("wait for the daemon", startup.await_server, self._engine, self._conf.lxd.ready_timeout)
            self._ephemerals.receive(instance, DiskOffer(**offer), self._conf.lxd.migration_timeout)

    def require_possible(self, coming: objects.Instance, requested: RequestedResources) -> ContainerSpec:
        """Refuse a server that cannot run here, and return its container's spec.

        :raises MigrationError: this host already has a container of that name
        """
        self._attachments.require_possible(coming, requested, self._attachments.view())
        spec = self._lifecycle.spec(coming)
        self._require_absent(coming)
        return spec

    def _require_absent(self, instance: objects.Instance) -> None:
        """Remove the copy of an interrupted migration, but no container that may be the server's own."""
        state = self._states.find(instance)
        if state is not None and labels.INCOMING in state.labels and state.status is Status.STOPPED:
            self._discard(state, instance.uuid)
        elif state is not None or self._states.is_foreign(instance):
            raise exception.MigrationError(reason=(
                f"the host it is to go to has a container {instance.name} already, which may be an older state of the "
                f"server: check it there, and delete it when it is not needed"))

    def exists(self, instance: objects.Instance) -> bool:
        """Return whether the server has a container here; before an evacuation, remove the copy of an ended move.

        The copy of an unfinished move may be the only one of the server.

        :raises ComputeResourcesUnavailable: the server is evacuated to this host, which has a container of it; nova
            leaves the server unchanged
        """
        state = self._states.find(instance)
        if state is None or instance.task_state != task_states.REBUILDING or instance.host == instance_records.host():
            return state is not None
        evacuation, move = instance.migration_context, state.labels.get(labels.INCOMING)
        if evacuation is not None and self._discard_ended(state, instance.uuid, besides=evacuation.migration_id):
            return False
        origin = f" (of migration {move})" if move else ""
        raise exception.ComputeResourcesUnavailable(reason=(
            f"this host has a container {state.name} of the server already{origin}, which may be newer than its image: "
            f"look at it there, and delete it when it is not needed, or evacuate the server to another host"))

    def remove_ended(self, instance: objects.Instance) -> None:
        """Remove the copy of an ended move before a server is unshelved here: the server's image is newer."""
        if instance.vm_state == vm_states.SHELVED_OFFLOADED and (state := self._states.find(instance)) is not None:
            self._discard_ended(state, instance.uuid)

    def _discard_ended(self, state: ContainerState, uuid: str, besides: int | None = None) -> bool:
        """Remove a stopped copy of an ended migration, and return whether it is one.

        :param besides: the id of a migration that may be in progress
        """
        move = state.labels.get(labels.INCOMING)
        ended = move is not None and state.status is Status.STOPPED and is_over(
            nova_context.get_admin_context(), uuid, int(move), besides)
        if ended:
            self._discard(state, uuid)
        return ended

    def _config_drive(self, coming: objects.Instance) -> tuple[Mount, ...]:
        """Write a new config drive: injected files and the first password were for the first boot only."""
        return configdrive.write(coming, (), None, coming.get_network_info()) if configdrive.required(coming) else ()

    def forget(self, context: Any, instance: objects.Instance) -> None:
        """Remove the copy that arrived for the server's current, failed migration.

        The copy of another migration stays: this request may arrive late."""
        state = self._states.find(instance)
        if state is not None and self._is_copy(state, instance):
            self._discard(state, instance.uuid)

    @staticmethod
    def _is_copy(state: ContainerState | None, instance: objects.Instance) -> bool:
        """Return whether this is the copy that arrived for the server's current migration."""
        move = instance.migration_context
        return (state is not None and move is not None and state.status is Status.STOPPED
                and state.labels.get(labels.INCOMING) == str(move.migration_id))

    def purge(self, host: str) -> None:
        """Remove, at the driver's start, the copies of migrations that have ended on another host.

        A container that runs, or whose server nova places here, is never removed. The label of the latter, a
        possible remnant of a failed arrival, is removed. A server that is being unshelved here has no container yet.
        """
        context = nova_context.get_admin_context(read_deleted="yes")
        for state in self._states.all():
            uuid = labels.uuid(state.labels)
            if uuid and labels.INCOMING in state.labels:
                with log_errors(uuid):
                    self._reconcile(context, host, state, uuid)

    def _reconcile(self, context: Any, host: str, state: ContainerState, uuid: str) -> None:
        try:
            instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=[])
        except exception.InstanceNotFound:
            return  # not sufficient evidence: it is reported as an orphan
        if not instance.deleted and instance.host == host and instance.vm_state != vm_states.SHELVED_OFFLOADED:
            self._states.relabel(state, {labels.INCOMING: None})
        elif state.status is Status.STOPPED and (
                instance.deleted or is_over(context, uuid, int(state.labels[labels.INCOMING]))):
            self._discard(state, uuid)

    def _discard(self, state: ContainerState, uuid: str) -> None:
        LOG.warning("Migration %s to this host failed: the copy of the server is removed",
                    state.labels[labels.INCOMING], instance_uuid=uuid)
        self._lifecycle.discard(state.name, uuid)


def is_over(context: Any, uuid: str, move: int, besides: int | None = None) -> bool:
    """Return whether nova records that this migration of the server has ended, and that no other is in progress.

    :param besides: the id of a migration that may be in progress
    """
    states = {found.id: found.status for found in objects.MigrationList.get_by_filters(
        context, {"instance_uuid": uuid}) if found.id != besides}
    return move in states and all(status in OVER for status in states.values())


def is_moving(context: Any, uuid: str, besides: int) -> bool:
    """Return whether nova records a migration of the server in progress besides this one."""
    return any(found.status not in OVER and found.id != besides for found in objects.MigrationList.get_by_filters(
        context, {"instance_uuid": uuid}))


def as_it_will_be(instance: objects.Instance) -> objects.Instance:
    """Return a copy of the server with its flavor, devices and NUMA cells after the current migration."""
    copy = instance.obj_clone()
    if copy.new_flavor is not None:
        copy.flavor, copy.old_flavor = copy.new_flavor, instance.flavor
    copy.apply_migration_context()
    return copy


def as_it_was(instance: objects.Instance) -> objects.Instance:
    """Return a copy of the server with its flavor, devices and NUMA cells before the reverted migration."""
    copy = instance.obj_clone()
    if copy.old_flavor is not None:
        copy.flavor = copy.old_flavor
    copy.revert_migration_context()
    return copy


def is_at_home(move: objects.Migration) -> bool:
    """Return whether the server stays on this host."""
    return bool(move.source_compute == move.dest_compute)
