# SPDX-License-Identifier: Apache-2.0
"""Label nova's containers, and identify their servers. Pure."""

from collections.abc import Mapping

from nova import objects

from containerhost.engines.contract import ContainerState

UUID = "nova.uuid"
NAME = "nova.name"
ASIDE = "-rescued"
OUTGOING = "nova.outgoing"  # attachments of the volumes before a live migration, as a JSON object
INCOMING = "nova.incoming"  # id of the migration that transferred it; nova does not place the server here yet


def of(instance: objects.Instance) -> dict[str, str]:
    """Return the labels of a new container: constant facts without tenant text."""
    return {
        UUID: instance.uuid,
        NAME: instance.name,
        "nova.project_id": instance.project_id,
        "nova.user_id": instance.user_id,
        "nova.image_id": instance.image_ref or "",
        "nova.flavor_id": instance.flavor.flavorid,
    }


def uuid(labels: Mapping[str, str]) -> str | None:
    """Return the uuid of a container's server; None if it is not nova's."""
    return labels.get(UUID)


def aside(instance: objects.Instance) -> str:
    """Return the name of a server's container while another one replaces it."""
    return f"{instance.name}{ASIDE}"


def server_of(state: ContainerState) -> str | None:
    """Return the name of the server whose container was set aside; None for other containers."""
    name = state.labels.get(NAME, state.name)
    return name if name != state.name else None
