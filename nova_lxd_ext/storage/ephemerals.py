# SPDX-License-Identifier: Apache-2.0
"""Manage a server's ephemeral disks: additional disks of the storage pool that exist as long as its container.

They are mounted at /ephemeral0, /ephemeral1 and so on. A container cannot create or mount file systems on a block
device, so they have the pool's.
"""

from collections.abc import Collection, Mapping
from typing import Any

from nova import objects
from nova.virt import driver
from oslo_log import log as logging
from oslo_utils import units

from containerhost import errors
from containerhost.engines.capabilities import Disk, DiskOffer, DiskTransfers, PoolDisks
from containerhost.engines.contract import ContainerState
from containerhost.engines.spec import PoolDisk
from containerhost.inventory.scan import HostView
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources

LOG = logging.getLogger(__name__)


class Ephemerals(AttachmentProvider):
    def __init__(self, disks: PoolDisks, transfers: DiskTransfers) -> None:
        self._disks = disks
        self._transfers = transfers

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse ephemeral disks that a container cannot have.

        :raises SpecError:
        """
        sizes(instance.flavor, requested.block_device_info)

    def attach_all(self, instance: objects.Instance, requested: RequestedResources,
                   view: HostView) -> tuple[PoolDisk, ...]:
        parts = []
        for volume, size in self._requested(instance, requested).items():
            self._disks.ensure(volume, size, {labels.UUID: instance.uuid})
            name = volume.removeprefix(f"{instance.name}-")
            parts.append(PoolDisk(name, self._disks.pool, volume, f"/{name}"))
        return tuple(parts)

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Do nothing: the disks exist as long as the container, which may be reassembled."""

    def revert_resize(self, instance: objects.Instance, requested: RequestedResources) -> None:
        sizes_wanted = self._requested(instance, requested)
        for disk in self._of(instance.uuid):
            if disk.name not in sizes_wanted:
                self._disks.delete(disk.name)
            elif disk.size > sizes_wanted[disk.name]:
                self._disks.resize(disk.name, sizes_wanted[disk.name])

    def end(self, server: str) -> None:
        for disk in self._of(server):
            self._disks.delete(disk.name)

    def _requested(self, instance: objects.Instance, requested: RequestedResources) -> dict[str, int]:
        """Return the bytes of each disk by name in the pool, in the order of the mount points."""
        return {f"{instance.name}-ephemeral{place}": size
                for place, size in enumerate(sizes(instance.flavor, requested.block_device_info))}

    def _of(self, server: str) -> tuple[Disk, ...]:
        return tuple(disk for disk in self._disks.all() if labels.uuid(disk.labels) == server)

    # Migration

    def names(self, instance: objects.Instance) -> tuple[str, ...]:
        """Return the server's disks on this host."""
        return tuple(disk.name for disk in self._of(instance.uuid))

    def offer(self, name: str, address: str) -> DiskOffer:
        return self._transfers.offer(name, address)

    def withdraw(self, instance: objects.Instance) -> None:
        for name in self.names(instance):
            self._transfers.withdraw(name)

    def receive(self, instance: objects.Instance, offer: DiskOffer, timeout: int) -> None:
        self._transfers.fetch(offer, {labels.UUID: instance.uuid}, timeout)

    # Start of the driver

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        present = {labels.uuid(state.labels) for state in alive}
        for disk in self._disks.all():
            owner = labels.uuid(disk.labels)
            if owner and owner not in present and not disk.used:
                LOG.warning("Removed disk %s of a server that has no container", disk.name, instance_uuid=owner)
                self._disks.delete(disk.name)


def sizes(flavor: objects.Flavor, block_device_info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the bytes of each ephemeral disk: the requested ones, otherwise the flavor's one.

    :raises SpecError: one of them is not supported
    """
    asked = driver.block_device_info_get_ephemerals(block_device_info)
    for disk in asked:
        if disk["guest_format"]:
            raise errors.SpecError(
                f"An ephemeral disk is requested with file system {disk['guest_format']}, but a container gets that of "
                "the host's storage pool: remove the format.")
        if disk["encrypted"]:
            raise errors.SpecError("An encrypted ephemeral disk is requested, which the host's storage pool does "
                                   "not support: use a flavor or image without ephemeral encryption.")
    whole = flavor.ephemeral_gb
    return tuple((disk["size"] or whole) * units.Gi for disk in asked) if asked else (whole * units.Gi,) * bool(whole)
