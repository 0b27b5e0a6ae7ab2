# SPDX-License-Identifier: Apache-2.0
"""Provide ports with a dedicated network function (``--vnic-type direct``).

The function that nova claimed for the port is given to the container as a device, with the port's MAC and VLAN set
where the tenant cannot change them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from nova import objects
from nova.network import model
from oslo_config import cfg
from oslo_log import log as logging

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import HostView
from nova_lxd_ext.hardware.flavor_devices import consumer
from nova_lxd_ext.instance import flavor

LOG = logging.getLogger(__name__)


class DirectPorts:
    """Allocate and release the PCI functions of a server's direct ports.

    :param node_id: this host, as nova's records of PCI devices name it
    """

    def __init__(self, conf: cfg.ConfigOpts, allocator: DeviceAllocator, node_id: Callable[[], int]) -> None:
        self._conf = conf
        self._allocator = allocator
        self._node_id = node_id
        self.view = allocator.view

    def attach_all(self, instance: objects.Instance, vifs: Sequence[model.VIF], names: Mapping[str, str], view: HostView
                   ) -> dict[str, Grant]:
        """Allocate the functions of all ports or of none. Those that the server already holds stay unchanged.

        :param names: interface in the container by port id
        """
        requests = [self.request(instance, vif, names[vif["id"]]) for vif in vifs]
        grants = self._allocator.acquire(requests, consumer(instance), view) if requests else ()
        return {vif["id"]: grant for vif, grant in zip(vifs, grants, strict=True)}

    def request(self, instance: objects.Instance, vif: model.VIF, name: str) -> Request:
        """Return the allocation request for a port's function.

        :raises DeviceNotFound: nova did not claim the port's function for this server
        :raises SpecError: a flavor key is invalid
        """
        address = (vif["profile"] or {}).get("pci_slot", "")
        node = self._node_id()
        claimed = {device.address for device in instance.get_pci_devices() if device.compute_node_id == node}
        if address not in claimed:
            raise DeviceNotFound(f"Port {vif['id']} names the PCI function {address or 'none'}, which nova has not "
                                 f"claimed on this host for server {instance.uuid}. Detach the port and attach it "
                                 f"again.")
        chosen = options(vif, name, self._conf.lxd.rdma_memlock, self._conf.lxd.rdma_management_nodes)
        return Request(address, dataclasses.replace(chosen, max_tx_rate=flavor.vf_rate(instance.flavor.extra_specs)))

    def held(self, instance: objects.Instance, vif: model.VIF, view: HostView
             ) -> tuple[Grant | None, tuple[Grant, ...]]:
        """Return the grant of the port, and the server's other grants, which determine the shared nodes.

        The latter have the host's interface names."""
        grants = self._allocator.held(consumer(instance), view)
        address = (vif["profile"] or {}).get("pci_slot")
        return (next((grant for grant in grants if grant.device.id == address), None),
                tuple(grant for grant in grants if grant.device.id != address))

    def lost(self, instance: objects.Instance, vif: model.VIF) -> bool:
        """Return whether the host has lost a recorded function that is missing from :meth:`held`."""
        return (vif["profile"] or {}).get("pci_slot") in self._allocator.held_by(consumer(instance))

    def require_unused(self, grant: Grant) -> None:
        """Refuse a function that a process in the container uses.

        :raises DeviceInUse: a process in the container has it open
        """
        self._allocator.require_unused([grant])

    def set_link_state(self, instance: objects.Instance, up: bool, view: HostView) -> None:
        """Disable or restore the link of all virtual functions of the server, including those of its flavor."""
        for complaint in self._allocator.repair.set_link_state(consumer(instance), up, view):
            LOG.warning("The link of a VF was not enabled: %s" if up else "The link of a VF was not disabled: %s",
                        complaint, instance=instance)

    def release(self, instance: objects.Instance, vif: model.VIF, container: int | None, view: HostView) -> None:
        """Release one function of a running container. Idempotent. It stays blocked if it cannot be cleaned.

        :param container: its first process; None if it is not running
        """
        address = (vif["profile"] or {}).get("pci_slot", "")
        for complaint in self._allocator.release_device(address, consumer(instance), container, view):
            LOG.error("The released function of a port is blocked: %s", complaint, instance=instance)


def options(vif: model.VIF, name: str, memlock: str, management_nodes: bool) -> GrantOptions:
    """Return the port's options for its function."""
    chosen = GrantOptions(netdev_name=name, memlock=memlock, management_nodes=management_nodes)
    mac = vif["address"].lower()
    if vif["type"] == model.VIF_TYPE_IB_HOSTDEV:
        return dataclasses.replace(chosen, node_guid=port_guid(mac), port_guid=port_guid(mac))
    if vif["vnic_type"] == model.VNIC_TYPE_DIRECT:
        return dataclasses.replace(chosen, mac=mac, vlan=int(vif["details"].get(model.VIF_DETAILS_VLAN) or 0))
    return chosen  # a whole card has one MAC, which nova sent to neutron


def port_guid(mac: str) -> str:
    """Return the GUID of a port for neutron's InfiniBand agent: its MAC with two zero bytes in the middle."""
    digits = mac.replace(":", "")
    text = f"{digits[:6]}0000{digits[6:]}"
    return ":".join(text[start:start + 4] for start in range(0, 16, 4))
