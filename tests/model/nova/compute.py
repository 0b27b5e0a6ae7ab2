# SPDX-License-Identifier: Apache-2.0
"""Nova's real manager over the real driver. What it asks of other services is answered from memory; in place of the
resource tracker is a small one."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import oslo_messaging as messaging
from nova import context as nova_context
from nova import exception, objects
from nova.compute import manager, vm_states
from nova.network import model as network_model

from containerhost import errors
from containerhost.engines.contract import Status
from nova_lxd_ext import driver
from tests.model.nova.cloud import Cloud, pci_device, request_of

RESCUE_IMAGE = "rescue"
ENDED = frozenset({"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"})


class Tracker:
    """In place of nova's ResourceTracker: where servers are, and which PCI devices are theirs."""

    def __init__(self, cloud: Cloud, host: Any) -> None:
        self._cloud, self._host = cloud, host

    @property
    def pci_tracker(self) -> Any:
        devices = []
        for address in self._host.devices:
            uuid, request = self._cloud.pci.get((self._host.name, address), (None, ""))
            devices.append(pci_device(address, self._host.node.id, request, uuid,
                                      (self._host.name, address) in self._cloud.coming))
        return SimpleNamespace(pci_devs=devices, free_device=self._free, set_hvdevs=lambda devices: None, claims={})

    def _free(self, device: Any, instance: objects.Instance) -> None:
        self._cloud.step()
        if self._cloud.pci.get((self._host.name, device.address), (None,))[0] == instance.uuid:
            del self._cloud.pci[self._host.name, device.address]
            self._cloud.coming.discard((self._host.name, device.address))

    def _take(self, uuid: str, requests: objects.InstancePCIRequests) -> list[objects.PciDevice]:
        self._cloud.step()
        wanted = [request.request_id for request in requests.requests for _ in range(request.count)]
        free = [name for name in self._host.offered if (self._host.name, name) not in self._cloud.pci]
        if len(free) < len(wanted):
            raise exception.ComputeResourcesUnavailable(reason="Claim pci failed")
        taken = list(zip(free, wanted, strict=False))
        self._cloud.pci.update({(self._host.name, address): (uuid, request) for address, request in taken})
        return [pci_device(address, self._host.node.id, request, uuid) for address, request in taken]

    @contextlib.contextmanager
    def _claim(self, abort: Callable[[], None], migration: Any = None) -> Iterator[Any]:
        try:
            yield SimpleNamespace(migration=migration)
        except Exception:
            abort()
            raise

    def instance_claim(self, context: Any, instance: objects.Instance, nodename: str, allocations: Any,
                       limits: Any = None) -> Any:
        def abort() -> None:
            self._free_all(instance)
            instance.host = instance.node = instance.compute_id = None
            instance.save()

        instance.host = instance.launched_on = self._host.name
        instance.node, instance.compute_id = self._host.name, self._host.node.id
        instance.save()
        taken = self._take(instance.uuid, instance.pci_requests)
        instance.pci_devices = objects.PciDeviceList(objects=taken)
        return self._claim(abort)

    def resize_claim(self, context: Any, instance: objects.Instance, flavor: objects.Flavor, nodename: str,
                     migration: objects.Migration, allocations: Any, image_meta: Any = None, limits: Any = None) -> Any:
        migration.dest_compute = migration.dest_node = migration.dest_host = self._host.name
        migration.dest_compute_id, migration.status = self._host.node.id, "pre-migrating"
        migration.save()
        new = request_of(gpus_of(flavor), instance.uuid, self._cloud.new_uuid())
        taken = self._take(instance.uuid, new)
        instance.migration_context = objects.MigrationContext(
            instance_uuid=instance.uuid, migration_id=migration.id, old_numa_topology=None, new_numa_topology=None,
            old_pci_devices=instance.pci_devices, new_pci_devices=objects.PciDeviceList(objects=taken),
            old_pci_requests=instance.pci_requests, new_pci_requests=new, old_resources=None, new_resources=None)
        instance.save()

        def abort() -> None:
            self._drop(instance, "new_")
            instance.drop_migration_context()
        return self._claim(abort, migration)

    def rebuild_claim(self, context: Any, instance: objects.Instance, nodename: str, allocations: Any,
                      limits: Any = None, image_meta: Any = None, migration: Any = None) -> Any:
        return self.resize_claim(context, instance, instance.flavor, nodename, migration, allocations)

    def _drop(self, instance: objects.Instance, prefix: str) -> None:
        moved = instance.migration_context
        for device in getattr(moved, f"{prefix}pci_devices") if moved else ():
            if device.compute_node_id == self._host.node.id:
                self._free(device, instance)

    def drop_move_claim_at_source(self, context: Any, instance: objects.Instance, migration: Any) -> None:
        migration.status = "confirmed"
        migration.save()
        self._drop(instance, "old_")
        instance.drop_migration_context()

    def drop_move_claim_at_dest(self, context: Any, instance: objects.Instance, migration: Any) -> None:
        migration.status = "reverted"
        migration.save()
        self._drop(instance, "new_")
        instance.revert_migration_context()
        instance.save(expected_task_state=["resize_reverting"])

    # Live migration: nova claims devices on the destination beside those of the source

    def claim_pci_devices(self, context: Any, requests: objects.InstancePCIRequests, numa: Any
                          ) -> list[objects.PciDevice]:
        taken = self._take(requests.instance_uuid, requests)
        self._cloud.coming |= {(self._host.name, device.address) for device in taken}
        return taken

    def allocate_pci_devices_for_instance(self, context: Any, instance: objects.Instance) -> None:
        self._cloud.step()
        self._cloud.coming -= set(self._of(instance))

    def free_pci_device_claims_for_instance(self, context: Any, instance: objects.Instance) -> None:
        for place in set(self._of(instance)) & self._cloud.coming:
            self._free(SimpleNamespace(address=place[1]), instance)

    def free_pci_device_allocations_for_instance(self, context: Any, instance: objects.Instance) -> None:
        for place in set(self._of(instance)) - self._cloud.coming:
            self._free(SimpleNamespace(address=place[1]), instance)

    def _of(self, instance: objects.Instance) -> list[tuple[str, str]]:
        return [place for place, (uuid, _) in self._cloud.pci.items()
                if place[0] == self._host.name and uuid == instance.uuid]

    def get_node_by_name(self, name: str) -> objects.ComputeNode:
        return self._cloud.nodes[name]

    def finish_evacuation(self, instance: objects.Instance, node: Any, migration: Any) -> None:
        instance.apply_migration_context()
        instance.host, instance.node, instance.compute_id = self._host.name, self._host.name, self._host.node.id
        instance.save()
        instance.drop_migration_context()
        if migration:
            migration.status = "done"
            migration.save()

    def delete_allocation_for_evacuated_instance(self, context: Any, instance: objects.Instance, node: Any,
                                                 node_type: str = "source") -> None:
        self._cloud.placement.remove_provider_tree_from_instance_allocation(context, instance.uuid,
                                                                            self._host.node.uuid)

    def delete_allocation_for_shelve_offloaded_instance(self, context: Any, instance: objects.Instance) -> None:
        self._cloud.placement.delete_allocation_for_instance(context, instance.uuid)

    def update_usage(self, context: Any, instance: objects.Instance, nodename: Any) -> None:
        if instance.vm_state in (vm_states.DELETED, vm_states.SHELVED_OFFLOADED):
            self._free_all(instance)

    def _free_all(self, instance: objects.Instance) -> None:
        for (host, address), (uuid, _) in tuple(self._cloud.pci.items()):
            if host == self._host.name and uuid == instance.uuid:
                self._free(SimpleNamespace(address=address), instance)

    def update(self) -> None:
        """Free devices of servers that neither are here nor move, and what deleted servers hold in Placement, as nova
        does in update_available_resource."""
        context = nova_context.get_admin_context()
        for uuid in self._cloud.placement.get_allocations_for_resource_provider(context, self._host.node.uuid
                                                                                ).allocations:
            if uuid in self._cloud.deleted:
                self._cloud.placement.delete_allocation_for_instance(context, uuid)
        here = {uuid for uuid, stored in self._cloud.instances.items() if stored.host == self._host.name}
        here |= {move.instance_uuid for move in self._cloud.migrations_by(None, {"host": self._host.name})
                 if move.status not in ENDED}
        for (host, address), (uuid, _) in tuple(self._cloud.pci.items()):
            if host == self._host.name and uuid not in here:
                self._free(SimpleNamespace(address=address), SimpleNamespace(uuid=uuid))
        self._host.offered = tuple(name for name, device in self._host.devices.items() if device.healthy)


class Driver(driver.LXDDriver):
    """Note errors that are neither nova's nor the host's: nova would wrap them."""

    def __init__(self, virtapi: Any, defects: list[BaseException]) -> None:
        super().__init__(virtapi)
        for name in vars(driver.LXDDriver):
            if callable(getattr(self, name)) and not name.startswith("_"):
                setattr(self, name, functools.partial(self._noting, getattr(self, name), defects))

    @staticmethod
    def _noting(method: Callable[..., Any], defects: list[BaseException], *args: Any, **more: Any) -> Any:
        try:
            return method(*args, **more)
        except (exception.NovaException, errors.ContainerHostError, NotImplementedError, messaging.MessagingTimeout):
            raise
        except Exception as error:
            defects.append(error)
            raise


class Absent:
    """A service that is told things, and has nothing to answer."""

    def __getattr__(self, name: str) -> "Absent":
        return self

    def __call__(self, *args: Any, **more: Any) -> "Absent":
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Networks(Absent):
    """Neutron, with no ports."""

    def get_instance_nw_info(self, *args: Any, **more: Any) -> network_model.NetworkInfo:
        return network_model.NetworkInfo()


class Compute(manager.ComputeManager):
    """nova-compute's manager, with other services' answers from memory."""

    def __init__(self, cloud: Cloud, host: Any) -> None:
        self.cloud = cloud
        self.host = host.name
        self._hosts = host.hosts
        self.reportclient = cloud.placement
        self.compute_rpcapi = cloud.rpc
        self.volume_api = self.notifier = self.instance_events = self.share_manager = Absent()
        self.compute_task_api = Absent()
        self.image_api = SimpleNamespace(delete=lambda context, image: cloud.images.discard(image),
                                         get=lambda context, image, **_: {"id": image, "properties": {}},
                                         generate_image_url=lambda *_: "")
        self.network_api = Networks()
        self._build_semaphore = self._snapshot_semaphore = contextlib.nullcontext()
        self._pending_dest_resizes: dict[str, Any] = {}
        self._pending_dest_live_migrations: dict[str, Any] = {}
        self._waiting_live_migrations: dict[str, Any] = {}
        self.virtapi = SimpleNamespace(wait_for_instance_event=lambda *_, **__: contextlib.nullcontext())
        self.rt = Tracker(cloud, host)
        self.updates = False
        self.driver = Driver(SimpleNamespace(_compute=self), cloud.defects)

    def _get_nodes(self, context: Any) -> dict[str, Any]:
        node = self.cloud.nodes[self.host]
        return {node.uuid: node}

    def _build_networks_for_instance(self, *args: Any, **more: Any) -> network_model.NetworkInfo:
        return network_model.NetworkInfo()

    def _prep_block_device(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {}

    def _get_instance_block_device_info(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {"block_device_mapping": []}

    def _get_compute_info(self, context: Any, host: str, nodename: str | None = None) -> objects.ComputeNode:
        return self.cloud.nodes[host]

    def _get_accel_info(self, *args: Any) -> list[Any]:
        return []

    def _update_bdm_for_swap_to_finish_resize(self, *args: Any, **more: Any) -> list[Any]:
        return []

    def _terminate_volume_connections(self, context: Any, instance: objects.Instance, bdms: Any) -> None:
        if any(host.engine.statuses.get(instance.name) is Status.RUNNING
               for name, host in self._hosts.items() if name != self.host):
            self.cloud.defects.append(AssertionError(
                f"{self.host} lets volumes of {instance.name} be disconnected, which runs on another host"))

    def _get_rescue_image(self, *args: Any) -> objects.ImageMeta:
        return objects.ImageMeta(id=RESCUE_IMAGE, name=RESCUE_IMAGE, properties=objects.ImageMetaProps())

    def _is_instance_storage_shared(self, context: Any, instance: objects.Instance, host: str) -> bool:
        return host == self.host

    def _reschedule_resize_or_reraise(self, context: Any, instance: Any, exc_info: Any, *args: Any) -> None:
        raise exc_info[1]

    def update_available_resource(self, context: Any, startup: bool = False) -> None:
        """Do nothing: the machine does it at its own times. Nova waits for itself if its driver asks for it in one."""
        if self.updates:
            self.cloud.defects.append(AssertionError(f"{self.host} updates its resources within an update"))

    def _start_recorded_task(self, executor: Any, name: str, instance: objects.Instance, context: Any,
                             function: Callable[..., Any], *args: Any) -> None:
        function(*args)

    def forget(self, context: Any, instance: objects.Instance) -> None:
        """Take a cast of another host's driver."""
        self.cloud.current.receiver.forget(context, instance)


def _silent(*args: Any, **more: Any) -> None:
    """Do nothing: nova tells others of it."""


for _name in ("_ensure_existing_node_identity", "_check_for_host_rename", "init_virt_events", "_record_task_start",
              "_record_task_end", "_default_block_device_names", "_validate_instance_group_policy",
              "_cleanup_allocated_networks", "_cleanup_volumes", "_try_deallocate_network", "_delete_dangling_bdms",
              "_clean_instance_console_tokens", "_complete_deletion_vtpm", "_notify_about_instance_usage",
              "_update_scheduler_instance_info", "_delete_scheduler_instance_info", "_send_prep_resize_notifications",
              "_send_resize_instance_notifications", "_send_finish_resize_notifications", "_check_trusted_certs",
              "_notify_instance_rebuild_error", "_update_volume_attachments",
              "_complete_volume_attachments", "_build_failed", "_build_succeeded"):
    setattr(Compute, _name, _silent)


def gpus_of(flavor: objects.Flavor) -> int:
    return int(flavor.extra_specs.get("pci_passthrough:alias", "gpu:0").partition(":")[2])
