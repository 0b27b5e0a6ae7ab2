"""What a server is to have by nova's records, for the calls to which nova passes less than that."""

from typing import Any

from nova import objects
from nova.virt import driver

from nova_lxd_ext.server.wanted import Wanted


def wanted(context: Any, instance: objects.Instance) -> Wanted:
    volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
    return Wanted.of(instance.get_network_info(), driver.get_block_device_info(instance, volumes))
