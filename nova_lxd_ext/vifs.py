"""Neutron ports of a server. For now the place where they are refused, before anything changes."""

from nova import exception, objects
from nova.network import model


def require_supported(instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
    """:raises BuildAbortException: when the server has a port, naming its kind"""
    kinds = sorted({str(vif["type"]) for vif in network_info or ()})
    if kinds:
        raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=(
            f"The server has network ports of type {', '.join(kinds)}, which lxd.LXDDriver cannot plug. "
            f"Create it without ports (--nic none); network functions come by the flavor's pci_passthrough:alias."))


def plug(instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
    require_supported(instance, network_info)


def unplug(instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
    """Nothing was ever plugged."""
