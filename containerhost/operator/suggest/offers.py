# SPDX-License-Identifier: Apache-2.0
"""Group the allocatable devices of a host by what requests can distinguish. Pure.

A device belongs to an offer regardless of its present health and holder, because a configuration lasts longer.
Devices that the host itself needs are in none: physical functions, and interfaces that it uses.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from containerhost.devices.model import PARTS, Device, Kind, LinkLayer, Role
from containerhost.inventory.scan import Inventory

_Key = tuple[str, str, str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Offer:
    """Hold devices of one kind.

    :ivar name: unique among the offers of a host: ``gpu-a100-sxm4-40gb``, ``infiniband-vf``, ``slice-1g-5gb``
    :ivar sort: their kind, independent of the model: ``gpu``, ``slice``, ``share``, ``infiniband-vf``,
        ``roce-card``…
    """

    name: str
    sort: str
    devices: tuple[Device, ...]

    @property
    def first(self) -> Device:
        return self.devices[0]


def offers(inventory: Inventory) -> tuple[Offer, ...]:
    """Return the host's offers, in the order of the first device of each."""
    groups: dict[_Key, list[Device]] = {}
    for device in _with_models(offered(inventory)):
        groups.setdefault(_key(device), []).append(device)
    names = [_name(devices[0]) for devices in groups.values()]
    return tuple(Offer(name if names.count(name) == 1 else f"{name}-{_ids(devices[0])}", sort(devices[0]),
                       tuple(devices))
                 for name, devices in zip(names, groups.values(), strict=True))


def offered(inventory: Inventory) -> tuple[Device, ...]:
    """Return the allocatable devices; for a divided whole, its parts."""
    wholes = {device.parent for device in inventory.devices if device.kind in PARTS}
    return tuple(device for device in inventory.devices
                 if device.id not in wholes and (_offered_function(device) if device.kind is Kind.NET
                                                 else not (device.role is Role.PF and device.host_use)))


def _with_models(devices: Sequence[Device]) -> Iterator[Device]:
    """Yield the devices; a GPU that does not report its model gets that of others with its ids."""
    models: dict[tuple[str, str], set[str]] = {}
    for device in devices:
        if device.model:
            models.setdefault((device.vendor_id, device.product_id), set()).add(device.model)
    for device in devices:
        known = models.get((device.vendor_id, device.product_id), set())
        yield device if device.model or len(known) != 1 else dataclasses.replace(device, model=min(known))


def unprovisioned(inventory: Inventory) -> tuple[Device, ...]:
    """Return the physical functions that support VFs and have none."""
    parents = {device.parent for device in inventory.devices if device.role is Role.VF}
    return tuple(device for device in inventory.devices
                 if device.role is Role.PF and device.kind is Kind.NET and device.id not in parents)


def sort(device: Device) -> str:
    """Return the kind of a device, independent of its model."""
    if device.kind is not Kind.NET:
        return device.kind.removeprefix("gpu-")
    ethernet = "roce" if device.rdma else "ethernet"
    network = "infiniband" if device.link_layer is LinkLayer.INFINIBAND else ethernet
    return f"{network}-{'vf' if device.role is Role.VF else 'card'}"


def numa_nodes(devices: Iterable[Device]) -> tuple[int | None, ...]:
    """Return the NUMA nodes of devices, each once; None for unknown ones."""
    return tuple(dict.fromkeys(device.numa_node for device in devices))


def _offered_function(device: Device) -> bool:
    """Return whether the host does not need a network function: a VF, or an unused InfiniBand card without VFs."""
    if device.role is Role.VF:
        return True
    return device.role is Role.PLAIN and device.link_layer is LinkLayer.INFINIBAND and not device.host_use


def _key(device: Device) -> _Key:
    profile = device.slice.profile or "" if device.slice else ""
    model = device.model or "" if device.kind is not Kind.NET else ""
    return (sort(device), device.vendor_id, device.product_id, device.role, model, profile)


def _name(device: Device) -> str:
    if device.kind is Kind.NET:
        return sort(device)
    if device.slice:
        profile = (device.slice.profile or "").replace("-", " no ")  # 1g.24gb-me is another one than 1g.24gb+me
        return f"slice-{_slug(profile or _ids(device))}"
    return f"{sort(device)}-{_slug(device.model or _ids(device))}"


def _ids(device: Device) -> str:
    return f"{device.vendor_id}-{device.product_id}"


def _slug(text: str) -> str:
    """Return text as lower-case letters and digits with single dashes between."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))
