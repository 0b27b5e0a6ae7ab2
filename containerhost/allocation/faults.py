# SPDX-License-Identifier: Apache-2.0
"""Tell what is wrong with the devices of a container. Pure."""

from collections.abc import Iterable

from containerhost.allocation.store import Allocation
from containerhost.inventory.scan import Inventory


def of(records: Iterable[Allocation], inventory: Inventory) -> tuple[str, ...]:
    """Return what is wrong with the devices of one consumer, in words.

    :param records: of one owner
    :returns: one text for each device that is sick or gone: ``0000:3b:00.0: fallen off the bus; ...``
    """
    present = {device.id: device for device in inventory.devices}
    found = []
    for record in records:
        device = present.get(record.device_id)
        if device is None:
            found.append(f"{record.device_id}: this host has no such device any more")
        elif not device.healthy:
            found.append(f"{record.device_id}: {'; '.join(device.health)}")
    return tuple(found)
