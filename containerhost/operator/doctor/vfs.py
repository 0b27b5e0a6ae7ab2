# SPDX-License-Identifier: Apache-2.0
"""Check that network cards have the virtual functions that containers get."""

from collections.abc import Iterator

from containerhost.devices import pci
from containerhost.devices.findings import Finding, note, wrong
from containerhost.devices.model import Device, LinkLayer, Role
from containerhost.operator.doctor.hostdata import HostData
from containerhost.operator.suggest.offers import unprovisioned

NAME = "vfs"
_NO_GUID = "0000:0000:0000:0000"


def check(data: HostData) -> Iterator[Finding]:
    for device in unprovisioned(data.inventory):
        yield note(NAME, device.id, f"it could have {device.total_vfs} virtual functions and has none",
                   f"`containerhost vfs apply FILE` with the line {device.id}: {device.total_vfs}")
    for device in data.inventory.devices:
        if device.role is Role.PF and device.total_vfs:
            path = f"{pci.directory(data.host, device.address)}/sriov_drivers_autoprobe"
            if data.host.text(path) == "0":
                yield wrong(NAME, device.id, "no driver is bound to its virtual functions when they are made "
                            "(sriov_drivers_autoprobe is 0)", f"echo 1 > {path}, and recreate them")
        if _without_guid(device):
            yield note(NAME, device.id, "it has no GUID, so its port stays down until a server or VM brings one",
                       "give each function one: `ip link set dev PF vf N node_guid … port_guid …`")


def _without_guid(device: Device) -> bool:
    return (device.role is Role.VF and device.link_layer is LinkLayer.INFINIBAND and device.rdma is not None
            and device.rdma.node_guid == _NO_GUID)
