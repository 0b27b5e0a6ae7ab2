# SPDX-License-Identifier: Apache-2.0
"""Addresses and default routes of an interface in a container's network namespace, by netlink. Needs CAP_NET_ADMIN.

Only what holds a network namespace calls this; what it sets is typed, and checked once more here.
"""

import ipaddress
import socket
from typing import TYPE_CHECKING

from containerhost.errors import HostActionFailed
from containerhost.network.links import index, netlink
from containerhost.network.nicsetup import NicSetup
from containerhost.process.namespaces import within

if TYPE_CHECKING:
    from pyroute2 import IPRoute

NOTHING = NicSetup()


def apply(namespace: str, name: str, wanted: NicSetup, before: NicSetup | None = None) -> None:
    """Bring the interface up with what is wanted, and without what ``before`` had more; what else it has it keeps.

    :param namespace: the namespace's file
    :raises HostActionFailed: the kernel refuses, or one of them is no address
    """
    before = before or NOTHING
    checked(wanted)

    def act() -> None:
        with netlink(f"set the addresses of {name}") as ip:
            link = index(ip, name)
            if any(":" in address for address in wanted.addresses):
                enable_ipv6(name)
            ip.link("set", index=link, state="up")
            for address in sorted(set(before.addresses) - set(wanted.addresses)):
                remove(ip, link, address)
            for address in wanted.addresses:
                add(ip, link, address)
            for gateway in set(before.gateways) - set(wanted.gateways):
                if any_route(ip, link, gateway):
                    ip.route("delete", dst="default", gateway=gateway, oif=link, family=family(gateway))
            for gateway in wanted.gateways:
                metric = {} if wanted.metric is None else {"priority": wanted.metric}
                ip.route("replace", dst="default", gateway=gateway, oif=link, family=family(gateway), **metric)

    within(namespace, act)


def enable_ipv6(name: str) -> None:
    """Docker turns it off in a network namespace that gets nothing from itself."""
    try:
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as setting:
            setting.write("0")
    except OSError as error:
        raise HostActionFailed(f"interface {name} cannot have IPv6: {error.strerror}") from error


def checked(wanted: NicSetup) -> None:
    try:
        for address in wanted.addresses:
            ipaddress.ip_interface(address)
        for gateway in wanted.gateways:
            ipaddress.ip_address(gateway)
    except ValueError as error:
        raise HostActionFailed(str(error)) from error


def add(ip: "IPRoute", link: int, address: str) -> None:
    wanted = ipaddress.ip_interface(address)
    # Nothing else is there that could have the address yet: what waits for the check of that would not start.
    flags = {"flags": 0x02} if wanted.version == 6 else {}  # IFA_F_NODAD
    ip.addr("replace", index=link, address=str(wanted.ip), prefixlen=wanted.network.prefixlen,
            family=family(str(wanted.ip)), **flags)


def remove(ip: "IPRoute", link: int, address: str) -> None:
    gone = ipaddress.ip_interface(address)
    if any(found.get_attr("IFA_ADDRESS") == str(gone.ip) for found in ip.get_addr(index=link)):
        ip.addr("delete", index=link, address=str(gone.ip), prefixlen=gone.network.prefixlen,
                family=family(str(gone.ip)))


def any_route(ip: "IPRoute", link: int, gateway: str) -> bool:
    return any(route.get_attr("RTA_GATEWAY") == gateway and route.get_attr("RTA_OIF") == link
               for route in ip.get_default_routes(family=family(gateway)))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
