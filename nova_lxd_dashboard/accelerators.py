# SPDX-License-Identifier: Apache-2.0
"""Translate the data of Placement and nova's API to the rows of the panels. Pure."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

BANDWIDTH = "NET_"
"""Prefix of the resource classes in which Neutron's agents report the bandwidth of physical networks."""

KEYS = ("pci_passthrough:alias", "accel:device_profile")
"""Flavor keys that request devices, besides ``resources[GROUP]:CLASS``."""

REASON = "CUSTOM_DEVICE_"
"""Prefix of the traits by which the driver says why it reserved a device, in words of :data:`REASONS`."""

REASONS = ("sick", "tainted", "unclean", "used_elsewhere")

RESERVED = "reserved_"
"""Prefix of an address in the names of providers that the driver made for reserved devices."""

ORDINARY = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "IPV4_ADDRESS"})
"""Resource classes that every server has some of."""


@dataclasses.dataclass(frozen=True)
class Service:
    """Describe the nova-compute service of one host.

    :ivar reason: why an administrator disabled it; empty if it is enabled
    :ivar host: its name in nova, which may differ from that in Placement
    :ivar ip: its address, ``my_ip`` of its nova.conf
    """

    up: bool
    reason: str = ""
    host: str = ""
    ip: str = ""


@dataclasses.dataclass(frozen=True)
class Device:
    """Describe one resource class of a resource provider below a host: a GPU, a slice or share, a network function.

    :ivar name: of the provider, without the host's name
    :ivar servers: servers that hold some of it, by UUID
    :ivar traits: of the provider, if all of it is reserved
    """

    id: str
    host: str
    name: str
    resource_class: str
    total: int
    reserved: int
    used: int
    servers: tuple[str, ...]
    service: Service | None
    traits: frozenset[str] = frozenset()

    @property
    def health(self) -> str:
        """Return ``host down``, ``host disabled``, one of :data:`REASONS`, ``reserved`` for any other, or ``ok``."""
        if self.service is None or not self.service.up:
            return "host down"
        if self.service.reason:
            return "host disabled"
        if not is_reserved(self.total, self.reserved):
            return "ok"
        return next((reason for reason in REASONS if REASON + reason.upper() in self.traits), "reserved")


def is_reserved(total: int, reserved: int) -> bool:
    """Return whether all of it is reserved in Placement."""
    return 0 < total <= reserved


def devices(providers: Iterable[Mapping[str, Any]], inventories: Mapping[str, Mapping[str, Mapping[str, int]]],
            allocations: Mapping[str, Mapping[str, Mapping[str, Any]]], services: Mapping[str, Service],
            traits: Mapping[str, Collection[str]]) -> list[Device]:
    """Return the devices of all providers, by host and name.

    :param providers: of Placement's ``GET /resource_providers`` (microversion 1.14 or later)
    :param inventories: by UUID of a provider, of ``GET /resource_providers/{uuid}/inventories``
    :param allocations: by UUID of a provider, of ``GET /resource_providers/{uuid}/allocations``
    :param traits: by UUID of a provider, of ``GET /resource_providers/{uuid}/traits``; of reserved ones
    """
    providers = list(providers)
    hosts = {provider["uuid"]: provider["name"] for provider in providers if provider["parent_provider_uuid"] is None}
    found = []
    for provider in providers:
        host = hosts.get(provider["root_provider_uuid"], "")
        for resource_class, inventory in inventories.get(provider["uuid"], {}).items():
            if resource_class in ORDINARY or resource_class.startswith(BANDWIDTH):
                continue
            held = {consumer: entry["resources"].get(resource_class, 0)
                    for consumer, entry in allocations.get(provider["uuid"], {}).items()}
            name = provider["name"].removeprefix(host).lstrip("_").removeprefix(RESERVED)
            found.append(Device(
                f"{provider['uuid']}:{resource_class}", host, name or host, resource_class, inventory["total"],
                inventory.get("reserved", 0), sum(held.values()),
                tuple(sorted(consumer for consumer, amount in held.items() if amount)), services.get(host),
                frozenset(traits.get(provider["uuid"], ()))))
    return sorted(found, key=lambda device: (device.host, device.name, device.resource_class))


def requests(extra_specs: Mapping[str, str], model: Callable[[str], str | None]) -> list[str]:
    """Return the devices that a flavor's keys request, one text each: ``gpu: 1``, ``CUSTOM_MIG_1G_10GB: 2``.

    :param model: returns the name of the model of a resource class, if known
    """
    found = []
    for key, value in extra_specs.items():
        prefix, _, name = key.partition(":")
        if key == "pci_passthrough:alias":
            for entry in filter(None, (part.strip() for part in value.split(","))):
                alias, _, count = entry.partition(":")
                found.append(f"{alias}: {count or 1}")
        elif key in KEYS:
            found.append(value)
        elif prefix.startswith("resources") and name not in ORDINARY and not name.startswith(BANDWIDTH):
            found.append(f"{model(name) or name}: {value}")
    return sorted(found)
