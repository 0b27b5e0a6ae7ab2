# SPDX-License-Identifier: Apache-2.0
"""Receive servers that come from another host: their containers are fetched here, wait for nova, or are removed again.

From the fetch until nova finishes the move the container is marked with the move's id. A marked container is no
server's yet: the server is still whole on the host it comes from.
"""

import dataclasses
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from oslo_config import cfg
from oslo_log import log as logging

from containerhost.corebinding import unbound
from containerhost.engines import Engine
from containerhost.engines.capabilities import DiskOffer, Offer, Transfers
from containerhost.rollback import Rollback
from containerhost.spec import Mount
from nova_lxd_ext.host import startup
from nova_lxd_ext.server import labels
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.requested import NOTHING
from nova_lxd_ext.server.states import States
from nova_lxd_ext.storage import configdrive
from nova_lxd_ext.storage.ephemerals import Ephemerals

LOG = logging.getLogger(__name__)

LEFT = "post-migrating"  # nova's status of a move whose server has left the old host and is not on the new one yet


class IncomingMigrations:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, transfers: Transfers, states: States,
                 attachments: DeviceAttachments, lifecycle: Lifecycle, ephemerals: Ephemerals) -> None:
        self._conf = conf
        self._engine = engine
        self._transfers = transfers
        self._states = states
        self._attachments = attachments
        self._lifecycle = lifecycle
        self._ephemerals = ephemerals

    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Fetch the container as the server's new flavor and claims want it. What can be refused before is refused.

        :raises MigrationError: this host has a container of that name already
        """
        coming = as_it_will_be(instance)
        self._attachments.require_possible(coming, NOTHING, self._attachments.view())
        spec = self._lifecycle.spec(coming)
        self._require_absent(context, instance)
        self._attachments.end(instance.uuid)  # what a killed driver left of a container that is gone
        with Rollback(f"incoming migration of server {instance.uuid}") as undo:
            undo.on_error("remove what arrived", self._lifecycle.discard, instance.name, instance.uuid)
            undo.on_error("wait for the daemon", startup.await_server, self._engine, self._conf.lxd.ready_timeout)
            mark = {labels.INCOMING: str(instance.migration_context.migration_id)}
            spec = dataclasses.replace(spec, labels=dict(spec.labels) | mark, mounts=self._config_drive(coming))
            # A copy takes long, and others wait for their cores: it gets its own when nova finishes the move.
            self._transfers.fetch(unbound(spec), Offer(**offer), self._conf.lxd.migration_timeout)
        self._states.changed()

    def receive_disk(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Fetch one of the ephemeral disks of a container that is here; on an error all that arrived is removed."""
        with Rollback(f"incoming disk of server {instance.uuid}") as undo:
            undo.on_error("remove what arrived", self.forget, context, instance)
            undo.on_error("wait for the daemon", startup.await_server, self._engine, self._conf.lxd.ready_timeout)
            self._ephemerals.receive(instance, DiskOffer(**offer), self._conf.lxd.migration_timeout)

    def _require_absent(self, context: Any, instance: objects.Instance) -> None:
        """Remove what an interrupted migration left, but not a container that may be the server's own."""
        self.forget(context, instance)
        if self._states.find(instance) is not None or self._states.is_foreign(instance):
            raise exception.MigrationError(reason=(
                f"the host it is to go to has a container {instance.name} already, which may be an older state of the "
                f"server: look at it there, and delete it when it is not needed"))

    def _config_drive(self, coming: objects.Instance) -> tuple[Mount, ...]:
        """Write the config drive anew: injected files and the first password were for the first boot only."""
        return configdrive.write(coming, (), None, coming.get_network_info()) if configdrive.required(coming) else ()

    def forget(self, context: Any, instance: objects.Instance) -> None:
        """Remove what arrived for a move that will not be finished; nothing else of the server's."""
        state = self._states.find(instance)
        if state is not None and labels.INCOMING in state.labels:
            LOG.warning("The move to this host failed: what arrived is removed", instance=instance)
            self._lifecycle.discard(instance.name, instance.uuid)

    def purge(self) -> None:
        """Remove, at the driver's start, what was fetched for migrations that nova will not finish."""
        context = nova_context.get_admin_context()
        for state in self._states.all():
            uuid, move = labels.uuid(state.labels), state.labels.get(labels.INCOMING)
            if uuid and move and not is_under_way(context, int(move)):
                LOG.warning("The move to this host was broken off: what arrived is removed", instance_uuid=uuid)
                self._lifecycle.discard(state.name, uuid)


def is_under_way(context: Any, move: int) -> bool:
    """Return whether nova will still finish the move with this id."""
    try:
        return bool(objects.Migration.get_by_id(context, move).status == LEFT)
    except exception.MigrationNotFound:
        return False


def as_it_will_be(instance: objects.Instance) -> objects.Instance:
    """Return a copy of the server with the flavor, devices and NUMA cells it will have after the current migration."""
    copy = instance.obj_clone()
    if copy.new_flavor is not None:
        copy.flavor, copy.old_flavor = copy.new_flavor, instance.flavor
    copy.apply_migration_context()
    return copy


def as_it_was(instance: objects.Instance) -> objects.Instance:
    """Return a copy of the server with the flavor, devices and NUMA cells it had before the migration that is
    reverted."""
    copy = instance.obj_clone()
    if copy.old_flavor is not None:
        copy.flavor = copy.old_flavor
    copy.revert_migration_context()
    return copy


def is_at_home(move: objects.Migration) -> bool:
    """Return whether the server stays on its host."""
    return bool(move.source_compute == move.dest_compute)
