# SPDX-License-Identifier: Apache-2.0
"""The marks that tell nova's containers from all others of the engine, and whose they are. Pure."""

from collections.abc import Mapping

from nova import objects

from containerhost.engines import ContainerState

UUID = "nova.uuid"
NAME = "nova.name"
ASIDE = "-rescued"
ARRIVAL = "nova.arrival"  # on a container that came from another host and is not its server's yet


def of(instance: objects.Instance) -> dict[str, str]:
    """Labels of a new container. Only facts that never change, and none that a tenant words."""
    return {
        UUID: instance.uuid,
        NAME: instance.name,
        "nova.project_id": instance.project_id,
        "nova.user_id": instance.user_id,
        "nova.image_id": instance.image_ref or "",
        "nova.flavor_id": instance.flavor.flavorid,
    }


def uuid(labels: Mapping[str, str]) -> str | None:
    """The server a container belongs to; None when it is not nova's."""
    return labels.get(UUID)


def aside(instance: objects.Instance) -> str:
    """The name that a server's container has while another one has its place."""
    return f"{instance.name}{ASIDE}"


def server_of(state: ContainerState) -> str | None:
    """The name of the server that a container was set aside for; None when it has its own name."""
    name = state.labels.get(NAME, state.name)
    return name if name != state.name else None
