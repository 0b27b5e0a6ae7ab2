# SPDX-License-Identifier: Apache-2.0
"""Collect the resources that nova requests for a server besides its root disk, in one value."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from nova.network import model


@dataclasses.dataclass(frozen=True)
class RequestedResources:
    """Hold a server's ports, disks, accelerator requests and allocations as passed by nova.

    :ivar block_device_info: volumes, ephemeral and swap disks (nova.virt.driver.get_block_device_info)
    :ivar accel_info: bound accelerator requests, as Cyborg describes them
    """

    network_info: model.NetworkInfo = dataclasses.field(default_factory=model.NetworkInfo)
    block_device_info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    accel_info: Sequence[Mapping[str, Any]] = ()
    allocations: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, network_info: model.NetworkInfo | None = None, block_device_info: Mapping[str, Any] | None = None,
           accel_info: Sequence[Mapping[str, Any]] | None = None, allocations: Mapping[str, Any] | None = None
           ) -> "RequestedResources":
        """Build the value from nova's arguments, where None means nothing."""
        # Compare with None only: the truth value of an asynchronous network_info would wait for neutron.
        return cls(model.NetworkInfo() if network_info is None else network_info, block_device_info or {},
                   accel_info or (), allocations or {})


NOTHING = RequestedResources()


def prefix_of(vif: model.VIF) -> str:
    """Return the prefix of the name of the port's interface in the container."""
    return "ib" if vif["type"] == model.VIF_TYPE_IB_HOSTDEV else "eth"
