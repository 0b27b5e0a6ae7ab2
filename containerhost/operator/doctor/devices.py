# SPDX-License-Identifier: Apache-2.0
"""Check the health of devices and their allocation records."""

import re
from collections.abc import Iterator

from containerhost.allocation.store import AllocationStore
from containerhost.devices import pci
from containerhost.devices.findings import Finding, note, wrong
from containerhost.devices.model import PARTS, Role
from containerhost.errors import AllocationsUnreadable
from containerhost.inventory import sharing, taints
from containerhost.operator.doctor.hostdata import HostData
from containerhost.operator.reports.allocations import remedy

NAME = "devices"
_AWAY = re.compile("it needs a reset or a power cycle")
_RESTART = re.compile("restart of the|Reboot|restart the host|only \"")
_RESET = re.compile("`containerhost scrub`|its driver asks for|since it was last reset|it must be reset")


def check(data: HostData) -> Iterator[Finding]:
    decided = taints.read(data.host)
    if decided.trouble:  # an error in the file, which applies to every device
        yield wrong(NAME, "taints", decided.trouble, "no new container gets a device until then")
    for device in data.inventory.devices:
        for complaint in (text for text in device.health if text != decided.trouble):
            source = taints.source(device, decided) if complaint == taints.complaint(device.taint) else None
            yield wrong(NAME, device.id, complaint, _remedy(complaint, device.id) if source is None else
                        f"when the work on it is done: `containerhost untaint {source}`")
        if device.kind not in PARTS and pci.is_beyond_nova(device.address):
            yield note(NAME, device.id, pci.NOVA_DOMAINS, "put the card into a slot that is not behind such a "
                       "controller (VMD: turn it off for the slot in the firmware)")
        if device.role is Role.VF and device.host_use:
            yield note(NAME, device.id, f"the host itself uses this virtual function: {'; '.join(device.host_use)}",
                       "no container is given it; take the host's interfaces and addresses off it, or keep it for the "
                       "host and leave it out of the cloud's configuration")
    for trouble in sharing.unknown_gpus(sharing.read(data.host), data.inventory.devices):
        yield wrong(NAME, "sharing", trouble, "take it out there, or put the GPU back")
    yield from _records(data)


def _remedy(complaint: str, device_id: str) -> str:
    """Return the remedy: a scrub needs a device that responds, and blocks one that it cannot clean."""
    if _AWAY.search(complaint):
        return "reset or power-cycle the host or the card; it is healthy at the next check"
    if _RESTART.search(complaint):
        return "restart the host once no container needs it any more; a reset of the device does not suffice"
    if _RESET.search(complaint):
        return (f"reset it: `containerhost scrub {device_id}` while no container has it, else a hard reboot of "
                "the server or VM that has it")
    return "repair that, and it is healthy at the next check"


def _records(data: HostData) -> Iterator[Finding]:
    try:
        records = AllocationStore(data.owners).records()
    except AllocationsUnreadable as error:
        yield wrong(NAME, "allocation records", str(error), "nothing is handed out until they can be read")
        return
    known = {device.id for device in data.inventory.devices}
    for record in records.values():
        present = record.device_id in known
        if record.blocked:
            yield wrong(NAME, record.device_id, f"blocked: {record.blocked}", remedy(record, present))
        elif not present:
            yield wrong(NAME, record.device_id, f"held by {record.consumer}, but this host has no such device",
                        "put the card back, or delete the container, and if it does not come back, free it: "
                        f"`containerhost unblock {record.device_id}`")
