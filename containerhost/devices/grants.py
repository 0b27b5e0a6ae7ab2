# SPDX-License-Identifier: Apache-2.0
"""Define a grant: what it means for a container to have a device, in engine-independent terms.

A vendor plug-in turns a :class:`~containerhost.devices.model.Device` into a Grant; an engine turns the Grant into
configuration, both at boot and while the container runs. The Grant is complete: the container must not see anything
else.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from containerhost.devices.model import CharNode, Device, LinkLayer, NodeUse
from containerhost.linux.network.ipconfig import IpConfig

#: Groups of libraries that the driver of a GPU may bring along.
GPU_CAPABILITIES = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video")


@dataclasses.dataclass(frozen=True)
class GrantOptions:
    """Hold the options of a grant that the cloud may choose.

    :ivar netdev_name: name of the interface in the container (``ib0``, ``eth1``)
    :ivar management_nodes: give umad and issm too (the operator's choice, never a tenant's)
    :ivar memlock: locked-memory limit an RDMA container gets: ``unlimited`` or bytes
    :ivar node_guid: GUID to give an InfiniBand VF; None keeps the one it has
    :ivar port_guid: likewise for its port
    :ivar mac: MAC that its physical function makes an Ethernet VF use; None leaves the VF free to choose
    :ivar vlan: VLAN that comes with ``mac``; 0 is none
    :ivar spoof_check: comes with ``mac``: whether the card drops what is sent from other MACs; None leaves it
    :ivar trust: likewise, whether the VF may be promiscuous and the like
    :ivar max_tx_rate: Mbit/s that the card lets an Ethernet VF send; None is no limit
    :ivar setup: addresses of the interface, for engines that set them from outside; None leaves it to the container
    """

    netdev_name: str | None = None
    management_nodes: bool = False
    memlock: str = "unlimited"
    gpu_capabilities: frozenset[str] = frozenset()
    node_guid: str | None = None
    port_guid: str | None = None
    mac: str | None = None
    vlan: int = 0
    spoof_check: bool | None = None
    trust: bool | None = None
    max_tx_rate: int | None = None
    setup: IpConfig | None = None


@dataclasses.dataclass(frozen=True)
class NetdevGrant:
    """Describe an interface that moves into the container.

    :ivar host_name: its name on the host, to which it returns
    """

    host_name: str
    name: str
    link_layer: LinkLayer
    node_guid: str | None = None
    port_guid: str | None = None
    setup: IpConfig | None = None


def netdev_names(device: Device, options: GrantOptions) -> tuple[str, ...]:
    """Return the names of a network function's interfaces in the container.

    The requested name is that of the first port; those of further ports are derived from it as udev does
    (systemd.net-naming-scheme, ``d<dev_port>``)."""
    if options.netdev_name is None:
        return device.netdevs
    return (options.netdev_name, *(f"{options.netdev_name}d{port}" for port in range(1, len(device.netdevs))))


@dataclasses.dataclass(frozen=True)
class GpuGrant:
    """Mark the grant of a GPU or slice, with the driver's libraries that it needs.

    :ivar libraries: driver capabilities whose libraries must be in the container; empty for none
    """

    libraries: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Grant:
    """Hold everything that a container gets with one device: nodes, interfaces, environment and limits.

    :ivar nodes: every character node the container may open for this device
    :ivar other_netdevs: for a function with several ports, the interfaces of all ports but the first
    :ivar limits: kernel resource limits that must hold from the container's start
    :ivar provenance: when the device was handed over last, and how it was cleaned; None if that is not known
    """

    device: Device
    nodes: tuple[CharNode, ...] = ()
    netdev: NetdevGrant | None = None
    other_netdevs: tuple[NetdevGrant, ...] = ()
    gpu: GpuGrant | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    provenance: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def netdevs(self) -> tuple[NetdevGrant, ...]:
        return (self.netdev, *self.other_netdevs) if self.netdev else ()

    @property
    def own_nodes(self) -> tuple[CharNode, ...]:
        return tuple(node for node in self.nodes if node.use is not NodeUse.SHARED)
