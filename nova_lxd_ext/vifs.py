"""Neutron ports of a server. For now the place where they are refused, before anything changes."""

from typing import Any

from nova import exception, objects
from nova.network import model

from containerhost.spec import Part
from nova_lxd_ext.outfit import Supplier
from nova_lxd_ext.wanted import Wanted


class Ports(Supplier):
    def require_possible(self, instance: objects.Instance, wanted: Wanted) -> None:
        """:raises BuildAbortException: when the server has a port, naming its kind"""
        kinds = sorted({str(vif["type"]) for vif in wanted.network_info})
        if kinds:
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=(
                f"The server has network ports of type {', '.join(kinds)}, which lxd.LXDDriver cannot plug. "
                f"Create it without ports (--nic none); network functions come by the flavor's "
                f"pci_passthrough:alias."))

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted) -> tuple[Part, ...]:
        return ()

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted) -> None:
        """Nothing was ever plugged."""

    def plug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        self.require_possible(instance, Wanted.of(network_info))

    def unplug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        """Nothing was ever plugged."""
