# SPDX-License-Identifier: Apache-2.0
"""Answers ``ip link`` for what emulated functions have and TAPs have not: settings of VFs, addresses of twenty octets.

Output as that of iproute2 6.1. Runs without site-packages, so it imports nothing but the client of the control socket.
"""

import errno
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, os.path.abspath(f"{os.path.realpath(__file__)}/../../../.."))

from tests.fakehost.control import FakeHostControl

REAL = "/dev/fakehost-ip"
CONTROL = "/sys/fakehost/control"
SETTINGS = (
    *("mac", "vlan", "qos", "proto", "node_guid", "port_guid", "state", "trust", "spoofchk", "query_rss"),
    *("rate", "max_tx_rate", "min_tx_rate"),
)


def main(arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    if len(words) < 2 or not "link".startswith(words[0]):
        return real(arguments)
    host = FakeHostControl(CONTROL)
    try:
        if words[1] == "set":
            return set_link(host, arguments, [word for word in words[2:] if word != "dev"])
        return show_links(host, arguments)
    except OSError as error:
        print(f"RTNETLINK answers: {os.strerror(error.errno or errno.EIO)}\n{error.strerror}", file=sys.stderr)
        return 2


def set_link(host: FakeHostControl, arguments: list[str], words: Sequence[str]) -> int:
    match words:
        case [interface, "vf", number, *pairs] if number.isdigit() and len(pairs) % 2 == 0:
            settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
            unknown = [key for key in settings if key not in SETTINGS]
            if unknown:
                print(f'Error: argument "{unknown[0]}" is wrong: unknown setting of a VF', file=sys.stderr)
                return 255
            host.set_vf(interface, int(number), settings)
            return 0
        case [interface, "address", address] if address.count(":") == 19:
            host.set_hardware_address(interface, address)
            return 0
    return real(arguments)


def real(arguments: list[str]) -> int:
    """Run the real command in place of this one."""
    os.execv(REAL, [REAL, *arguments])


def show_links(host: FakeHostControl, arguments: list[str]) -> int:
    # Most calls set something: they need not wait for the import.
    import subprocess

    real = subprocess.run([REAL, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if real.returncode == 0 and any(word in ("-j", "-json", "--json") for word in arguments):
        links = json.loads(real.stdout or "[]")
        for link in links:
            if link.get("link_type") == "infiniband":
                link["address"] = hardware_address(link["ifname"])
            if vfs := host.vf_settings(link.get("ifname", "")):
                link["vfinfo_list"] = [describe(number, vf) for number, vf in enumerate(vfs)]
        print(json.dumps(links))
    else:
        print_text(host, real.stdout)
    return real.returncode


def print_text(host: FakeHostControl, text: str) -> None:
    """Print what the real command printed, with the lines of the VFs after those of their function."""
    name = ""
    for line in text.splitlines():
        if line[:1].isdigit():
            print_vfs(host, name)
            name = line.split(": ")[1].partition("@")[0]
        print(line)
    print_vfs(host, name)


def print_vfs(host: FakeHostControl, interface: str) -> None:
    for number, vf in enumerate(host.vf_settings(interface) if interface else ()):
        values = describe(number, vf)
        guids = "".join(
            f", {key.upper().replace(' ', '_')} {values[key]}" for key in ("node guid", "port guid") if key in values
        )
        vlan = "".join(f", vlan {entry['vlan']}" for entry in values.get("vlan_list", ()))
        rates = "".join(f", {key} {vf[key]}Mbps" for key in ("max_tx_rate", "min_tx_rate") if vf[key] != "0")
        print(
            f"    vf {number}     link/{values['link_type']} {values['address']} brd {values['broadcast']}{vlan}"
            f"{rates}, spoof checking {vf['spoofchk']}{guids}, link-state {vf['state']}, trust {vf['trust']}"
        )


def describe(number: int, vf: dict[str, str]) -> dict[str, Any]:
    infiniband = vf["kind"] == "infiniband"
    values: dict[str, Any] = {
        "vf": number,
        "link_type": "infiniband" if infiniband else "ether",
        "address": vf["mac"],
        "broadcast": "ff:ff:ff:ff:ff:ff",
        "spoofchk": vf["spoofchk"] == "on",
        "link_state": vf["state"],
        "trust": vf["trust"] == "on",
        "query_rss_en": False,
        "rate": {"max_tx": int(vf["max_tx_rate"]), "min_tx": int(vf["min_tx_rate"])},
    }
    if vf["vlan"] != "0":
        values["vlan_list"] = [{"vlan": int(vf["vlan"]), "qos": int(vf["qos"])}]
    if infiniband:
        # The kernel gives all-zero addresses for IPoIB functions here; the GUIDs are what counts.
        values |= {"address": ":".join(["00"] * 20), "broadcast": ":".join(["00"] * 20)}
    if vf["kind"] != "ethernet":
        values |= {"node guid": octets(vf["node_guid"]), "port guid": octets(vf["port_guid"])}
    return values


def octets(guid: str) -> str:
    digits = guid.replace(":", "")
    return ":".join(digits[start : start + 2] for start in range(0, 16, 2))


def hardware_address(interface: str) -> str:
    with open(f"/sys/class/net/{interface}/address", encoding="ascii") as file:
        return file.read().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
