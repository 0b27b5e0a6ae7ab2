# SPDX-License-Identifier: Apache-2.0
"""Read PCI functions from sysfs (Documentation/ABI/testing/sysfs-bus-pci), before any vendor describes them."""

import re
from collections.abc import Iterator

from containerhost.devices import health
from containerhost.devices.health.kernellog import Log
from containerhost.devices.model import PciFunction, Role
from containerhost.linux.sysfs import Host

_DIRECTORY = "/sys/bus/pci/devices"
_UP_TO_SYS = "../../../"  # relative to a device's link
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# modalias has the contents of vendor, device and class in one read (modalias_show in the kernel's pci-sysfs.c).
# Attributes that take the device's lock, such as uevent and sriov_numvfs, are not read: a driver that hangs in unbind
# holds it, and blocks readers uninterruptibly.
_MODALIAS = re.compile(r"pci:v0000(?P<vendor>[0-9A-F]{4})d0000(?P<product>[0-9A-F]{4})sv[0-9A-F]{8}sd[0-9A-F]{8}"
                       r"bc(?P<base>[0-9A-F]{2})sc(?P<sub>[0-9A-F]{2})i(?P<interface>[0-9A-F]{2})", re.IGNORECASE)
# PCI Code and ID Assignment Specification: network, display, processing accelerator, and InfiniBand as a serial bus.
NETWORK = ("02", "0c06")
_CLASSES = (*NETWORK, "03", "12")
# InfiniBand controller, fabric controller (Omni-Path, whose ports the kernel calls InfiniBand), InfiniBand as a bus.
INFINIBAND = ("0207", "0208", "0c06")


NOVA_DOMAINS = "nova offers no device of a PCI domain above ffff"


def is_beyond_nova(address: str) -> bool:
    """Return whether nova does not support the function: its PCI domain has more than four digits.

    Source: nova/pci/devspec.py, MAX_DOMAIN. Volume Management Device and Hyper-V create longer ones."""
    return len(address.partition(":")[0]) > 4


def functions(host: Host, log: Log) -> Iterator[PciFunction]:
    """Yield every function that could be a network card or an accelerator, by address."""
    places: dict[str, tuple[str, int]] = {}
    for address in host.names(_DIRECTORY):
        found = _read(host, address, places, log)
        if found:
            yield found


def function(host: Host, address: str, log: Log) -> PciFunction | None:
    """Return one of :func:`functions`; None if the host no longer has it."""
    parent = host.link(f"{directory(host, address)}/physfn")
    places = dict(_places(host, parent, directory(host, parent))) if parent else {}
    return _read(host, address, places, log)


def directory(host: Host, address: str) -> str:
    """Return a function's directory in sysfs, built from the path: the kernel need not follow the bus's link."""
    target = host.target(f"{_DIRECTORY}/{address}") or ""
    inside = target.removeprefix(_UP_TO_SYS)
    return f"/sys/{inside}" if inside != target and ".." not in inside else f"{_DIRECTORY}/{address}"


def _read(host: Host, address: str, places: dict[str, tuple[str, int]], log: Log) -> PciFunction | None:
    """Return the function; None if it is absent, or neither a network card nor an accelerator.

    :param places: see :func:`_function`
    """
    if not ADDRESS.fullmatch(address):
        return None
    place = directory(host, address)
    ids = _MODALIAS.match(host.text(f"{place}/modalias") or "")
    if not ids or not _class(ids).startswith(_CLASSES):
        return None
    return _function(host, address, place, ids, places, log)


def _class(ids: re.Match[str]) -> str:
    return "".join(ids.group("base", "sub", "interface")).lower()


def _function(host: Host, address: str, directory: str, ids: re.Match[str],
              places: dict[str, tuple[str, int]], log: Log) -> PciFunction:
    """Read one function.

    :param places: parent and index of the VFs of the PFs read before; a VF's address never precedes its PF's
    """
    parent, index = places.get(address) or (host.link(f"{directory}/physfn"), None)
    total = 0 if parent else _count(host, f"{directory}/sriov_totalvfs")
    own = dict(_places(host, address, directory)) if total else {}
    places.update(own)
    numa_node = host.number(f"{directory}/numa_node")
    driver = host.link(f"{directory}/driver")
    found = health.of_function(host, directory, address, driver, virtual=parent is not None, log=log)
    return PciFunction(
        address=address,
        directory=directory,
        vendor_id=ids["vendor"].lower(),
        product_id=ids["product"].lower(),
        class_code=_class(ids),
        driver=driver,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        role=Role.VF if parent else Role.PF if total else Role.PLAIN,
        parent=parent,
        vf_index=index,
        total_vfs=total,
        num_vfs=len(own),
        health=found.complaints,
        notes=found.notes,
    )


def _places(host: Host, parent: str, directory: str) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the address of each VF with its parent and index, from the PF's ``virtfn<index>`` links."""
    for entry in host.names(directory):
        index = entry.removeprefix("virtfn")
        if entry != index and index.isascii() and index.isdigit():
            address = host.link(f"{directory}/{entry}")
            if address:
                yield address, (parent, int(index[:6]))


def _count(host: Host, path: str) -> int:
    return max(0, host.number(path) or 0)
