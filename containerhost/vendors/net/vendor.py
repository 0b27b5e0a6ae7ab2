# SPDX-License-Identifier: Apache-2.0
"""Support network functions: InfiniBand and RoCE cards, and any Ethernet card, with or without SR-IOV.

A virtual function is allocatable unless the host has addresses or routes on it. A physical function belongs to the
host unless it is down, unused and has no virtual functions enabled.
"""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from containerhost.devices import pci
from containerhost.devices.grants import Grant, GrantOptions, NetdevGrant, netdev_names
from containerhost.devices.health.rules import Finding, health_of
from containerhost.devices.model import Device, Kind, LinkLayer, NodeUse, PciFunction, Rdma, Role
from containerhost.devices.netdev import Found as Interfaces
from containerhost.devices.netdev import Netdevs
from containerhost.devices.rdma import Found, RdmaDevices
from containerhost.errors import DeviceHeld, DeviceUnhealthy, SpecError
from containerhost.linux.sysfs import Host
from containerhost.vendors import base
from containerhost.vendors.net import ports

# The kernel's rule for the name of an interface (dev_valid_name): 15 bytes, no slash, colon or white space.
_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.-]{1,15}")


class Net(base.Vendor):
    name: ClassVar[str] = "net"
    nodes: ClassVar[tuple[str, ...]] = ("infiniband/*",)
    tool: ClassVar[tuple[str, ...]] = ("ibv_devinfo",)
    pci_vendors: ClassVar[Mapping[str, str]] = {
        "1077": "QLogic Corp.", "8086": "Intel Corporation", "15b3": "Mellanox Technologies"}

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._netdevs = Netdevs(host)
        self._rdma_devices = RdmaDevices(host)
        self._cables: dict[str, str | None] = {}

    @classmethod
    def claims(cls, function: PciFunction) -> bool:
        return function.class_code.startswith(pci.NETWORK)

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        found = self._netdevs.of(function.directory)
        netdev, away = found.netdev, found.away and function.driver is not None
        side = self._rdma_devices.of(function.directory)
        complaints = function.health + side.health
        if netdev is None and not away and not function.health:
            complaints += (f"driver {function.driver} made no network interface; see the kernel's log "
                           "(InfiniBand also needs module ib_ipoib)",)
        link_layer = (netdev and netdev.link_layer) or self._link_layer(function, side.rdma)
        ways = health_of(self._ways(function, side, found, link_layer))
        return (base.device(
            function, Kind.NET, self.name, netdev=netdev.name if netdev else None, netdev_away=away,
            other_netdevs=tuple(other.name for other in found.netdevs[1:]),
            mac=netdev.mac if netdev else None, rdma=side.rdma, nodes=side.nodes, link_layer=link_layer,
            health=complaints + ways.complaints, outside=ways.complaints, notes=ways.notes,
            host_use=base.enabled_functions(function) + _host_use(function, found)),)

    def _ways(self, function: PciFunction, side: Found, found: Interfaces, link_layer: LinkLayer
              ) -> Iterator[Finding]:
        """Return the findings about the function's connection to its network."""
        if side.rdma:
            yield from ports.cable_findings(link_layer, self._cable(function, side), own=function.parent is None)
            yield from ports.port_findings(link_layer, side.rdma.port_state, side.phys_state,
                                           virtual=function.parent is not None)
        if link_layer is LinkLayer.ETHERNET and function.parent is None:
            yield from ports.carrier_findings([self.host.text(f"{netdev.directory}/carrier")
                                               for netdev in found.netdevs])

    def _cable(self, function: PciFunction, side: Found) -> str | None:
        """Return the state of the physical function's port, read once for all of its VFs."""
        if function.parent is None:
            return side.phys_state
        if function.parent not in self._cables:
            self._cables[function.parent] = self._rdma_devices.phys_state(pci.directory(self.host, function.parent))
        return self._cables[function.parent]

    def _link_layer(self, function: PciFunction, rdma: Rdma | None) -> LinkLayer:
        """Return the link layer of a function without an interface here: of its RDMA port, or typical for its class."""
        told = self._rdma_devices.link_layer(function.directory, rdma.ibdev) if rdma else None
        usual = LinkLayer.INFINIBAND if function.class_code.startswith(pci.INFINIBAND) else LinkLayer.ETHERNET
        return told or usual

    @classmethod
    def grant(cls, device: Device, options: GrantOptions) -> Grant:
        """Grant all interfaces, the verbs nodes if there are any, and the locked memory that verbs need.

        A running container has the interface, so to grant a device again (``netdev_away``) the caller must set
        ``device.netdev`` and ``device.other_netdevs`` from its own records.
        """
        base.refuse_host_use(device)
        if options.max_tx_rate is not None:
            _require_limitable(device, options.max_tx_rate)
        nodes = tuple(node for node in device.nodes
                      if options.management_nodes or node.use is not NodeUse.MANAGEMENT)
        limits = {"memlock": options.memlock} if device.rdma else {}
        netdev, *others = _netdev_grants(device, options)
        return Grant(device=device, nodes=nodes, netdev=netdev, other_netdevs=tuple(others), limits=limits)


def _host_use(function: PciFunction, found: Interfaces) -> tuple[str, ...]:
    """Return the host's uses of a function, considering all its interfaces."""
    if (uses := found.uses()) or function.role is Role.VF:
        return uses
    return tuple(f"{netdev.name} is up" for netdev in found.netdevs if netdev.up)


def _require_limitable(device: Device, rate: int) -> None:
    """Refuse a rate for a PF, and for IPoIB, whose driver lacks ``ndo_set_vf_rate``.

    :raises SpecError: the device is not a VF of an Ethernet card
    """
    if device.link_layer is LinkLayer.INFINIBAND:
        reason = "the kernel limits no InfiniBand function; use one of an Ethernet or RoCE card"
    elif device.role is not Role.VF:
        reason = "it is a whole card; use a virtual function of one"
    else:
        return
    raise SpecError(f"network function {device.id} cannot be limited to {rate} Mbit/s: {reason}")


def _netdev_grants(device: Device, options: GrantOptions) -> tuple[NetdevGrant, ...]:
    if device.netdev is None and device.netdev_away:
        raise DeviceHeld(f"device {device.id} cannot be given to a container: its interface is in another network "
                         "namespace, so another container has it; stop or detach that one first")
    if device.netdev is None:
        raise DeviceUnhealthy(f"device {device.id} cannot be given to a container: it has no network interface "
                              f"({'; '.join(device.health) or 'and no reason is known'})")
    if device.other_netdevs and (options.mac or options.node_guid or options.port_guid):
        raise SpecError(f"device {device.id} has {len(device.netdevs)} ports ({', '.join(device.netdevs)}), and the "
                        "MAC, VLAN or GUIDs of a cloud's port are those of one: use a function with one port for it")
    names = netdev_names(device, options)
    for name in names:
        if not _NAME.fullmatch(name):
            raise SpecError(f"interface name {name!r} for device {device.id} is not valid: use 1 to 15 letters, "
                            "digits, dots, dashes or underscores")
    return tuple(NetdevGrant(host_name=host_name, name=name, link_layer=device.link_layer or LinkLayer.ETHERNET,
                             node_guid=options.node_guid, port_guid=options.port_guid,
                             setup=options.setup if host_name == device.netdev else None)
                 for host_name, name in zip(device.netdevs, names, strict=True))
