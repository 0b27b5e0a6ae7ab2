# SPDX-License-Identifier: Apache-2.0
"""Implement only nova's contract of a virt driver (nova.virt.driver.ComputeDriver), as LXDDriver.

Every method delegates to another module. Errors reach nova through :mod:`nova_lxd_ext.errors` only.
"""

import functools
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import power_state
from nova.console.type import ConsoleSerial
from nova.network import model
from nova.virt import driver
from nova.virt.hardware import InstanceInfo

from nova_lxd_ext import backend, compat, conf, unsupported
from nova_lxd_ext.access import console, password
from nova_lxd_ext.errors import as_nova, rebuilding, translated
from nova_lxd_ext.hardware import placedclaims, tags
from nova_lxd_ext.hardware.devicespec import one_time_use
from nova_lxd_ext.hardware.pcitracker import PciTracker
from nova_lxd_ext.host import hostinfo, orphans, provider, startup
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import POWER_STATES
from nova_lxd_ext.server import diagnostics, failure_events, instance_records, watch
from nova_lxd_ext.server.migration import Wanted
from nova_lxd_ext.storage import volumeconfig

conf.register()


class LXDDriver(unsupported.UnsupportedMethods):
    """Run system containers on LXD or Incus, with the GPUs and network functions of their flavors."""

    capabilities = driver.ComputeDriver.capabilities | {
        "supports_evacuate": True,
        "supports_pcpus": True,
        "supports_trusted_certs": True,
        "has_imagecache": True,
        "supports_accelerators": True,
        "supports_device_tagging": True,
        "supports_attach_interface": True,
        "supports_extend_volume": True,
        "supports_multiattach": True,
        "supports_tagged_attach_volume": True,
        "supports_tagged_attach_interface": True,
        # Glance has no disk format for containers: their images have the format raw.
        "supports_image_type_raw": True,
    }

    def __init__(self, virtapi: Any) -> None:
        super().__init__(virtapi)
        self._nodename: str = nova.conf.CONF.host
        self._backend = backend.build(nova.conf.CONF, virtapi=virtapi)
        self._pci = PciTracker(lambda: compat.pci_tracker(virtapi), one_time_use, self._backend.flavor_devices.held)
        self._leaving: frozenset[str] = frozenset()
        self._watch = watch.Watch(self._backend.engine, self._backend.states, self.emit_event)

    # Start of the service

    @translated()
    def init_host(self, host: str) -> None:
        self._nodename = host
        startup.require_alone(nova.conf.CONF)
        startup.require_same_name(host)
        instances = instance_records.placed(host)
        startup.check(nova.conf.CONF, self._backend.engine, bool(instances) or self._backend.lifecycle.has_records()
                      or self._backend.flavor_devices.any_held())
        compat.before_claims(placedclaims.follow_placement,
                             functools.partial(failure_events.record_failure, event=failure_events.CLAIM))
        compat.leave_allocations_of(placedclaims.moving)
        compat.keep_reason_of_last_host(self.virtapi)
        compat.keep_allocations_of_rebuilds(self.virtapi)
        self._backend.images.purge()
        self._backend.snapshots.purge()
        self._backend.moves.purge()
        self._backend.recovery.complete_evacuations(host, instances)
        self._backend.lifecycle.reconcile(instances)
        self._backend.volumes.restore_fenced()
        compat.process_instances_at_startup(host, self.process_instances_at_startup)
        self._backend.incoming.purge(host)
        self._backend.peers.listen(host, self._backend.incoming)

    def register_event_listener(self, callback: Any) -> None:
        super().register_event_listener(callback)
        (self._watch.start if callback else self._watch.stop)()

    def cleanup_host(self, host: str) -> None:
        self._watch.stop()
        self._backend.deferred.stop()
        self._backend.consoles.close()
        self._backend.peers.close()

    @translated()
    def process_instances_at_startup(self, context: Any, instances: objects.InstanceList) -> objects.InstanceList:
        self._backend.recovery.await_engine(instances)
        self._backend.rescue.reconcile(instances)
        self._leaving = self._backend.live_recovery.recover(self._nodename, instances)
        others = objects.InstanceList(context, objects=[found for found in instances
                                                        if found.uuid not in self._leaving])
        self._backend.recovery.recover(self._nodename, others)
        self._backend.lifecycle.end_interrupted_boots(others)
        orphans.report(self._backend.states.all(), instances)
        return self._backend.recovery.queue_reboots(context, others)

    # Queries

    @translated()
    def get_info(self, instance: objects.Instance, use_cache: bool = True) -> InstanceInfo:
        return self._backend.states.power(instance, use_cache)

    @translated()
    def list_instances(self) -> list[str]:
        return [state.name for state in self._backend.states.all()]

    @translated()
    def list_instance_uuids(self) -> list[str]:
        return self._backend.states.uuids()

    @translated()
    def instance_exists(self, instance: objects.Instance) -> bool:
        return self._backend.incoming.exists(instance)

    # Life cycle

    def spawn(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta, injected_files: Any,
              admin_password: str | None, allocations: Any, network_info: model.NetworkInfo | None = None,
              block_device_info: Any = None, power_on: bool = True, accel_info: Any = None) -> None:
        with (failure_events.record_failure(context, instance, failure_events.SPAWN),
              rebuilding(instance, self._nodename), as_nova(instance, booting=True)):
            self._backend.incoming.remove_ended(instance)
            self._backend.lifecycle.spawn(context, instance, image_meta, injected_files or (), admin_password,
                                          RequestedResources.of(network_info, block_device_info, accel_info,
                                                                allocations),
                                          power_on)

    def destroy(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
                block_device_info: Any = None, destroy_disks: bool = True, destroy_secrets: bool = True) -> None:
        with rebuilding(instance, self._nodename), as_nova(instance, exception.InstanceTerminationFailure):
            requested = RequestedResources.of(network_info, block_device_info)
            if destroy_disks or not self._backend.moves.revert_in_place(context, instance, requested):
                self._backend.lifecycle.remove(instance, requested, keep_disk=not destroy_disks)

    @translated(exception.InstanceTerminationFailure)
    def cleanup(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
                block_device_info: Any = None, destroy_disks: bool = True, migrate_data: Any = None,
                destroy_vifs: bool = True, destroy_secrets: bool = True) -> None:
        if migrate_data is None:  # after a live migration the container is kept until the destination runs it
            self._backend.lifecycle.remove(instance, RequestedResources.of(network_info, block_device_info),
                                           keep_disk=not destroy_disks)

    # Images

    @translated()
    def snapshot(self, context: Any, instance: objects.Instance, image_id: str, update_task_state: Any) -> None:
        self._backend.snapshots.take(context, instance, image_id, update_task_state)

    @translated()
    def rescue(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
               image_meta: objects.ImageMeta, rescue_password: str | None, block_device_info: Any, share_info: Any
               ) -> None:
        self._backend.rescue.enter(context, instance, image_meta, rescue_password,
                                   RequestedResources.of(network_info, block_device_info))

    @translated()
    def unrescue(self, context: Any, instance: objects.Instance) -> None:
        self._backend.rescue.leave(instance, instance_records.requested(context, instance))

    @translated()
    def manage_image_cache(self, context: Any, all_instances: objects.InstanceList) -> None:
        self._backend.imagecache.manage(all_instances)

    @translated()
    def cache_image(self, context: Any, image_id: str) -> bool:
        return self._backend.imagecache.fetch(context, image_id)

    @translated()
    def delete_instance_files(self, instance: objects.Instance) -> bool:
        self._backend.lifecycle.remove(instance)
        return True

    # Power

    @translated(exception.InstancePowerOnFailure)
    def power_on(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
                 block_device_info: Any = None, accel_info: Any = None, share_info: Any = None) -> None:
        self._backend.power.on(instance, RequestedResources.of(network_info, block_device_info, accel_info))

    @translated(exception.InstancePowerOffFailure)
    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        self._backend.power.off(instance, timeout, retry_interval)

    @translated(exception.InstanceRebootFailure)
    def reboot(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None, reboot_type: str,
               block_device_info: Any = None, bad_volumes_callback: Any = None, accel_info: Any = None,
               share_info: Any = None) -> None:
        if reboot_type == "HARD":
            self._backend.rescue.abandon(instance)
        self._backend.power.reboot(instance, RequestedResources.of(network_info, block_device_info,
                                                                            accel_info),
                                   soft=reboot_type == "SOFT")

    def poll_rebooting_instances(self, timeout: int, instances: objects.InstanceList) -> None:
        """Do nothing: every step of a reboot has its own time limit."""

    @translated()
    def pause(self, instance: objects.Instance) -> None:
        self._backend.power.freeze(instance)

    @translated()
    def unpause(self, instance: objects.Instance) -> None:
        self._backend.power.unfreeze(instance)

    @translated(exception.InstanceSuspendFailure)
    def suspend(self, context: Any, instance: objects.Instance) -> None:
        self._backend.power.freeze(instance)

    @translated(exception.InstanceResumeFailure)
    def resume(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
               block_device_info: Any = None, share_info: Any = None) -> None:
        self._backend.power.on(instance, RequestedResources.of(network_info, block_device_info))

    @translated(exception.InstancePowerOnFailure)
    def resume_state_on_host_boot(self, context: Any, instance: objects.Instance,
                                  network_info: model.NetworkInfo | None, share_info: Any,
                                  block_device_info: Any = None) -> None:
        if instance.uuid not in self._leaving:  # nova 33 calls this although the destination may run it
            self._backend.power.on(instance, RequestedResources.of(network_info, block_device_info))

    # Migration

    def migrate_disk_and_power_off(self, context: Any, instance: objects.Instance, dest: str, flavor: objects.Flavor,
                                   network_info: model.NetworkInfo | None, block_device_info: Any = None,
                                   timeout: int = 0, retry_interval: int = 0) -> str:
        try:
            self._backend.moves.migrate(context, instance, flavor,
                                        RequestedResources.of(network_info, block_device_info), timeout, retry_interval)
        except exception.InstanceFaultRollback:
            self._pci.refused(instance.uuid)
            raise
        return "[]"  # the files are transferred already, so nova needs no disk information

    @translated(exception.MigrationError)
    def finish_migration(self, context: Any, migration: objects.Migration, instance: objects.Instance, disk_info: str,
                         network_info: model.NetworkInfo | None, image_meta: objects.ImageMeta, resize_instance: bool,
                         allocations: Any, block_device_info: Any = None, power_on: bool = True,
                         share_info: Any = None) -> None:
        self._backend.moves.finish(context, instance, RequestedResources.of(network_info, block_device_info,
                                                                            allocations=allocations), power_on)

    @translated(exception.MigrationError)
    def finish_revert_migration(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo | None,
                                migration: objects.Migration, block_device_info: Any = None, power_on: bool = True,
                                share_info: Any = None) -> None:
        if migration.status == "reverting":  # called by Recovery; nova sets another status first
            migration.status = "reverted"
            migration.save()
        self._backend.moves.revert(context, instance, migration, RequestedResources.of(network_info, block_device_info),
                                   power_on)

    @translated(exception.MigrationError)
    def confirm_migration(self, context: Any, migration: objects.Migration, instance: objects.Instance,
                          network_info: model.NetworkInfo | None) -> None:
        self._backend.moves.confirm(instance, migration)

    def check_instance_shared_storage_local(self, context: Any, instance: objects.Instance) -> dict[str, str]:
        return {"host": self._nodename}

    def check_instance_shared_storage_remote(self, context: Any, data: dict[str, str]) -> bool:
        return data["host"] == self._nodename  # a container exists on one host only

    # Live migration by a restart

    @translated(exception.MigrationPreCheckError)
    def check_can_live_migrate_destination(self, context: Any, instance: objects.Instance, src_compute_info: Any,
                                           dst_compute_info: Any, block_migration: Any = False,
                                           disk_over_commit: bool = False) -> Any:
        return self._backend.live_moves.check_destination(context, instance)

    def cleanup_live_migration_destination_check(self, context: Any, dest_check_data: Any) -> None:
        """Do nothing: the check changed nothing."""

    @translated(exception.MigrationPreCheckError)
    def check_can_live_migrate_source(self, context: Any, instance: objects.Instance, dest_check_data: Any,
                                      block_device_info: Any = None) -> Any:
        return self._backend.live_moves.check_source(context, instance, dest_check_data)

    @translated(exception.MigrationError)
    def pre_live_migration(self, context: Any, instance: objects.Instance, block_device_info: Any,
                           network_info: model.NetworkInfo, disk_info: Any, migrate_data: Any) -> Any:
        return self._backend.live_moves.prepare(context, instance, block_device_info, network_info, migrate_data)

    def live_migration(self, context: Any, instance: objects.Instance, dest: str, post_method: Any, recover_method: Any,
                       block_migration: Any = False, migrate_data: Any = None) -> None:
        self._backend.live_moves.migrate(context, instance, dest, post_method, recover_method, block_migration,
                                         migrate_data)

    def live_migration_force_complete(self, instance: objects.Instance) -> None:
        self._backend.moves.ask(instance, Wanted.AT_ONCE)

    def live_migration_abort(self, instance: objects.Instance) -> None:
        self._backend.moves.ask(instance, Wanted.NOT)

    @translated()
    def rollback_live_migration_at_destination(self, context: Any, instance: objects.Instance,
                                               network_info: model.NetworkInfo, block_device_info: Any,
                                               destroy_disks: bool = True, migrate_data: Any = None) -> None:
        self._backend.live_moves.forget(context, instance, migrate_data)

    def post_live_migration_at_source(self, context: Any, instance: objects.Instance, network_info: model.NetworkInfo
                                      ) -> None:
        """Do nothing: the server has already left, with its ports unplugged."""

    @translated(exception.MigrationError)
    def post_live_migration_at_destination(self, context: Any, instance: objects.Instance,
                                           network_info: model.NetworkInfo, block_migration: Any = False,
                                           block_device_info: Any = None) -> None:
        self._backend.live_moves.arrive(context, instance, network_info, block_device_info)

    # Ports

    def plug_vifs(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        self._backend.ports.plug(instance, network_info)

    def unplug_vifs(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        self._backend.ports.unplug(instance, network_info)

    def attach_interface(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta,
                         vif: model.VIF) -> None:
        with failure_events.record_failure(context, instance, failure_events.ATTACH), as_nova(instance):
            state = self._backend.states.require(instance)
            tags.attaching(context, instance, vif)
            self._backend.ports.attach(instance, state, vif)

    def detach_interface(self, context: Any, instance: objects.Instance, vif: model.VIF) -> None:
        with failure_events.record_failure(context, instance, failure_events.DETACH), as_nova(instance):
            self._backend.ports.detach(instance, vif)

    # Volumes

    @translated()
    def get_volume_connector(self, instance: objects.Instance) -> dict[str, Any]:
        return self._backend.connectors.properties()

    @translated()
    def attach_volume(self, context: Any, connection_info: dict[str, Any], instance: objects.Instance, mountpoint: str,
                      disk_bus: str | None = None, device_type: str | None = None, encryption: Any = None) -> None:
        self._backend.volumes.attach(context, instance, volumeconfig.volume(connection_info, mountpoint, encryption))

    @translated()
    def detach_volume(self, context: Any, connection_info: dict[str, Any], instance: objects.Instance, mountpoint: str,
                      encryption: Any = None) -> None:
        self._backend.volumes.detach(instance, mountpoint)

    @translated()
    def swap_volume(self, context: Any, old_connection_info: dict[str, Any], new_connection_info: dict[str, Any],
                    instance: objects.Instance, mountpoint: str, resize_to: int) -> None:
        self._backend.volumes.swap(instance, mountpoint, old_connection_info,
                                   volumeconfig.volume(new_connection_info, mountpoint))

    @translated()
    def extend_volume(self, context: Any, connection_info: dict[str, Any], instance: objects.Instance,
                      requested_size: int) -> None:
        self._backend.volumes.extend(connection_info, requested_size)

    def default_root_device_name(self, instance: objects.Instance, image_meta: objects.ImageMeta, root_bdm: Any) -> str:
        return volumeconfig.ROOT

    def default_device_names_for_instance(self, instance: objects.Instance, root_device_name: str,
                                          *block_device_lists: Any) -> None:
        volumeconfig.name_missing(instance, root_device_name, [disk for disks in block_device_lists for disk in disks])

    def get_device_name_for_instance(self, instance: objects.Instance, bdms: Any, block_device_obj: Any) -> str:
        return volumeconfig.name_for(instance, bdms, block_device_obj.device_name)

    # Console and diagnostics

    @translated()
    def get_console_output(self, context: Any, instance: objects.Instance) -> bytes:
        return console.output(self._backend.engine, instance, self._backend.states.require(instance))

    @translated()
    def get_serial_console(self, context: Any, instance: objects.Instance) -> ConsoleSerial:
        return self._backend.consoles.serial(instance)

    @translated()
    def get_diagnostics(self, instance: objects.Instance) -> dict[str, int | str]:
        name = self._backend.states.require(instance).name
        return diagnostics.plain(self._backend.engine.metrics(name), self._backend.flavor_devices.faults(instance))

    @translated()
    def get_instance_diagnostics(self, instance: objects.Instance) -> Any:
        state, engine = self._backend.states.require(instance), self._backend.engine
        return diagnostics.standard(instance, state, engine.metrics(state.name),
                                    power_state.STATE_MAP[POWER_STATES[state.status]], engine.server().name,
                                    faults=self._backend.flavor_devices.faults(instance))

    # Guest

    @translated()
    def set_admin_password(self, instance: objects.Instance, new_pass: str) -> None:
        password.set_admin(self._backend.engine, self._backend.states.require(instance).name,
                           objects.ImageMeta.from_instance(instance), new_pass)

    # Host

    def get_available_nodes(self, refresh: bool = False) -> list[str]:
        return [self._nodename]

    @translated()
    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        found = self._backend.resources.available(nodename)
        self._pci.look(found["pci_passthrough_devices"])
        return found

    @translated()
    def update_provider_tree(self, provider_tree: Any, nodename: str, allocations: Any = None) -> None:
        provider.update(provider_tree, nodename, self._backend.resources.look())
        self._backend.device_providers.update(provider_tree, nodename)
        self._pci.refresh()
        self._backend.deferred.started()  # nova calls this first at the end of its start
        self._pci.free_unrequested(nova_context.get_admin_context(), self._nodename)

    def get_host_uptime(self) -> str:
        return hostinfo.uptime(self._backend.host)

    def get_host_cpu_stats(self) -> dict[str, int]:
        return hostinfo.cpu_stats(self._backend.host)

    def get_host_ip_addr(self) -> str:
        return str(nova.conf.CONF.my_ip)
