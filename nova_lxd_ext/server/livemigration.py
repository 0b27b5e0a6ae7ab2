# SPDX-License-Identifier: Apache-2.0
"""Migrate running servers by nova's live migration, which for a container includes a stop of seconds.

Its processes cannot leave their host's kernel. If the flavor or the operator permits a restart, the destination
copies the server while it runs; then it is stopped, its last changes follow, and it starts there. Tools that drain a
host with this request (evacuation tools, Masakari, Watcher) need not confirm each migration.

Until the status of nova's migration record is :data:`LEFT`, each error leaves the server running on its host. From
then on it belongs to the destination, and the container here is kept until it runs there.
"""

import json
from collections.abc import Callable
from typing import Any

from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.compute import utils as compute_utils
from nova.network import model
from nova.objects import migrate_data
from nova.virt import driver
from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.rollback import Rollback
from nova_lxd_ext import compat
from nova_lxd_ext.hardware import placedclaims
from nova_lxd_ext.instance import flavor, labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.network.vifs import Ports
from nova_lxd_ext.server import failure_events
from nova_lxd_ext.server.incoming import IncomingMigrations
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.migration import Aborted, Migrations
from nova_lxd_ext.server.recoveryrecords import is_under_way, set_status

LOG = logging.getLogger(__name__)

LEFT = "post-migrating"  # nova's migration status once the server belongs to the destination
REFUSED = ("a container's processes share their host's kernel and cannot move while they run. Migrate the server cold "
           "(openstack server migrate), or let it be restarted: flavor key lxd:live_migration=restart, or [lxd] "
           "live_migration = restart on the new host")
MOVED = ("numa_topology", "pci_devices", "pci_requests", "resources")  # fields in a server's migration context


class LiveMigrations:
    """Perform a live migration on its source and destination, in the order of nova's requests.

    :param virtapi: nova's interface, with the claims of a server on the destination
    """

    def __init__(self, conf: cfg.ConfigOpts, states: States, ports: Ports, live: LiveResize, moves: Migrations,
                 incoming: IncomingMigrations, virtapi: Any) -> None:
        self._conf = conf
        self._states = states
        self._ports = ports
        self._live = live
        self._moves = moves
        self._incoming = incoming
        self._virtapi = virtapi

    def check_destination(self, context: Any, instance: objects.Instance) -> migrate_data.LibvirtLiveMigrateData:
        """Refuse a server that may not be restarted, and let nova's next claim follow Placement's allocations.

        :returns: the class with which nova claims NUMA cells and cleans up the source
        """
        if not flavor.restarts_to_migrate(instance.flavor.extra_specs, self._conf.lxd.live_migration):
            raise exception.MigrationPreCheckError(reason=REFUSED)
        manager = compat.manager(self._virtapi)
        if manager is not None:
            try:
                placedclaims.name_providers(context, instance, manager.rt, self._conf.host,
                                            instance.pci_requests.requests)
            except exception.NovaException as error:  # after others, nova's conductor sets the server to ERROR
                raise exception.MigrationPreCheckError(reason=error.format_message()) from error
        data = nothing_shared()
        if instance.numa_topology:
            data.dst_supports_numa_live_migration = True
        return data

    def check_source(self, context: Any, instance: objects.Instance, data: migrate_data.LibvirtLiveMigrateData
                     ) -> migrate_data.LibvirtLiveMigrateData:
        """Refuse a server that cannot leave, and record how its volumes are attached, which a killed nova forgets."""
        state = self._states.require(instance)
        if state.status is not Status.RUNNING or instance.vm_state != vm_states.ACTIVE:
            raise exception.MigrationPreCheckError(reason=(
                "the server does not run; unpause or start it, or migrate it cold: openstack server migrate"))
        self._moves.require_may_leave()
        self._moves.forget_wishes(instance)
        volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
        self._states.relabel(state, {labels.OUTGOING: json.dumps(
            {volume.volume_id: volume.attachment_id for volume in volumes if volume.is_volume})})
        if instance.numa_topology:
            data.src_supports_numa_live_migration = True
        return data

    def prepare(self, context: Any, instance: objects.Instance, block_device_info: Any, network_info: model.NetworkInfo,
                data: migrate_data.LibvirtLiveMigrateData) -> migrate_data.LibvirtLiveMigrateData:
        """Refuse, on the destination, claims that it cannot satisfy; otherwise plug the server's ports."""
        bound = [vif.get_dest_vif() for vif in data.vifs if "vif_type" in vif] if "vifs" in data else []
        ports, coming = model.NetworkInfo(bound) if bound else network_info, self._incoming.as_it_comes_live(instance)
        self._incoming.require_possible(coming, self._coming_to(instance, ports, block_device_info))
        self._ports.prepare(coming, ports)
        data.vifs = []  # otherwise nova waits for neutron's events, which some agents do not send for such a port
        return data

    def migrate(self, context: Any, instance: objects.Instance, host: str, done: Callable[..., None],
                failed: Callable[..., None], block_migration: Any, data: migrate_data.LibvirtLiveMigrateData) -> None:
        """Migrate the server to the destination; on an error it runs here, and nova undoes its part.

        :param done, failed: nova's callbacks
        """
        try:
            with (failure_events.record_failure(context, instance, failure_events.LIVE_MIGRATION),
                  Rollback(f"live migration of server {instance.uuid}") as undo):
                requested = self._requested(instance, compat.volumes_before(done), data.migration)
                # Not longer: nova has one thread for all live migrations from a host, and the image belongs to the
                # tenant.
                longest = self._conf.shutdown_timeout
                allowed = min(longest, compute_utils.get_value_from_system_metadata(
                    instance, "image_os_shutdown_timeout", int, longest))
                self._moves.leave(context, as_it_leaves(instance, data.migration), host,
                                  self._states.require(instance).status, requested, allowed,
                                  self._conf.compute.shutdown_retry_interval, undo)
                set_status(data.migration, LEFT)
        except Exception as error:
            LOG.exception("Live migration to %s failed: the server stays on this host", host, instance=instance)
            failed(context, instance, host, migrate_data=data,
                   migration_status="cancelled" if isinstance(error, Aborted) else "failed")
        else:
            done(context, instance, host, block_migration, data)
            self.discard(instance)

    def _requested(self, instance: objects.Instance, volumes: objects.BlockDeviceMappingList, move: objects.Migration
                   ) -> RequestedResources:
        """Return the server's resources on its source, whose allocations the migration holds meanwhile."""
        return self._live.requested(
            RequestedResources.of(instance.get_network_info(), driver.get_block_device_info(instance, volumes)),
            instance.flavor, move.uuid)

    def start_again(self, instance: objects.Instance, volumes: objects.BlockDeviceMappingList, move: objects.Migration
                    ) -> None:
        """Restart a server on its source if it was stopped to leave.

        :param volumes: as attached here
        """
        if self._states.require(instance).status is Status.STOPPED:
            self._moves.start_again(instance, self._requested(instance, volumes, move))

    def is_off(self, instance: objects.Instance) -> bool:
        """Return whether the server is not running here; it may have no container."""
        state = self._states.find(instance)
        return state is None or state.status is Status.STOPPED

    def discard(self, instance: objects.Instance) -> None:
        """Remove the remains of a server that runs on its destination, except a running container."""
        try:
            if self.is_off(instance):
                self._moves.discard(instance)
            else:
                LOG.error("The server has left, and its container here runs: it is kept. Check both, and delete one",
                          instance=instance)
        except (errors.ContainerHostError, OSError):
            LOG.exception("The server has left, and its container here could not be removed: the next start of "
                          "nova-compute tries again", instance=instance)

    def arrive(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo, block_device_info: Any
               ) -> None:
        """Start the server on the destination; after an error it stays there, off, for a hard reboot.

        :raises InstanceNotFound: it was deleted meanwhile
        """
        if objects.Instance.get_by_uuid(context, instance.uuid, expected_attrs=[]).task_state == task_states.DELETING:
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        compat.allocate_claimed(self._virtapi, context, instance)
        if instance.migration_context is not None:  # nova has not claimed devices for the ids of the new requests
            instance.migration_context.new_pci_requests = instance.pci_requests
        coming = self._incoming.as_it_comes_live(instance)
        requested = self._coming_to(instance, network_info, block_device_info)
        # A restarted source repeats the request, perhaps during this one. Neutron still sends its events to the source.
        with lockutils.lock(f"lxd-arrival-{instance.uuid}"):
            self._moves.finish(context, coming, requested, power_on=True, awaits_ports=False)
        if coming.obj_attr_is_set("device_metadata"):
            instance.device_metadata = coming.device_metadata

    def forget(self, context: Any, instance: objects.Instance, data: migrate_data.LibvirtLiveMigrateData) -> None:
        """Remove the remains of a failed migration from the destination."""
        self._incoming.forget(context, as_it_leaves(instance, data.migration))
        if self._states.find(instance) is None:
            self._ports.unplug(instance, None)

    def _coming_to(self, instance: objects.Instance, network_info: model.NetworkInfo, block_device_info: Any
                   ) -> RequestedResources:
        """Return the resources that the server requests on its destination."""
        return self._live.requested(RequestedResources.of(network_info, block_device_info), instance.flavor,
                                    instance.uuid)


def nothing_shared(**values: Any) -> migrate_data.LibvirtLiveMigrateData:
    return migrate_data.LibvirtLiveMigrateData(is_shared_instance_path=False, is_shared_block_storage=False, **values)


def as_it_leaves(instance: objects.Instance, move: objects.Migration) -> objects.Instance:
    """Return a copy of the server that refers to this migration, as in a cold migration."""
    copy = instance.obj_clone()
    if not is_under_way(copy, move):
        same = {f"{prefix}{name}": getattr(instance, name) for prefix in ("old_", "new_") for name in MOVED}
        copy.migration_context = objects.MigrationContext(instance_uuid=instance.uuid, migration_id=move.id, **same)
    return copy
