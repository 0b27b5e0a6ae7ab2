"""PCI functions as sysfs tells them (Documentation/ABI/testing/sysfs-bus-pci), before any vendor has had a look."""

import re
from collections.abc import Iterator

from containerhost.devices import health
from containerhost.devices.model import PciFunction, Role
from containerhost.sysfs import Host

FOLDER = "/sys/bus/pci/devices"
UNKNOWN_ID = "0000"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEX = re.compile(r"0x([0-9a-f]+)", re.IGNORECASE)
# PCI Code and ID Assignment Specification: network, display and processing accelerator.
_CLASSES = ("02", "03", "12")


def functions(host: Host) -> Iterator[PciFunction]:
    """Every function that could be a network card or an accelerator, by address."""
    indexes: dict[str, int] = {}
    for address in host.names(FOLDER):
        if not _ADDRESS.fullmatch(address):
            continue
        class_code = _hexadecimal(host, f"{FOLDER}/{address}/class", 6)
        if class_code.startswith(_CLASSES):
            yield _function(host, address, class_code, indexes)


def _function(host: Host, address: str, class_code: str, indexes: dict[str, int]) -> PciFunction:
    """:param indexes: the VFs met so far below their PFs; a VF's address is never lower than its PF's"""
    folder = f"{FOLDER}/{address}"
    entries = frozenset(host.names(folder))
    parent = host.link(f"{folder}/physfn") if "physfn" in entries else None
    total = _count(host, f"{folder}/sriov_totalvfs") if "sriov_totalvfs" in entries else 0
    if total:
        indexes.update(_virtual_functions(host, folder, entries))
    numa_node = host.number(f"{folder}/numa_node")
    driver = host.link(f"{folder}/driver") if "driver" in entries else None
    return PciFunction(
        address=address,
        vendor_id=_hexadecimal(host, f"{folder}/vendor", 4),
        product_id=_hexadecimal(host, f"{folder}/device", 4),
        class_code=class_code,
        driver=driver,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        role=Role.VF if parent else Role.PF if total else Role.PLAIN,
        parent=parent,
        vf_index=indexes.get(address),
        total_vfs=total,
        num_vfs=_count(host, f"{folder}/sriov_numvfs") if total else 0,
        health=health.of_function(host, folder, driver),
    )


def _virtual_functions(host: Host, folder: str, entries: frozenset[str]) -> dict[str, int]:
    """Address to index, from a PF's ``virtfn<index>`` links."""
    found: dict[str, int] = {}
    for entry in entries:
        index = entry.removeprefix("virtfn")
        if entry != index and index.isascii() and index.isdigit():
            address = host.link(f"{folder}/{entry}")
            if address:
                found[address] = int(index[:6])
    return found


def _hexadecimal(host: Host, path: str, digits: int) -> str:
    match = _HEX.fullmatch(host.text(path) or "")
    return match[1].lower().zfill(digits)[-digits:] if match else UNKNOWN_ID.zfill(digits)


def _count(host: Host, path: str) -> int:
    return max(0, host.number(path) or 0)
