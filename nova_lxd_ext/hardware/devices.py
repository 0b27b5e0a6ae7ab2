# SPDX-License-Identifier: Apache-2.0
"""Translate the devices that nova claimed for a server to allocation requests. Pure, given the inventory.

Nova's claim selects them; this module decides their names in the container and their GUIDs.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

from nova import objects

from containerhost.allocation.refusals import Request
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.inventory.scan import Inventory


@dataclasses.dataclass(frozen=True)
class Policy:
    """Hold the operator's options and the flavor's keys by which devices are granted.

    :ivar own_guids: generate GUIDs from the server's uuid; otherwise a VF keeps those of the host
    :ivar max_tx_rate: Mbit/s that each VF may send; None is no limit
    """

    gpu_capabilities: frozenset[str] = frozenset()
    memlock: str = "unlimited"
    management_nodes: bool = False
    own_guids: bool = True
    max_tx_rate: int | None = None


def claimed(instance: objects.Instance, node_id: int) -> tuple[str, ...]:
    """Return the addresses of the devices that nova claimed on this host for the server's flavor.

    They are in the order of the flavor; equal ones by address. The order decides which interface is ib0: it must not
    change while the server lives.

    A server that moves has devices on two hosts, and one that is resized those of both flavors: those of the other
    host or flavor do not count. Those of direct ports come with their ports.

    :param node_id: this host, as nova's records of devices name it
    """
    order = {request.request_id: place for place, request in enumerate(instance.pci_requests.requests)
             if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS}
    own = (device for device in instance.get_pci_devices()
           if device.compute_node_id == node_id and device.request_id in order)
    return tuple(device.address for device in sorted(
        own, key=lambda device: (order[device.request_id], device.address)))


def requests(server: str, names: Sequence[str], inventory: Inventory, policy: Policy, first_ethernet: int = 0,
             first_infiniband: int = 0) -> tuple[Request, ...]:
    """Return one request per device, in order.

    :param first_ethernet: number of the first ``ethN`` name that no port of the server has
    :param first_infiniband: likewise of ``ibN``
    :raises DeviceNotFound: a device is no longer on this host
    """
    devices = tuple(inventory.get(name) for name in names)
    interfaces = _netdev_names(devices, {"eth": first_ethernet, "ib": first_infiniband})
    return tuple(Request(device.id, _options(device, interface, f"{server}/{place}", policy))
                 for place, (device, interface) in enumerate(zip(devices, interfaces, strict=True)))


def _netdev_names(devices: Sequence[Device], following: dict[str, int]) -> list[str | None]:
    """Return the interfaces' names, ib0, ib1, … and eth0, eth1, …; None for a device without an interface."""
    names: list[str | None] = []
    for device in devices:
        if device.kind is not Kind.NET:
            names.append(None)
            continue
        prefix = "ib" if device.link_layer is LinkLayer.INFINIBAND else "eth"
        names.append(f"{prefix}{following[prefix]}")
        following[prefix] += 1
    return names


def _options(device: Device, name: str | None, seed: str, policy: Policy) -> GrantOptions:
    if device.kind is not Kind.NET:
        return GrantOptions(gpu_capabilities=policy.gpu_capabilities)
    takes_guids = device.link_layer is LinkLayer.INFINIBAND and device.role is Role.VF and policy.own_guids
    return GrantOptions(netdev_name=name, management_nodes=policy.management_nodes, memlock=policy.memlock,
                        node_guid=guid(f"{seed}/node") if takes_guids else None,
                        port_guid=guid(f"{seed}/port") if takes_guids else None, max_tx_rate=policy.max_tx_rate)


def guid(seed: str) -> str:
    """Return a GUID that depends only on the seed, so that a server keeps its own on any host.

    An EUI-64 marked locally administered and of a single interface (IEEE 802: bits 0x02 set and 0x01 clear in the first
    byte), which no manufacturer's GUID can be.
    """
    digest = bytearray(hashlib.sha256(seed.encode()).digest()[:8])
    digest[0] = digest[0] & 0xFC | 0x02
    digits = digest.hex()
    return ":".join(digits[start:start + 4] for start in range(0, 16, 4))
