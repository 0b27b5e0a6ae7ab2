# SPDX-License-Identifier: Apache-2.0
"""Report parts of GPUs to Placement: a provider per divided (MIG) or shared GPU, counting slices and shares. Pure.

A flavor requests them with ``resources:CUSTOM_MIG_1G_5GB=1`` or
``resources:CUSTOM_SHARED_GPU_NVIDIA_A100_SXM4_40GB=1``. Placement answers with a provider, that is a GPU; which of
its parts a server gets is decided on the host (:mod:`nova_lxd_ext.hardware.slices`).
"""

import collections
import dataclasses
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import os_resource_classes as orc
import os_traits
from nova.compute.provider_tree import ProviderTree

from containerhost.devices import migprofile
from containerhost.devices.model import PARTS, Device, Kind
from containerhost.inventory.scan import Inventory
from nova_lxd_ext import providertree

MIG: Final = "CUSTOM_MIG_"
SHARED: Final = "CUSTOM_SHARED_GPU_"
NUMA_TRAIT: Final = "CUSTOM_NUMA_NODE_"
GPU_TRAIT: Final = "CUSTOM_GPU_"

# Namespace of the providers' UUIDs: deterministic for each GPU of a host, so they need not be stored.
_NAMESPACE: Final = uuid.UUID("5d0c3f0e-7e55-5b0e-9d1c-6f2b1f6b8a10")
# nova.scheduler.utils.ResourceRequest: resources, optionally with a group
_ASKED: Final = re.compile(r"resources[a-zA-Z0-9_-]{0,64}:(CUSTOM_(?:MIG|SHARED_GPU)_[A-Z0-9_]+)")

Used = Callable[[str], Mapping[str, int]]


@dataclasses.dataclass(frozen=True)
class Need:
    """Request ``count`` slices of one profile, or shares, on one GPU of this host."""

    gpu: str
    resource_class: str
    count: int


def resource_class(device: Device) -> str | None:
    """Return the resource class of a slice or a share; None if the profile is unknown.

    CUSTOM_MIG_1G_5GB for a slice of profile 1g.5gb, CUSTOM_MIG_1G_24GB_NO_ME for 1g.24gb-me. For a share it is the
    GPU's model, or its PCI ids if the host does not report that."""
    if device.kind is Kind.GPU_SHARE:
        return SHARED + _normal(device.model or f"{device.vendor_id}_{device.product_id}")
    if device.kind is not Kind.GPU_SLICE or device.slice is None or not migprofile.parse(device.slice.profile):
        return None
    return MIG + _normal(str(device.slice.profile).replace("-", "_no_"))  # normalization would turn "-" into "+"


def gpu_trait(device: Device) -> str | None:
    """Return the trait of a GPU's model; None if the host does not report it."""
    return GPU_TRAIT + str(os_traits.normalize_name(device.model)).removeprefix("CUSTOM_") if device.model else None


def _normal(name: str) -> str:
    return str(orc.normalize_name(name).removeprefix("CUSTOM_"))


def provider_name(nodename: str, gpu: str, kind: Kind = Kind.GPU_SLICE) -> str:
    return f"{nodename}_{'mig' if kind is Kind.GPU_SLICE else 'shared'}_{gpu}"


def provider_uuid(nodename: str, gpu: str, kind: Kind = Kind.GPU_SLICE) -> str:
    return str(uuid.uuid5(_NAMESPACE, provider_name(nodename, gpu, kind)))


def asked(extra_specs: Mapping[str, str]) -> collections.Counter[str]:
    """Return the slices that a flavor requests by resource class, including numbered and named groups of resources."""
    found: collections.Counter[str] = collections.Counter()
    for key, value in extra_specs.items():
        match = _ASKED.fullmatch(key)
        if match and value.isdecimal():
            found[match[1]] += int(value)
    return +found


def total(found: Iterable[Need]) -> collections.Counter[str]:
    """Return the number of slices by resource class on all GPUs."""
    counts: collections.Counter[str] = collections.Counter()
    for need in found:
        counts[need.resource_class] += need.count
    return counts


def needs(allocations: Mapping[str, Any], nodename: str, inventory: Inventory) -> tuple[Need, ...]:
    """Return a server's allocated slices of this host by GPU, without those of other hosts.

    :param allocations: by uuid of the provider, as nova passes them to spawn
    """
    found = []
    for gpu, kind in sorted(_by_gpu(inventory)):
        resources = allocations.get(provider_uuid(nodename, gpu, kind), {}).get("resources", {})
        found += [Need(gpu, name, count) for name, count in sorted(resources.items())
                  if name.startswith((MIG, SHARED))]
    return tuple(found)


def update(tree: ProviderTree, nodename: str, inventory: Inventory, unusable: Collection[str], used: Used) -> None:
    """Write the divided or shared GPUs into ``tree``.

    Vanished classes are removed once no server has an allocation of them; until then they are reserved, so that
    Placement allocates no more of them. The same holds while the driver does not report the profiles of a GPU's
    slices.

    :param used: returns the usage of a provider by resource class; called only for providers with vanished classes
    """
    by_gpu = _by_gpu(inventory)
    untold = {provider_name(nodename, device.address) for device in inventory.devices
              if device.kind is Kind.GPU_SLICE and resource_class(device) is None}
    for (gpu, kind), slices in by_gpu.items():
        name = provider_name(nodename, gpu, kind)
        if not tree.exists(name):
            tree.new_child(name, nodename, uuid=provider_uuid(nodename, gpu, kind))
        _write(tree, name, _totals(slices, unusable), used, name in untold)
        _write_traits(tree, name, _traits(slices[0]))
    own = providertree.names(tree, nodename, *(provider_name(nodename, "", kind) for kind in PARTS))
    for name in sorted(own - {provider_name(nodename, *key) for key in by_gpu}):
        _write(tree, name, {}, used, name in untold)
        if not tree.data(name).inventory:
            tree.remove(name)


def _by_gpu(inventory: Inventory) -> dict[tuple[str, Kind], list[Device]]:
    """Group the shares, and the slices with a known profile, by their GPU's address."""
    found: dict[tuple[str, Kind], list[Device]] = {}
    for device in inventory.devices:
        if resource_class(device) is not None:
            found.setdefault((device.address, device.kind), []).append(device)
    return found


def _totals(slices: Iterable[Device], unusable: Collection[str]) -> dict[str, dict[str, Any]]:
    totals: collections.Counter[str] = collections.Counter()
    reserved: collections.Counter[str] = collections.Counter()
    for part in slices:
        name = str(resource_class(part))
        totals[name] += 1
        reserved[name] += part.id in unusable
    # Two shares of one GPU provide no more than one.
    return {name: providertree.entry(total, reserved=reserved[name],
                                     max_unit=1 if name.startswith(SHARED) else total)
            for name, total in totals.items()}


def _write(tree: ProviderTree, name: str, wanted: dict[str, dict[str, Any]], used: Used, is_partial: bool) -> None:
    """Write the inventory of a GPU. Placement refuses to remove a resource class that is in use.

    :param is_partial: the profiles of some slices are unknown, so a missing class may still exist
    """
    known = tree.data(name)
    vanished = {item: entry for item, entry in known.inventory.items() if item not in wanted}
    if vanished:
        in_use = vanished if is_partial else used(known.uuid)
        wanted = wanted | {item: entry | {"reserved": entry["total"]} for item, entry in vanished.items()
                           if in_use.get(item)}
    tree.update_inventory(name, wanted)


def _write_traits(tree: ProviderTree, name: str, traits: set[str]) -> None:
    """Write a provider's traits. Those that an operator set stay."""
    own = {trait for trait in tree.data(name).traits if trait.startswith((NUMA_TRAIT, GPU_TRAIT))}
    tree.add_traits(name, *sorted(traits))
    tree.remove_traits(name, *sorted(own - traits))


def _traits(part: Device) -> set[str]:
    found = set()
    if part.numa_node is not None:
        found.add(f"{NUMA_TRAIT}{part.numa_node}")
    model = gpu_trait(part)
    return {*found, model} if model else found
