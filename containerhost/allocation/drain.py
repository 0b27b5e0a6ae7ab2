# SPDX-License-Identifier: Apache-2.0
"""Wait until no container has a device that new containers must not get."""

from collections.abc import Mapping

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, AllocationStore, excludes
from containerhost.devices.model import Device
from containerhost.errors import NotDrained
from containerhost.inventory.scan import Inventory
from containerhost.linux.poll import wait_while

POLL_INTERVAL = 1.0  # s; each poll reads a few small files


def holders(records: Mapping[str, Allocation], device: Device, inventory: Inventory) -> dict[str, str]:
    """Return who has the device or a part of it, by device id.

    Detached ones have no holder; blocked ones do while a container runs that may still use them."""
    parts = {device.id, *(other.id for other in inventory.related(device) if other.parent == device.id)}
    parts |= {name for name in records if "/" not in device.id and excludes(device.id, name)}
    return {name: str(record.consumer) for name, record in sorted(records.items())
            if name in parts and record.state is not State.DETACHED
            and (record.blocked is None or (record.holders and not record.ended))}


def drain(store: AllocationStore, device: Device, inventory: Inventory, timeout: float) -> None:
    """Wait until no container has the device or a part of it. Takes nothing from any container.

    :param timeout: seconds
    :raises NotDrained: some still have it
    """
    left = wait_while(lambda: holders(store.records(), device, inventory), timeout, POLL_INTERVAL)
    if left:
        raise NotDrained(f"device {device.id} is tainted, but not drained after {timeout:g} s: "
                         f"{'; '.join(f'{who} has {name}' for name, who in left.items())}. End or move these, then "
                         "drain it again; or untaint it")
