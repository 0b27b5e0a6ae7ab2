# SPDX-License-Identifier: Apache-2.0
"""Check that a network function reaches its network.

An InfiniBand VF's own port stays down until it has a driver and GUIDs that the subnet manager knows, and the card
may hold it down: only the cable of its physical function counts.
"""

from collections.abc import Collection, Iterator

from containerhost.devices.health.rules import Finding, Rule, Verdict
from containerhost.devices.model import LinkLayer

_SYSFS = "Linux Documentation/ABI/stable/sysfs-class-infiniband"
LINK_UP, ACTIVE = "linkup", "active"

NO_CABLE = Rule(
    name="ib-phys-state", verdict=Verdict.SICK, reads="ports/1/phys_state of the card's own function",
    says="{whose} has no link to its switch (phys_state {state}): check cable and switch",
    well="the port is LinkUp", source=f"{_SYSFS}; InfiniBand Architecture Specification 14.2.5.6, PortPhysicalState")
PORT_LINK = Rule(
    name="port-phys-state", verdict=Verdict.NOTE, reads="ports/1/phys_state",
    says="its port has no link (phys_state {state})", well="the port is LinkUp",
    source=f"{_SYSFS}; a note for RoCE, which follows the interface, and for a VF, whose port its PF may hold down")
NOT_ACTIVE = Rule(
    name="port-state", verdict=Verdict.NOTE, reads="ports/1/state",
    says="its port is {state}, not active: its subnet manager has not taken it up yet", well="the port is ACTIVE",
    source=f"{_SYSFS}; InfiniBand Architecture Specification 14.2.5.6, PortState")
NO_CARRIER = Rule(
    name="carrier", verdict=Verdict.NOTE, reads="carrier of an interface that is up",
    says="its interface is up, but has no carrier: check cable and switch", well="the interface has a carrier",
    source="Linux Documentation/ABI/testing/sysfs-class-net")
RULES = (NO_CABLE, PORT_LINK, NOT_ACTIVE, NO_CARRIER)


def cable_findings(link_layer: LinkLayer | None, phys_state: str | None, *, own: bool) -> Iterator[Finding]:
    """Report a missing cable.

    :param phys_state: of the physical function's port, in lower case; None if it has none
    :param own: whether the device is that function
    """
    if link_layer is LinkLayer.INFINIBAND and phys_state not in (None, LINK_UP):
        yield NO_CABLE.finds(whose="its port" if own else "the port of its physical function", state=phys_state)


def port_findings(link_layer: LinkLayer | None, state: str | None, phys_state: str | None, *, virtual: bool
                  ) -> Iterator[Finding]:
    if phys_state not in (None, LINK_UP):
        if virtual or link_layer is not LinkLayer.INFINIBAND:
            yield PORT_LINK.finds(state=phys_state)
    elif state not in (None, ACTIVE):
        yield NOT_ACTIVE.finds(state=state)


def carrier_findings(carriers: Collection[str | None]) -> Iterator[Finding]:
    """Report interfaces without carrier.

    :param carriers: the attribute's text of each interface; unreadable if the interface is down
    """
    if "0" in carriers:
        yield NO_CARRIER.finds()
