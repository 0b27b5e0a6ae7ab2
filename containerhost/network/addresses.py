"""Addresses and default routes of an interface in a container's network namespace, by netlink. Needs CAP_NET_ADMIN.

Only what holds a network namespace calls this; what it sets is typed, and checked once more here.
"""

import errno
import ipaddress
import socket

from containerhost.errors import HostActionFailed
from containerhost.network import links, rtnetlink
from containerhost.network.nicsetup import NicSetup
from containerhost.network.rtnetlink import CREATE, REPLACE, attribute, number
from containerhost.process.namespaces import within

NOTHING = NicSetup()
# linux/if_addr.h, linux/rtnetlink.h
WHERE, LOCAL, NO_CHECK = 1, 2, 0x02
OUT, GATEWAY, METRIC = 4, 5, 6


def apply(namespace: str, name: str, wanted: NicSetup, before: NicSetup | None = None) -> None:
    """Bring the interface up with what is wanted, and without what ``before`` had more; what else it has it keeps.

    :param namespace: the namespace's file
    :raises HostActionFailed: the kernel refuses, or one of them is no address
    """
    before = before or NOTHING
    checked(wanted)

    def act() -> None:
        asked, link = f"set the addresses of {name}", links.index(name)
        if any(":" in address for address in wanted.addresses):
            enable_ipv6(name)
        links.set_up(name, True)
        for address in sorted(set(before.addresses) - set(wanted.addresses)):
            rtnetlink.ask(asked, rtnetlink.DELETE_ADDRESS, 0, message(link, address), errno.EADDRNOTAVAIL)
        for address in wanted.addresses:
            rtnetlink.ask(asked, rtnetlink.NEW_ADDRESS, CREATE | REPLACE, message(link, address))
        for gateway in sorted(set(before.gateways) - set(wanted.gateways)):
            rtnetlink.ask(asked, rtnetlink.DELETE_ROUTE, 0, route(link, gateway, None), errno.ESRCH)
        for gateway in wanted.gateways:
            rtnetlink.ask(asked, rtnetlink.NEW_ROUTE, CREATE | REPLACE, route(link, gateway, wanted.metric))

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


def message(link: int, address: str) -> bytes:
    wanted = ipaddress.ip_interface(address)
    # Nothing else is there that could have the address yet: what waits for the check of that would not start.
    flags = NO_CHECK if wanted.version == 6 else 0
    head = rtnetlink.ADDRESS.pack(family(address), wanted.network.prefixlen, flags, 0, link)
    return head + attribute(LOCAL, wanted.ip.packed) + attribute(WHERE, wanted.ip.packed)


def route(link: int, gateway: str, metric: int | None) -> bytes:
    """The default one, in the main table."""
    head = rtnetlink.ROUTE.pack(family(gateway), 0, 0, 0, rtnetlink.MAIN_TABLE, rtnetlink.STATIC, 0, rtnetlink.UNICAST,
                                0)
    return b"".join((head, attribute(GATEWAY, ipaddress.ip_address(gateway).packed), number(OUT, link),
                     b"" if metric is None else number(METRIC, metric)))


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
