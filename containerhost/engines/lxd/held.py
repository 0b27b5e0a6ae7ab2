# SPDX-License-Identifier: Apache-2.0
"""Find the devices in LXD's list of all instances, including those that others created. Pure.

The configuration counts, running or not: a stopped instance takes its device at its next start.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from containerhost import vendors
from containerhost.devices.model import Device, Kind, NodeUse, Role
from containerhost.engines.lxd.config import key

Config = Mapping[str, str]

# LXD's state of a started nic: its host interface, and the VF that it chose (``nictype=sriov``).
VOLATILE = ("host_name", "last_state.vf.parent", "last_state.vf.id")


def held(instances: Iterable[Mapping[str, Any]], devices: Iterable[Device], project: str) -> dict[str, str]:
    """Return the instance that names each device, by device id; as ``project/name`` if in another project.

    :param devices: with every part of a GPU that is among them
    """
    known = tuple(devices)
    netdevs = {device.address: device.netdev for device in known if device.netdev}
    found: dict[str, str] = {}
    for instance in instances:
        home = instance.get("project") or "default"
        name = instance["name"] if home == project else f"{home}/{instance['name']}"
        for device_id in named(instance, known, netdevs):
            found.setdefault(device_id, name)
    return found


def named(instance: Mapping[str, Any], known: Iterable[Device], netdevs: Mapping[str, str]) -> set[str]:
    """Return the devices that an instance names; a slice's node of its GPU opens only that slice."""
    by_node, otherwise = set[str](), set[str]()
    cut = set[str]()
    for part, config in (instance.get("expanded_devices") or {}).items():
        volatile = {key: instance["config"].get(f"volatile.{part}.{key}", "") for key in VOLATILE}
        found = [device for device in known if is_share(part, device)] or [
            device for device in known if names(config, volatile, device, netdevs)]
        if config.get("type") == "unix-char":
            by_node.update(device.id for device in found)
            cut.update(device.parent for device in found if device.slice and device.parent)
        else:
            otherwise.update(device.id for device in found)
    return otherwise | (by_node - cut)


def is_share(part: str, device: Device) -> bool:
    """Return whether a device entry is this project's own for a share of a GPU: entries of others name none."""
    return device.kind is Kind.GPU_SHARE and part == f"gpu-{key(device.id)}"


def names(config: Config, volatile: Config, device: Device, netdevs: Mapping[str, str]) -> bool:
    """Return whether an instance's device entry names ``device``.

    :param netdevs: host interface by PCI address
    """
    match config.get("type"):
        case "gpu":
            return device.kind is not Kind.NET and names_gpu(config, device)
        case "nic" | "infiniband":
            return device.kind is Kind.NET and names_netdev(config, volatile, device, netdevs)
        case "unix-char":
            return names_node(config, device)
        case "pci":
            return same_address(config.get("address", ""), device.address)
        case _:
            return False


def names_gpu(config: Config, device: Device) -> bool:
    """Return whether all of the entry's selectors match; an entry without any names all GPUs.

    Selectors are ``pci``, ``vendorid``, ``productid``, ``id`` (a DRM card, or a CDI name), and for slices ``mig.*``."""
    if config.get("gputype") == "mig":
        return names_gpu_part(config, device) and names_slice(config, device)
    return names_gpu_part(config, device)


def names_gpu_part(config: Config, device: Device) -> bool:
    wanted = config.get("id", "")
    if "=" in wanted:
        return names_cdi(wanted, device)
    cards = [node.path for node in device.nodes if node.path.startswith("/dev/dri/card")]
    return ((not wanted or not cards or f"/dev/dri/card{wanted}" in cards)
            and ("pci" not in config or same_address(config["pci"], device.address))
            and config.get("vendorid", device.vendor_id).lower() == device.vendor_id
            and config.get("productid", device.product_id).lower() == device.product_id)


def names_slice(config: Config, device: Device) -> bool:
    if device.slice is None:
        return False
    if config.get("mig.uuid"):
        return device.uuid is None or bare_uuid(config["mig.uuid"]) == bare_uuid(device.uuid)
    wanted = (config.get("mig.gi"), config.get("mig.ci"))
    return wanted in ((None, None), (str(device.slice.gi), str(device.slice.ci)))


def names_cdi(wanted: str, device: Device) -> bool:
    """Return whether a CDI name, ``vendor/class=name``, names the device; an index matches every such GPU."""
    kind, _, name = wanted.partition("=")
    others = {vendor.cdi_vendor for vendor in vendors.load() if vendor.name != device.plugin}
    if kind.partition("/")[0] in others:
        return False
    if kind.endswith("/mig") and not device.slice:
        return False
    is_uuid = "-" in name
    return not is_uuid or device.uuid is None or bare_uuid(name) == bare_uuid(device.uuid)


def names_netdev(config: Config, volatile: Config, device: Device, netdevs: Mapping[str, str]) -> bool:
    """Return whether an entry takes an interface of the device, or is stacked on one (macvlan, ipvlan, VLAN).

    An interface stacked on a PF does not take its VFs, and a PF that is up belongs to the host."""
    used = config.get("parent") if config.get("nictype") == "physical" or device.role is not Role.PF else None
    if not {used, volatile["host_name"]}.isdisjoint(device.netdevs):
        return True
    return (device.vf_index is not None
            and volatile["last_state.vf.id"] == str(device.vf_index)
            and volatile["last_state.vf.parent"] == netdevs.get(device.parent or ""))


def names_node(config: Config, device: Device) -> bool:
    source = config.get("source") or config.get("path", "")
    numbers = (config.get("major"), config.get("minor"))
    return any(node.use is not NodeUse.SHARED
               and (node.path == source or numbers == (str(node.major), str(node.minor)))
               for node in device.nodes)


def same_address(left: str, right: str) -> bool:
    """Compare PCI addresses, with or without domain, ignoring case."""
    return full_address(left) == full_address(right)


def full_address(text: str) -> str:
    text = text.lower()
    return text if re.fullmatch(r"[0-9a-f]{4,}:.*", text) else f"0000:{text}"


def bare_uuid(text: str) -> str:
    return re.sub(r"^(gpu|mig)-", "", text.lower())
