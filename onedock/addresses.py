# SPDX-License-Identifier: Apache-2.0
"""Read the addresses of a VM's interfaces from OpenNebula's context, to set them from outside. Pure.

An application's image does not read the context. The context's ``ETHn_*``, and ``PCIn_*`` for a device that is a
NIC, are matched by the interface's MAC in OpenNebula's address range, which differs from that of an InfiniBand
function. METHOD dhcp or skip leaves the interface to the container.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping

from containerhost.engines.spec import IpConfig
from onedriver.errors import BadInput

MAC = re.compile(r"(?P<prefix>(?:ETH|PCI)[0-9]{1,3})_MAC")
DOMAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")
METRIC = re.compile(r"[0-9]{1,9}")
USUAL_MASK, USUAL_LENGTH = "255.255.255.0", "64"
OURS, THEIRS = frozenset({"", "STATIC"}), frozenset({"DHCP", "SKIP", "AUTO", "DISABLE"})
NAMESERVERS = 3  # more no C library asks


def setup(context: Mapping[str, str], mac: str) -> IpConfig:
    """Return the addresses of an interface from the context.

    :returns: nothing to set if the context has no interface with this MAC
    :raises BadInput: an address is invalid
    """
    prefix = prefixes(context).get(mac)
    if prefix is None:
        return IpConfig()
    metric = context.get(f"{prefix}_METRIC", "")
    if metric and not METRIC.fullmatch(metric):
        raise BadInput(f"CONTEXT: {prefix}_METRIC is {metric[:40]!r}, but must be a whole number")
    four, six = is_ours(context, f"{prefix}_METHOD"), is_ours(context, f"{prefix}_IP6_METHOD")
    found = [*(version4(context, prefix) if four else ()), *(version6(context, prefix) if six else ())]
    gateways = [*(gateway(context, four, f"{prefix}_GATEWAY")),
                *(gateway(context, six, f"{prefix}_IP6_GATEWAY", f"{prefix}_GATEWAY6"))]
    return IpConfig(tuple(found), tuple(gateways), int(metric) if metric else None)


def prefixes(context: Mapping[str, str]) -> dict[str, str]:
    """Return the prefix of each MAC: ETHn or PCIn."""
    return {value.lower(): match["prefix"] for key, value in context.items() if (match := MAC.fullmatch(key))}


def is_ours(context: Mapping[str, str], key: str) -> bool:
    method = context.get(key, "").upper()
    if method not in OURS | THEIRS:
        raise BadInput(f"CONTEXT: {key} is {method[:40]!r}, but must be static, dhcp, auto, disable or skip")
    return method in OURS


def version4(context: Mapping[str, str], prefix: str) -> Iterator[str]:
    aliases = sorted({match[1] for key in context if (match := re.fullmatch(rf"({prefix}_ALIAS[0-9]{{1,3}})_IP", key))})
    for name in (prefix, *aliases):
        if context.get(f"{name}_IP"):
            mask = context.get(f"{name}_MASK") or USUAL_MASK
            yield address(f"{name}_IP", f"{context[f'{name}_IP']}/{mask}", 4)


def version6(context: Mapping[str, str], prefix: str) -> Iterator[str]:
    length = context.get(f"{prefix}_IP6_PREFIX_LENGTH") or USUAL_LENGTH
    for key in (f"{prefix}_IP6", f"{prefix}_IP6_ULA"):
        if context.get(key):
            yield address(key, f"{context[key]}/{length}", 6)


def gateway(context: Mapping[str, str], ours: bool, *keys: str) -> tuple[str, ...]:
    found = next(((key, context[key]) for key in keys if context.get(key)), None)
    if not ours or found is None:
        return ()
    return (str(ip(*found)),)


def address(key: str, text: str, version: int) -> str:
    try:
        found = ipaddress.ip_interface(text if "%" not in text else "")
    except ValueError as error:
        raise BadInput(f"CONTEXT: {key} gives {text[:80]!r}, which is not an address of a network") from error
    if found.version != version:
        raise BadInput(f"CONTEXT: {key} is {text[:80]!r}, which is not of IP version {version}")
    return str(found)


def ip(key: str, text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text if "%" not in text else "")
    except ValueError as error:
        raise BadInput(f"CONTEXT: {key} has {text[:80]!r}, which is not an address") from error


def resolv_conf(context: Mapping[str, str]) -> str:
    """Return the nameservers of all interfaces in order, and the search domains."""
    names = sorted(prefixes(context).values(), key=lambda prefix: (prefix[:3], int(prefix[3:])))
    servers, domains = ([word for prefix in ("", *(f"{name}_" for name in names))
                         for word in context.get(f"{prefix}{key}", "").replace(",", " ").split()]
                        for key in ("DNS", "SEARCH_DOMAIN"))
    wrong = [domain for domain in domains if not DOMAIN.fullmatch(domain)]
    if wrong:
        raise BadInput(f"CONTEXT: SEARCH_DOMAIN has {wrong[0][:80]!r}, which is not a domain")
    lines = [f"nameserver {ip('DNS', server)}" for server in dict.fromkeys(servers)][:NAMESERVERS]
    if domains:
        lines.append(f"search {' '.join(dict.fromkeys(domains))}")
    return "".join(f"{line}\n" for line in lines)
