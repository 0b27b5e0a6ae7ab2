# SPDX-License-Identifier: Apache-2.0
"""Report faults of the devices of a container, or of the host. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import Kind
from containerhost.inventory.scan import Inventory

GONE = "this host has no such device any more"


class Fault(NamedTuple):
    """Describe a device that no new container gets: it is sick, tainted, blocked, or missing from the host.

    :ivar kind: None if it has left the host
    :ivar blocked: why it could not be cleaned; None if it is not blocked
    :ivar consumer: None if it is not allocated
    """

    device_id: str
    kind: Kind | None
    complaints: tuple[str, ...]
    taint: str | None
    state: State
    blocked: str | None
    consumer: Consumer | None


def of(records: Iterable[Allocation], inventory: Inventory) -> tuple[str, ...]:
    """Describe the faults of one consumer's devices.

    :returns: one text for each device that is sick or gone: ``0000:3b:00.0: fallen off the bus; ...``
    """
    found = []
    for record in records:
        if record.device_id not in inventory:
            found.append(f"{record.device_id}: {GONE}")
        elif not (device := inventory.get(record.device_id)).healthy:
            found.append(f"{record.device_id}: {'; '.join(device.health)}")
    return tuple(found)


def of_host(records: Mapping[str, Allocation], inventory: Inventory) -> tuple[Fault, ...]:
    """Return the faulty devices of the host by id, without those that the host itself uses."""
    present = {device.id: device for device in inventory.devices}
    found = []
    for device_id in sorted(present.keys() | records.keys()):
        device, record = present.get(device_id), records.get(device_id)
        kind, complaints, taint = (device.kind, device.health, device.taint) if device else (None, (GONE,), None)
        state, blocked, consumer = ((record.state, record.blocked, record.consumer) if record
                                    else (State.FREE, None, None))
        if (complaints or blocked) and not (device and device.host_use):
            found.append(Fault(device_id, kind, complaints, taint, state, blocked, consumer))
    return tuple(found)
