# SPDX-License-Identifier: Apache-2.0
"""Neutron ports as nova hands them to a driver, and recorders of what is done with them."""

from typing import Any

from nova.network import model

from containerhost.errors import HostActionFailed
from containerhost.privileged import Privileged

FIRST, SECOND = "ce531f90-199f-48c0-816c-13e38010b442", "88dae9fa-0dc6-49e3-8c29-3abc41e99ac9"
HOST_END, INNER_END = "tapce531f90-19", "lxdce531f90-19"
MAC = "fa:16:3e:4c:2c:30"


def vif(port: str = FIRST, *, mtu: int | None = 1450, bridge: str | None = "br-int", **changes: Any) -> model.VIF:
    meta = {"mtu": mtu} if mtu else {}
    values = {"id": port, "address": MAC.upper(), "type": model.VIF_TYPE_OVS, "devname": f"tap{port}"[:14],
              "network": model.Network(id="3cb9bc59-5699-4588-a4b1-b87f96708bc6", bridge=bridge, subnets=[], **meta),
              "details": {"datapath_type": "netdev"}, "active": True}
    return model.VIF(**values | changes)


def direct(port: str = FIRST, address: str = "0000:5e:00.1", **changes: Any) -> model.VIF:
    return vif(port, **{"type": model.VIF_TYPE_HW_VEB, "vnic_type": "direct", "details": {"vlan": 100},
                        "profile": {"pci_slot": address}} | changes)


class Recorder(Privileged):
    """Writes down what root would do to links."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log

    def make_veth(self, *arguments: Any) -> None:
        self.log.append(("make", *arguments))

    def remove_veth(self, name: str) -> None:
        self.log.append(("remove", name))

    def set_link(self, name: str, up: bool) -> None:
        self.log.append(("up" if up else "down", name))

    def enslave(self, name: str, bridge: str) -> None:
        self.log.append(("enslave", name, bridge))

    def compute_checksums(self, name: str) -> None:
        self.log.append(("checksums", name))

    def shape(self, *arguments: Any) -> None:
        self.log.append(("shape", *arguments))

    def unshape(self, *arguments: Any) -> None:
        self.log.append(("unshape", *arguments))

    def unshape_sent(self, *arguments: Any) -> None:
        self.log.append(("unshape sent", *arguments))

    def shape_sent(self, *arguments: Any) -> None:
        self.log.append(("shape sent", *arguments))

    def remove_shaper(self, name: str) -> None:
        self.log.append(("remove", name))


class Plugs:
    """In place of nova_lxd_ext.network.vifplug.Plugs."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.broken = False

    def plug(self, server: Any, vif: model.VIF) -> None:
        if self.broken:
            raise HostActionFailed("the switch is away")
        self.log.append(("plug", server.uuid, vif["id"]))

    def unplug(self, server: Any, vif: model.VIF) -> None:
        if self.broken:
            raise HostActionFailed("the switch is away")
        self.log.append(("unplug", server.uuid, vif["id"]))
