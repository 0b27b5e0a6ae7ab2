# SPDX-License-Identifier: Apache-2.0
"""Find a server's requested resources in nova's records, for calls to which nova does not pass them."""

from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.virt import driver

from nova_lxd_ext.instance.requested import RequestedResources


def host() -> str:
    """Return nova's name of this compute host."""
    return str(nova.conf.CONF.host)


def placed(host: str) -> objects.InstanceList:
    """Return the servers that nova places on ``host``."""
    return objects.InstanceList.get_by_host(nova_context.get_admin_context(), host, expected_attrs=[])


def requested(context: Any, instance: objects.Instance) -> RequestedResources:
    volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
    return RequestedResources.of(instance.get_network_info(), driver.get_block_device_info(instance, volumes))
