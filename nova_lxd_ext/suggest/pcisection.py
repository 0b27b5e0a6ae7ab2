# SPDX-License-Identifier: Apache-2.0
"""Suggest ``[pci]`` of nova.conf for a host's offers. Pure.

Formats: nova/pci/devspec.py (``device_spec``) and nova/pci/request.py (``alias``).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import os_resource_classes as orc

from containerhost.devices.model import PARTS, Device, Kind, Role
from containerhost.operator.suggest.offers import Offer
from nova_lxd_ext.hardware.pci import TYPES
from nova_lxd_ext.hardware.sliceproviders import gpu_trait


@dataclasses.dataclass(frozen=True)
class PciSection:
    """Hold the suggested values of nova.conf's ``[pci]`` for a host's devices."""

    device_specs: tuple[dict[str, str], ...]
    aliases: tuple[dict[str, str], ...]

    @property
    def resource_classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alias["resource_class"] for alias in self.aliases))

    @property
    def traits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(spec["traits"] for spec in self.device_specs))

    def to_dict(self) -> dict[str, Any]:
        return {"device_spec": list(self.device_specs), "alias": list(self.aliases),
                "resource_classes": list(self.resource_classes), "traits": list(self.traits)}


def section(found: Sequence[Offer]) -> PciSection:
    """Return the section. Parts of GPUs, which the driver reports itself, need none."""
    whole = [offer for offer in found if offer.first.kind not in PARTS]
    return PciSection(tuple(spec for offer in whole for spec in _specs(offer, whole)),
                      tuple(_alias(offer) for offer in whole))


def numa_policy(offer: Offer) -> str:
    """Return ``required`` if nova knows the NUMA node of each device; otherwise it would allocate none."""
    return "preferred" if any(device.numa_node is None for device in offer.devices) else "required"


def _alias(offer: Offer) -> dict[str, str]:
    """Return an alias; one named after the kind matches all devices of that kind, of any model.

    Hosts with cards of another model also have an alias of this name, and nova refuses differing ones."""
    common = {"name": offer.name, "device_type": TYPES[offer.first.role], "numa_policy": numa_policy(offer)}
    placed = _placed(offer)
    if offer.name == offer.sort:
        return common | {"resource_class": placed["resource_class"]}
    return common | _ids(offer.first) | placed


def _specs(offer: Offer, others: Sequence[Offer]) -> Iterator[dict[str, str]]:
    """Yield the specs that match the devices of an offer: by all of their ids, or by the address of each card.

    The latter is for offers that share ids with another one; nova applies it to the card's VFs as well."""
    alone = sum(_ids(other.first) == _ids(offer.first) for other in others) == 1
    addresses = () if alone else dict.fromkeys(_card(device) for device in offer.devices)
    for address in addresses:
        yield {"address": address, **_ids(offer.first), **_placed(offer)}
    if alone:
        yield {**_ids(offer.first), **_placed(offer)}


def _card(device: Device) -> str:
    return device.parent if device.role is Role.VF and device.parent else device.address


def _ids(device: Device) -> dict[str, str]:
    return {"vendor_id": device.vendor_id, "product_id": device.product_id}


def _placed(offer: Offer) -> dict[str, str]:
    """Return a device's resource class, of its sort, and trait, of its model, in Placement."""
    device = offer.first
    trait = gpu_trait(device) if device.kind is Kind.GPU else None
    return {"resource_class": orc.normalize_name(offer.sort),
            "traits": trait or orc.normalize_name(f"PCI_{device.vendor_id}_{device.product_id}")}
