"""The marks that tell nova's containers from all others of the engine, and whose they are. Pure."""

from collections.abc import Mapping

from nova import objects

UUID = "nova.uuid"
ARRIVAL = "nova.arrival"  # on a container that came from another host and is not its server's yet


def of(instance: objects.Instance) -> dict[str, str]:
    """Labels of a new container. Only facts that never change, and none that a tenant words."""
    return {
        UUID: instance.uuid,
        "nova.project_id": instance.project_id,
        "nova.user_id": instance.user_id,
        "nova.image_id": instance.image_ref or "",
        "nova.flavor_id": instance.flavor.flavorid,
    }


def uuid(labels: Mapping[str, str]) -> str | None:
    """The server a container belongs to; None when it is not nova's."""
    return labels.get(UUID)
