# SPDX-License-Identifier: Apache-2.0
"""Check that neither IOMMU nor Access Control Services divert transfers between GPUs and network cards.

With translation (Documentation/ABI/testing/sysfs-kernel-iommu_groups: type DMA or DMA-FQ) and with ACS redirection in
the bridges (PCI Express Base Specification, 7.7.11: ACS Control Register), every transfer between two devices goes up
to the root complex, also below one switch. NCCL's troubleshooting guide, "PCI Access Control Services", names both.
"""

import struct
from collections.abc import Iterator, Sequence

from containerhost.devices import pci
from containerhost.devices.findings import Finding, note
from containerhost.devices.model import Device, Kind
from containerhost.inventory.pci_topology import cards, common
from containerhost.linux.sysfs import Host
from containerhost.operator.doctor.hostdata import HostData

NAME = "iommu"
_GROUPS = "/sys/kernel/iommu_groups"
_TRANSLATING = ("DMA", "DMA-FQ")
_EXTENDED = 0x100  # offset of the extended capabilities
_SPACE = 4096  # bytes of configuration space
_ACS, _CONTROL = 0x000D, 6  # the capability's id, and the offset of its control register
_REDIRECT = 0x04 | 0x08  # redirection of requests, of completions


def check(data: HostData) -> Iterator[Finding]:
    gpus = [device for device in data.inventory.devices if device.kind is Kind.GPU]
    functions = [device for device in cards(data.inventory) if device.rdma]
    if not gpus or not functions:
        return
    yield from _translated(data.host, (*gpus, *functions))
    for bridge in sorted({bridge for gpu in gpus for function in functions
                          for bridge in shared_switch(data.host, gpu, function)}):
        if redirects(data.host.data(f"{bridge}/config", _SPACE) or b""):
            address = bridge.rpartition("/")[2]
            yield note(NAME, address, "this PCIe bridge leads transfers between the devices below its switch up to the "
                       "root complex (ACS)", f"turn that off at every boot: setpci -s {address} ECAP_ACS+0x6.w=0000; "
                       "not where virtual machines get devices")


def shared_switch(host: Host, one: Device, other: Device) -> tuple[str, ...]:
    """Return the directories of the bridges between two devices below one switch; none without a common one."""
    paths = [pci.directory(host, device.address).split("/") for device in (one, other)]
    shared = common(*(path[:-1] for path in paths))
    if shared <= 4:  # "", sys, devices, pci0000:00
        return ()
    return tuple("/".join(path[:length]) for path in paths for length in range(shared + 1, len(path)))


def redirects(config: bytes) -> bool:
    """Return whether a bridge's configuration space enables redirection; False if it is not fully readable."""
    place = _EXTENDED
    visited: set[int] = set()
    while place and place + _CONTROL + 2 <= len(config) and place not in visited:
        visited.add(place)
        (header,) = struct.unpack_from("<I", config, place)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, place + _CONTROL)
            return bool(control & _REDIRECT)
        place = header >> 20 & 0xFFC
    return False




def _translated(host: Host, devices: Sequence[Device]) -> Iterator[Finding]:
    found = []
    for device in devices:
        group = host.link(f"{pci.directory(host, device.address)}/iommu_group")
        if group and host.text(f"{_GROUPS}/{group}/type") in _TRANSLATING:
            found.append(device.id)
    if found:
        yield note(NAME, "IOMMU", f"it translates every transfer of {', '.join(found)}, so GPUDirect RDMA is slow or "
                   "fails", "boot with iommu=pt, which leaves the devices of the host untranslated")
