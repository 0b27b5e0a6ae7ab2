# SPDX-License-Identifier: Apache-2.0
"""Show Placement's view of the host: providers, their inventories and usages."""

import dataclasses
from collections.abc import Mapping

from openstack.connection import Connection


@dataclasses.dataclass(frozen=True)
class Provider:
    """:ivar inventory: resource class -> total
    :ivar used: resource class -> in use
    """

    name: str
    inventory: Mapping[str, int]
    used: Mapping[str, int]


def providers(admin: Connection) -> list[Provider]:
    """Every resource provider, by name."""
    found = []
    for provider in admin.placement.resource_providers():
        path = f"/resource_providers/{provider.id}"
        inventories = admin.placement.get(f"{path}/inventories").json()["inventories"]
        usages = admin.placement.get(f"{path}/usages").json()["usages"]
        found.append(Provider(provider.name, {name: entry["total"] for name, entry in inventories.items()}, usages))
    return sorted(found, key=lambda provider: provider.name)


def used(admin: Connection) -> dict[str, int]:
    """Return what is in use anywhere: ``<provider> <resource class>`` -> amount."""
    return {f"{provider.name} {name}": amount
            for provider in providers(admin) for name, amount in provider.used.items() if amount}


def allocations(admin: Connection, server: str) -> dict[str, dict[str, int]]:
    """Return what a server holds: provider's name -> resource class -> amount."""
    names = {provider.id: provider.name for provider in admin.placement.resource_providers()}
    held = admin.placement.get(f"/allocations/{server}").json()["allocations"]
    return {names[provider]: entry["resources"] for provider, entry in held.items()}
