"""Disks of a server beside its root disk. For now the place where they are refused, before anything changes."""

from typing import Any

from nova import exception, objects
from nova.virt import driver

from containerhost.spec import Part
from nova_lxd_ext.outfit import Supplier
from nova_lxd_ext.wanted import Wanted


class Volumes(Supplier):
    def require_possible(self, instance: objects.Instance, wanted: Wanted) -> None:
        """:raises BuildAbortException: when the server needs a disk beside the root disk made from its image"""
        disks = {
            "volumes": driver.block_device_info_get_mapping(wanted.block_device_info),
            "ephemeral disks": (driver.block_device_info_get_ephemerals(wanted.block_device_info)
                                or instance.flavor.ephemeral_gb),
            "a swap disk": instance.flavor.swap,
        }
        found = [name for name, present in disks.items() if present]
        if found:
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=(
                f"The server asks for {' and '.join(found)}; lxd.LXDDriver gives a root disk only. "
                f"Use a flavor without ephemeral and swap disks, and boot from an image without volumes."))

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted) -> tuple[Part, ...]:
        return ()

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted) -> None:
        """Nothing was ever connected."""
