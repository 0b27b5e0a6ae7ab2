# SPDX-License-Identifier: Apache-2.0
"""Translate a context for guests with cloud-init instead of OpenNebula's context packages. Pure.

LXD hands these documents to cloud-init in the guest (its LXD datasource). The tenant's own document, USER_DATA, is
unchanged and takes precedence over the one made of the other variables, which is passed as vendor data. Formats:
cloud-init's cloud-config, written as JSON, which is YAML, and its network config of version 1.

All users of the guest can read these documents: so they never contain a plain password, only an encrypted one.
"""

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any

from containerhost.engines.spec import CloudInit
from onedriver.errors import BadInput

SURROGATES = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
START_SCRIPT = "/var/lib/cloud/scripts/per-boot/opennebula-start-script"
INTERFACE = re.compile(r"ETH([0-9]{1,3})_MAC")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
HOSTNAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
HASH = re.compile(r"[!-9;-~]{1,512}")  # printable, no colon
Variables = Mapping[str, str]


def documents(context: Variables) -> CloudInit:
    """Return the cloud-init documents of a context; raise BadInput on an invalid variable."""
    vendor = vendor_data(context)
    return CloudInit(
        user_data=user_data(context),
        vendor_data=f"#cloud-config\n{document(vendor)}" if vendor else None,
        network_config=document(network_config(context)) if context.get("NETWORK", "").upper() == "YES" else None)


def document(content: Mapping[str, Any]) -> str:
    """Return a YAML document: JSON, with escapes that YAML parsers accept (YAML 1.2.2, 5.7)."""
    text = json.dumps(content, indent=1).replace("\x7f", "\\x7f")
    return SURROGATES.sub(yaml_escape, text) + "\n"


def yaml_escape(pair: re.Match[str]) -> str:
    """Return YAML's escape of a character that JSON writes as two surrogates."""
    (character,) = json.loads(f'"{pair[0]}"')
    return f"\\U{ord(character):08x}"


def user_data(context: Variables) -> str | None:
    for key, coding in (("USER_DATA", "USER_DATA_ENCODING"), ("USERDATA", "USERDATA_ENCODING")):
        if context.get(key):
            return decoded(context, key) if context.get(coding, "").lower() == "base64" else context[key]
    return None


def vendor_data(context: Variables) -> dict[str, Any]:
    config: dict[str, Any] = {}
    keys = [line.strip() for key in ("SSH_PUBLIC_KEY", "EC2_PUBLIC_KEY") for line in context.get(key, "").splitlines()]
    if any(keys):
        config |= {"ssh_authorized_keys": [line for line in keys if line], "disable_root": False}
    crypted = either(context, "CRYPTED_PASSWORD", "CRYPTED_PASSWORD_BASE64")
    if crypted:
        user = checked(context.get("USERNAME") or "root", USER, "USERNAME", "a user name")
        hashed = checked(crypted.strip(), HASH, "CRYPTED_PASSWORD", "an encrypted password")
        config["chpasswd"] = {"expire": False, "list": [f"{user}:{hashed}"]}
    if context.get("SET_HOSTNAME"):
        config["hostname"] = checked(context["SET_HOSTNAME"], HOSTNAME, "SET_HOSTNAME", "a host name")
    script = either(context, "START_SCRIPT", "START_SCRIPT_BASE64")
    if script:
        first = "" if script.startswith("#!") else "#!/bin/sh\n"
        config["write_files"] = [{"path": START_SCRIPT, "permissions": "0755", "encoding": "b64",
                                  "content": base64.b64encode((first + script).encode()).decode()}]
    return config


def network_config(context: Variables) -> dict[str, Any]:
    numbers = sorted(int(found[1]) for key in context if (found := INTERFACE.fullmatch(key)) and context[key])
    return {"version": 1, "config": [interface(context, f"ETH{number}_", f"eth{number}") for number in numbers]}


def interface(context: Variables, prefix: str, name: str) -> dict[str, Any]:
    def of(key: str) -> str:
        return context.get(prefix + key, "")

    found: dict[str, Any] = {
        "type": "physical", "name": name,
        "mac_address": checked(of("MAC").lower(), MAC, f"{prefix}MAC", "a MAC address"),
        "subnets": [*subnets(context, prefix, ("IP", "GATEWAY", "METHOD"), of("MASK") or "24", "dhcp"),
                    *subnets(context, prefix, ("IP6", "IP6_GATEWAY", "IP6_METHOD"),
                             of("IP6_PREFIX_LENGTH") or "64", "dhcp6")]}
    if of("MTU"):
        found["mtu"] = int(checked(of("MTU"), re.compile(r"[1-9][0-9]{1,4}"), f"{prefix}MTU", "a number"))
    servers = [str(address(word, f"{prefix}DNS")) for word in words(of("DNS"))]
    domains = [checked(word, HOSTNAME, f"{prefix}SEARCH_DOMAIN", "names of domains") for word in
               words(of("SEARCH_DOMAIN"))]
    names = ({"dns_nameservers": servers} if servers else {}) | ({"dns_search": domains} if domains else {})
    found["subnets"] = [subnet | names for subnet in found["subnets"]]
    return found


def words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def subnets(context: Variables, prefix: str, keys: tuple[str, str, str], mask: str,
            dynamic: str) -> list[dict[str, Any]]:
    """Return the interface's subnet, if it has one.

    :param dynamic: cloud-init's name of the method that uses a server
    """
    own, gateway, method = (context.get(prefix + key, "") for key in keys)
    if method == "dhcp":
        return [{"type": dynamic}]
    if not own or method == "skip":
        return []
    try:
        place = ipaddress.ip_interface(f"{own}/{mask}")
    except ValueError as error:
        raise BadInput(f"{prefix}{keys[0]} of the context is {own[:60]!r} with mask {mask[:60]!r}, which is not "
                       f"an address: {error}") from error
    subnet = {"type": "static" if place.version == 4 else "static6", "address": str(place)}
    return [subnet | ({"gateway": str(address(gateway, prefix + keys[1]))} if gateway else {})]


def address(text: str, key: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise BadInput(f"{key} of the context is {text[:60]!r}, but must be an IP address") from error


def either(context: Variables, plain: str, coded: str) -> str:
    """Return a variable that may be base64."""
    return decoded(context, coded) if context.get(coded) else context.get(plain, "")


def decoded(context: Variables, key: str) -> str:
    try:
        return base64.b64decode("".join(context[key].split()), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"{key} of the context is not text in base64: {error}") from error


def checked(text: str, pattern: re.Pattern[str], key: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise BadInput(f"{key} of the context is {text[:60]!r}, but must be {what}")
    return text
