# SPDX-License-Identifier: Apache-2.0
"""Set addresses and default routes of an interface in a container's network namespace, by iproute2 (CAP_NET_ADMIN).

Callers hold a network namespace; the typed values are validated again here.
"""

import ipaddress

from containerhost.errors import HostActionFailed
from containerhost.linux.network.ipconfig import IpConfig
from containerhost.linux.network.links import ip, shown
from containerhost.linux.process.namespaces import within

NOTHING = IpConfig()


def apply(namespace: str, name: str, wanted: IpConfig, before: IpConfig | None = None) -> None:
    """Bring the interface up with the wanted configuration, removing what only ``before`` had.

    :raises HostActionFailed: the kernel refuses, or an address is invalid
    """
    before = before or NOTHING
    checked(wanted)

    def act() -> None:
        asked = f"set the addresses of {name}"
        device = ("dev", name)
        if any(":" in address for address in wanted.addresses):
            enable_ipv6(name)
        ip(asked, "link", "set", *device, "up")
        if gone := set(before.addresses) - set(wanted.addresses):
            found = shown(asked, "address", "show", *device)["addr_info"]
            present = {f"{address['local']}/{address['prefixlen']}" for address in found}
            for address in sorted({str(ipaddress.ip_interface(address)) for address in gone} & present):
                ip(asked, "address", "delete", address, *device)
        for address in wanted.addresses:
            # No other host can have the address yet, and programs that bind it at boot would fail during duplicate
            # detection.
            ip(asked, "address", "replace", address, *device, *(("nodad",) if ":" in address else ()))
        for gateway in sorted(set(before.gateways) - set(wanted.gateways)):
            route = ("default", "via", gateway, *device)
            if ip(asked, family(gateway), "route", "show", *route).strip():
                ip(asked, family(gateway), "route", "delete", *route)
        for gateway in wanted.gateways:
            metric = () if wanted.metric is None else ("metric", str(wanted.metric))
            ip(asked, family(gateway), "route", "replace", "default", "via", gateway, *device, *metric)

    within(namespace, act)


def enable_ipv6(name: str) -> None:
    """Enable IPv6, which Docker disables in a network namespace that it does not configure itself."""
    try:
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as setting:
            setting.write("0")
    except OSError as error:
        raise HostActionFailed(f"interface {name} cannot have IPv6: {error.strerror}") from error


def checked(wanted: IpConfig) -> None:
    try:
        for address in wanted.addresses:
            ipaddress.ip_interface(address)
        for gateway in wanted.gateways:
            ipaddress.ip_address(gateway)
    except ValueError as error:
        raise HostActionFailed(str(error)) from error


def family(address: str) -> str:
    return "-6" if ":" in address else "-4"
