# SPDX-License-Identifier: Apache-2.0
"""Attach a server's Cinder volumes: connected on the host, and block devices in the container."""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova import exception, objects
from nova.virt import block_device
from oslo_concurrency import lockutils
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import ContainerState, Engine
from containerhost.engines.spec import BlockDevice
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from nova_lxd_ext.hardware import tags
from nova_lxd_ext.hardware.tags import PublishTags
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.storage import connections, volumeconfig
from nova_lxd_ext.storage.connections import Connection
from nova_lxd_ext.storage.connectors import BackendError, Connectors
from nova_lxd_ext.storage.volumeconfig import Volume
from nova_lxd_ext.storage.volumecopy import Copier

LOG = logging.getLogger(__name__)


class Volumes(AttachmentProvider):
    """Connect, attach, swap, extend and disconnect the Cinder volumes of servers."""

    def __init__(self, engine: Engine, states: States, connectors: Connectors, copier: Copier,
                 publish_tags: PublishTags = tags.refresh) -> None:
        self._engine = engine
        self._states = states
        self._connectors = connectors
        self._copier = copier
        self._publish_tags = publish_tags

    # Boot, start and deletion.

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse volumes that a container cannot have.

        :raises SpecError:
        """
        volumeconfig.require_no_swap(instance.flavor, requested.block_device_info)
        volumeconfig.volumes(requested.block_device_info)

    def attach_all(self, instance: objects.Instance, requested: RequestedResources,
                   view: HostView) -> tuple[BlockDevice, ...]:
        """Connect the server's volumes, and disconnect a volume that a killed swap left at a volume's path.

        :raises VolumeAttachFailed:
        """
        found = tuple(self._connect(instance.uuid, volume) for volume
                      in volumeconfig.volumes(requested.block_device_info))
        for disk in found:
            # Except those of the same source: when Cinder migrates a volume, the new one gets the id of the old one.
            self._disconnect_all(instance.uuid, (other for other in self._at(instance, disk.path)
                                                 if other.volume != disk.name and other.source != disk.source))
        return found

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        self._disconnect_all(instance.uuid, connections.of(instance.uuid))

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        for server in set(connections.servers()) - {labels.uuid(state.labels) for state in alive}:
            self._disconnect_all(server, connections.of(server))

    def restore_fenced(self) -> None:
        """Unfence, at the driver's start, volumes that a killed nova-compute was detaching or swapping."""
        for complaint in self._engine.restore_fenced():
            LOG.error("Remains of an interrupted nova-compute: %s", complaint)

    # Hot-plug.

    def attach(self, context: Any, instance: objects.Instance, volume: Volume) -> None:
        """Connect a volume, and attach it to the server's container.

        :raises VolumeAttachFailed: nothing was changed
        """
        self._states.require(instance)
        with Rollback(f"attaching volume {volume.id} to server {instance.uuid}") as undo:
            disk = self._connect(instance.uuid, volume)
            undo.on_error("disconnect it", self._disconnect, instance.uuid, volume.id, force=True)
            self._engine.attach(instance.name, disk)
            undo.on_error("take it from the container", self._engine.detach, instance.name, disk)
            self._publish_tags(context, instance, instance.get_network_info())
            instance.save()

    def detach(self, instance: objects.Instance, path: str) -> None:
        """Detach the volume at ``path`` from the container, and disconnect it.

        :raises DeviceDetachFailed: a process in the container uses it; it stays
        :raises DiskNotFound: the server has none there
        """
        for connection in self._at(instance, path):
            if self._states.find(instance) is not None:
                with unused(path):
                    self._engine.detach(instance.name, part(connection))
            self._disconnect(instance.uuid, connection.volume)

    def swap(self, instance: objects.Instance, path: str, connection_info: Mapping[str, Any], new: Volume) -> None:
        """Copy the volume at ``path`` to another one, which replaces it; the container cannot open it during the copy.

        :raises DeviceDetachFailed: a process in the container uses it; it stays
        :raises DiskNotFound: the server has none there
        :raises VolumeAttachFailed: the new one cannot be connected
        """
        found, volume = self._at(instance, path), block_device.get_volume_id(connection_info)
        old = next((connection for connection in found if connection.volume == volume), found[0])
        self._states.require(instance)
        with Rollback(f"swapping volume {old.volume} of server {instance.uuid} for {new.id}") as undo:
            disk = self._connect(instance.uuid, new)
            undo.on_error("disconnect the new one", self._disconnect, instance.uuid, new.id, force=True)
            with unused(path), self._engine.fenced(instance.name, part(old)):
                self._copier.copy(old.source, disk.source)
                self._engine.detach(instance.name, part(old))
                undo.on_error("give the old one back", self._engine.attach, instance.name, part(old))
                self._engine.attach(instance.name, disk)
        for connection in found:
            if connection.volume != new.id:
                self._disconnect(instance.uuid, connection.volume)

    def extend(self, connection_info: Mapping[str, Any], size: int) -> None:
        """Update the size of a volume on the host, and thereby in the container.

        :param size: its new size in bytes, from Cinder
        :raises BackendError: the host does not see that size
        """
        volume = block_device.get_volume_id(connection_info)
        found = self._connectors.extend(volume, connection_info["driver_volume_type"], connection_info["data"])
        if found is not None and found < size:
            raise BackendError(reason=(f"Volume {volume} has {size} bytes by Cinder, but its host sees {found}: "
                                       "check its backend, or detach and attach it."))

    # Host.

    def _at(self, instance: objects.Instance, path: str) -> tuple[Connection, ...]:
        """Find the connection by the volume's path: Cinder gives a volume that it migrated the old one's id."""
        found = tuple(connection for connection in connections.of(instance.uuid) if connection.path == path)
        if not found:
            raise exception.DiskNotFound(location=f"{path} of server {instance.uuid}")
        return found

    def _connect(self, server: str, volume: Volume) -> BlockDevice:
        connection = Connection(volume.id, volume.kind, volume.data, volume.path)
        with lock(volume.id), Rollback(f"connecting volume {volume.id}") as undo:
            if connections.find(server, volume.id) is None:
                connections.keep(server, connection)
                undo.on_error("forget it", connections.forget, server, volume.id)
            device = self._connectors.connect(volume.id, volume.kind, volume.data,
                                              functools.partial(self._disconnect_late, connection))
            connection = dataclasses.replace(connection, device=device)
            connections.keep(server, connection)
        return part(connection)

    def _disconnect_late(self, connection: Connection, device: Mapping[str, Any]) -> None:
        """Disconnect a volume that was connected after its attachment failed, unless a server here uses it.

        A later attachment may have succeeded, or be in progress."""
        with lock(connection.volume):
            if connections.others("", connection.volume):
                LOG.warning("Volume %s was connected after the timeout and stays connected: a server uses it",
                            connection.volume)
                return
            self._connectors.disconnect(connection.volume, connection.kind, connection.data, device, force=True)

    def _disconnect(self, server: str, volume_id: str, force: bool = False) -> None:
        """Disconnect a volume unless another server of this host uses it. Idempotent."""
        with lock(volume_id):
            connection = connections.find(server, volume_id)
            if connection is None:
                return
            if not connections.others(server, volume_id):
                self._connectors.disconnect(volume_id, connection.kind, connection.data, connection.device, force)
            connections.forget(server, volume_id)

    def _disconnect_all(self, server: str, found: Iterable[Connection]) -> None:
        """Disconnect volumes of a server; remains due to a missing backend are logged."""
        for connection in found:
            try:
                self._disconnect(server, connection.volume, force=True)
            except exception.NovaException as error:
                LOG.error("Volume %s may still be connected to this host: %s", connection.volume, error,
                          instance_uuid=server)


def part(connection: Connection) -> BlockDevice:
    return BlockDevice(connection.volume, connection.source, connection.path)


def lock(volume_id: str) -> contextlib.AbstractContextManager[Any]:
    """Serialize connections and disconnections of a volume, which servers of a host may share."""
    return lockutils.lock(f"lxd-volume-{volume_id}")


@contextlib.contextmanager
def unused(path: str) -> Iterator[None]:
    """Report a device in use, or a failure of the host, as nova's DeviceDetachFailed.

    :raises DeviceDetachFailed: the device of the block is in use, or the host failed
    """
    try:
        yield
    except (errors.DeviceInUse, errors.HostActionFailed) as error:
        raise exception.DeviceDetachFailed(device=path, reason=str(error)) from error
