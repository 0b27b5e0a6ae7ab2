"""A server's ephemeral disks: further disks of the storage pool that live as long as its container.

The container sees them as the folders /ephemeral0, /ephemeral1 and so on. A container cannot make or mount file systems
of its own on a block device, so they come with the pool's.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from nova import objects
from nova.virt import driver
from oslo_utils import units

from containerhost import errors
from containerhost.engines import ContainerState
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.spec import PoolDisk
from nova_lxd_ext import labels
from nova_lxd_ext.outfit import Supplier
from nova_lxd_ext.wanted import Wanted

LOG = logging.getLogger(__name__)


class Ephemerals(Supplier):
    def __init__(self, disks: PoolDisks) -> None:
        self._disks = disks

    def require_possible(self, instance: objects.Instance, wanted: Wanted) -> None:
        """:raises SpecError:"""
        sizes(instance.flavor, wanted.block_device_info)

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted) -> tuple[PoolDisk, ...]:
        parts = []
        for place, size in enumerate(sizes(instance.flavor, wanted.block_device_info)):
            name = f"ephemeral{place}"
            volume = f"{instance.name}-{name}"
            self._disks.ensure(volume, size, {labels.UUID: instance.uuid})
            parts.append(PoolDisk(name, self._disks.pool, volume, f"/{name}"))
        return tuple(parts)

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted) -> None:
        """What a container still has stays with it: nova may want to start it again."""
        for disk in self._disks.all():
            if labels.uuid(disk.labels) == instance.uuid and not disk.used:
                self._disks.delete(disk.name)

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        present = {labels.uuid(state.labels) for state in alive}
        for disk in self._disks.all():
            owner = labels.uuid(disk.labels)
            if owner and owner not in present and not disk.used:
                LOG.warning("Removed disk %s of server %s, which has no container", disk.name, owner)
                self._disks.delete(disk.name)


def sizes(flavor: objects.Flavor, block_device_info: Mapping[str, Any]) -> tuple[int, ...]:
    """Bytes of each ephemeral disk: those that the server was asked for with, else the flavor's one.

    :raises SpecError: one of them cannot be
    """
    asked = driver.block_device_info_get_ephemerals(block_device_info)
    for disk in asked:
        if disk["guest_format"]:
            raise errors.SpecError(
                f"An ephemeral disk is asked for with file system {disk['guest_format']}, but a container gets it with "
                "that of the host's storage pool: leave the format out.")
        if disk["encrypted"]:
            raise errors.SpecError("An encrypted ephemeral disk is asked for, which the host's storage pool cannot "
                                   "give: use a flavor or image without ephemeral encryption.")
    whole = flavor.ephemeral_gb
    return tuple((disk["size"] or whole) * units.Gi for disk in asked) if asked else (whole * units.Gi,) * bool(whole)
