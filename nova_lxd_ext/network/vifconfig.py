# SPDX-License-Identifier: Apache-2.0
"""Translate a Neutron port, as nova describes it (a VIF), for containerhost and os-vif. Pure.

Neutron's binding of the port determines whether the host end of a pair of interfaces becomes a port of Open vSwitch
or a plain interface for an agent, or whether the container gets a network function.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any

import os_vif.objects
from nova.network import model, os_vif_util

from containerhost import errors
from containerhost.engines.network.veth import Pair, Shape
from containerhost.engines.spec import Nic
from nova_lxd_ext.instance import flavor
from nova_lxd_ext.instance.requested import prefix_of

INNER_PREFIX = "lxd"
MARK = "nova-lxd-ext"
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
KILO = 1000  # nova's vif quotas are in kilobytes

# Port types that nova supports and a container does not, with the reason.
REFUSED: Mapping[str, str] = {
    model.VIF_TYPE_BRIDGE: "nova itself supports Linux bridge ports no more; use Open vSwitch or OVN",
    model.VIF_TYPE_MACVTAP: "a macvtap is a virtual machine's way to an interface; use ports of Open vSwitch, or "
                            "--vnic-type direct",
    model.VIF_TYPE_VHOSTUSER: "vhost-user hands frames to a virtual machine monitor, and a container has none; use a "
                              "switch without it",
    model.VIF_TYPE_BINDING_FAILED: "neutron could not bind it to this host: see neutron-server's log, and whether this "
                                   "host's agent is alive (openstack network agent list)",
    model.VIF_TYPE_UNBOUND: "neutron has not bound it to any host",
}
DIRECT_VNICS = (model.VNIC_TYPE_DIRECT, model.VNIC_TYPE_DIRECT_PHYSICAL)
DIRECT_TYPES = (model.VIF_TYPE_HW_VEB, model.VIF_TYPE_HOSTDEV, model.VIF_TYPE_IB_HOSTDEV)


class Kind(enum.StrEnum):
    """Classify how a port is connected to its container.

    ``switched``: the host end is a port of Open vSwitch. ``hybrid``: it is a port of the bridge for neutron's
    iptables filter. ``plain``: an agent finds it by its name. ``direct``: a network function.
    """

    SWITCHED = "switched"
    HYBRID = "hybrid"
    PLAIN = "plain"
    DIRECT = "direct"


def kind(vif: model.VIF) -> Kind:
    """Return the kind of a port.

    :raises SpecError: a container cannot have such a port, with the reason
    """
    vnic, type_ = vif["vnic_type"], vif["type"]
    if type_ not in REFUSED:
        if has_pair(vif) and type_ == model.VIF_TYPE_OVS:
            return Kind.HYBRID if vif.is_hybrid_plug_enabled() else Kind.SWITCHED
        if has_pair(vif):
            return Kind.PLAIN
        if vnic in DIRECT_VNICS and type_ in DIRECT_TYPES:
            return Kind.DIRECT
    raise errors.SpecError(
        f"Port {vif['id']} is of type {type_} and vnic type {vnic}, which lxd.LXDDriver cannot plug: "
        + REFUSED.get(type_, f"it takes ports of types {model.VIF_TYPE_OVS} and {model.VIF_TYPE_TAP}, and with "
                             f"--vnic-type direct {', '.join(DIRECT_TYPES)}"))


def has_pair(vif: model.VIF) -> bool:
    """Return whether the port is a supported one with a pair of interfaces."""
    return vif["vnic_type"] == model.VNIC_TYPE_NORMAL and vif["type"] in (model.VIF_TYPE_OVS, model.VIF_TYPE_TAP)


def pair(owner: str, vif: model.VIF) -> Pair:
    """Return the pair of interfaces of a port that is not direct."""
    switched = kind(vif) is not Kind.PLAIN
    return Pair(host_end=host_end(vif), inner_end=inner_end(vif), mac=vif["address"].lower(), mtu=mtu(vif),
                mark=mark(owner, vif), switched=switched, software_checksums=datapath(vif) == "netdev")


def nic(vif: model.VIF, name: str) -> Nic:
    """Return the container's interface of a port."""
    return Nic(name=name, parent=inner_end(vif), mac=vif["address"].lower(), mtu=mtu(vif))


def host_end(vif: model.VIF) -> str:
    """Return neutron's name of the port's interface, by which its agents filter and count.

    :raises SpecError: it is not a valid interface name
    """
    name = vif["devname"] or f"tap{vif['id']}"[:model.NIC_NAME_LEN]
    if not INTERFACE.fullmatch(name):
        raise errors.SpecError(f"Port {vif['id']} would be named {name!r}, which is not a valid interface name")
    return name


def inner_end(vif: model.VIF) -> str:
    return f"{INNER_PREFIX}{vif['id']}"[:model.NIC_NAME_LEN]


def hybrid_bridge(vif: model.VIF) -> str:
    """Return the bridge that os-vif creates for a port with hybrid plugging."""
    return f"qbr{vif['id']}"[:model.NIC_NAME_LEN]


def mtu(vif: model.VIF) -> int | None:
    return vif["network"].get_meta("mtu")


def datapath(vif: model.VIF) -> str | None:
    """Return the datapath; ``netdev`` is Open vSwitch in user space."""
    return vif["details"].get(model.VIF_DETAILS_OVS_DATAPATH_TYPE)


def names(vifs: Iterable[model.VIF]) -> dict[str, str]:
    """Return the interface in the container by port id: eth0, eth1, … and ib0, ib1, … in the order of the ports."""
    counts = {"eth": 0, "ib": 0}
    found = {}
    for vif in vifs:
        prefix = prefix_of(vif)
        found[vif["id"]] = f"{prefix}{counts[prefix]}"
        counts[prefix] += 1
    return found


def free_name(vif: model.VIF, taken: Iterable[str]) -> str:
    """Return the first name for an additional port that is not ``taken``."""
    prefix, taken = prefix_of(vif), frozenset(taken)
    return next(name for number in range(len(taken) + 1) if (name := f"{prefix}{number}") not in taken)


def awaited(vifs: Iterable[model.VIF]) -> list[tuple[str, str]]:
    """Return the events that neutron sends when it has wired the ports that are currently down."""
    return [("network-vif-plugged", vif["id"]) for vif in vifs if vif.get("active", True) is False]


# Limits.


INBOUND, OUTBOUND = "inbound", "outbound"  # nova's names for received and sent traffic


def shape(extra_specs: Mapping[str, str], direction: str) -> Shape | None:
    """Return the limits of the flavor's ``quota:vif_<direction>_*`` (kB/s, and kB for the burst), or None.

    :raises SpecError: a value is not a number
    """
    average, peak, burst = (flavor.number(extra_specs, f"quota:vif_{direction}_{what}")
                            for what in ("average", "peak", "burst"))
    if average is None:
        if peak is not None or burst is not None:
            raise errors.SpecError(f"The flavor limits vif_{direction}_peak or vif_{direction}_burst without "
                                   f"quota:vif_{direction}_average, which they add to.")
        return None
    # A tenth of a second at full rate, and at least a few frames: the kernel's default is too small for fast links.
    return Shape(rate=average * KILO, ceiling=max(peak or 0, average) * KILO,
                 burst=(burst or max(average // 10, 16)) * KILO)


def shapes(extra_specs: Mapping[str, str]) -> tuple[Shape | None, Shape | None]:
    """Return the limits of a server's receive and transmit directions."""
    return shape(extra_specs, INBOUND), shape(extra_specs, OUTBOUND)


def require_holdable(vif: model.VIF, extra_specs: Mapping[str, str]) -> None:
    """Refuse limits that cannot be applied to the port.

    :raises SpecError: the flavor's limits cannot be enforced on the port, or are invalid
    """
    received, sent = shapes(extra_specs)
    how = kind(vif)
    if how is Kind.DIRECT and (received or sent):
        raise errors.SpecError(f"The flavor has quota:vif_*, which cannot be enforced on port {vif['id']}: its network "
                               f"function is the container's own. Use another flavor.")
    if how is Kind.SWITCHED and sent:
        raise errors.SpecError(
            f"The flavor has quota:vif_outbound_*, which cannot be enforced on port {vif['id']}: Open vSwitch takes "
            f"sent frames before the host could limit them. Use a QoS policy of neutron on the port or the network "
            f"(openstack network qos policy create).")


# os-vif.


def osvif(vif: model.VIF) -> Any | None:
    """Return the VIF for os-vif to plug; None for a port that does not need os-vif."""
    if kind(vif) not in (Kind.SWITCHED, Kind.HYBRID):
        return None
    plugged = os_vif_util.nova_to_osvif_vif(vif)
    if isinstance(plugged, os_vif.objects.vif.VIFOpenVSwitch):
        # Libvirt adds the port to the switch itself; for a container os-vif must do it. The interface exists already.
        plugged.port_profile.create_port = True
        if "create_tap" in plugged.port_profile.fields:
            plugged.port_profile.create_tap = False
    return plugged


# Marks: data to unplug a port whose other records are lost.


def owners_mark(owner: str) -> str:
    """Return the prefix of the marks of a server's ports."""
    return f"{MARK} {owner} "


def mark(owner: str, vif: model.VIF) -> str:
    return f"{owners_mark(owner)}{vif['id']} {kind(vif)} {vif['network']['bridge'] or '-'} {datapath(vif) or '-'}"


def is_host_end(name: str, text: str) -> bool:
    """Return whether an interface is the host end of its mark.

    An interface that returned from a container, an inner end or a network function, has the tenant's alias.

    :param text: a mark that begins with :func:`owners_mark`
    """
    return any(name == f"tap{port}"[:model.NIC_NAME_LEN] for port in text.split(" ")[2:3])


def remembered(name: str, text: str) -> tuple[str, model.VIF]:
    """Return the server's uuid, and the fields of the port that are needed to unplug it.

    :raises SpecError: the mark was not made by :func:`mark`
    """
    try:
        _, owner, port, how, bridge, path, *_ = text.split(" ")  # a later release may add fields
        network = model.Network(id=port, bridge=None if bridge == "-" else bridge)
        details: dict[str, Any] = {model.VIF_DETAILS_OVS_HYBRID_PLUG: Kind(how) is Kind.HYBRID}
        if path != "-":
            details[model.VIF_DETAILS_OVS_DATAPATH_TYPE] = path
    except ValueError as error:
        raise errors.SpecError(f"interface {name} has the mark {text!r}, which is not of this driver") from error
    type_ = model.VIF_TYPE_TAP if Kind(how) is Kind.PLAIN else model.VIF_TYPE_OVS
    return owner, model.VIF(id=port, address="00:00:00:00:00:00", devname=name, type=type_, network=network,
                            details=details)
