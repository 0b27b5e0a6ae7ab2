# SPDX-License-Identifier: Apache-2.0
"""Choose the slices of a GPU for a server: first those it already holds, then free ones. Pure."""

import collections
from collections.abc import Mapping, Sequence

from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import Device
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import Inventory
from nova_lxd_ext.hardware.pci import DRIVER
from nova_lxd_ext.hardware.sliceproviders import Need, resource_class


def choose(needs: Sequence[Need], inventory: Inventory, records: Mapping[str, Allocation], consumer: Consumer
           ) -> tuple[str, ...]:
    """Return the ids of slices of the right profiles on the right GPUs, in a stable order.

    :raises DeviceHeld: Placement counts more free slices than there are
    """
    return tuple(name for need in needs for name in _chosen(need, inventory, records, consumer))


def held(records: Mapping[str, Allocation], consumer: Consumer) -> tuple[str, ...]:
    """Return the ids of the server's present slices, even if the host no longer shows them."""
    return tuple(name for name, record in sorted(records.items()) if record.consumer == consumer and "/" in name)


def satisfy(names: Sequence[str], asked: collections.Counter[str], inventory: Inventory) -> bool:
    """Return whether these slices match a flavor's request, as far as the host still reports their profiles."""
    present = {device.id: device for device in inventory.devices}
    told = (resource_class(present[name]) for name in names if name in present)
    return len(names) == asked.total() and collections.Counter(name for name in told if name) <= asked


def unusable(inventory: Inventory, records: Mapping[str, Allocation]) -> frozenset[str]:
    """Return the ids of slices that Placement must not allocate, although no server of nova has them."""
    return frozenset(device.id for device in inventory.devices if resource_class(device) is not None
                     and _unusable(device, inventory, records))


def _chosen(need: Need, inventory: Inventory, records: Mapping[str, Allocation], consumer: Consumer) -> list[str]:
    slices = [device for device in inventory.by_address(need.gpu) if resource_class(device) == need.resource_class]
    mine = [part.id for part in slices if part.id in records and records[part.id].consumer == consumer]
    free = [part.id for part in slices if part.id not in records and not _unusable(part, inventory, records)]
    found = (mine + free)[:need.count]
    if len(found) < need.count:
        raise DeviceHeld(f"Placement gave {consumer} {need.count} slices {need.resource_class} of GPU {need.gpu}, "
                         f"where {len(found)} of {len(slices)} are available: see `containerhost list` for the holders "
                         "and the health of the others")
    return sorted(found)


def _unusable(device: Device, inventory: Inventory, records: Mapping[str, Allocation]) -> bool:
    """Return whether a slice is unavailable, apart from those of nova's servers, which Placement counts."""
    record = records.get(device.id)
    if record is not None:
        return record.blocked is not None or record.consumer.driver != DRIVER
    return (not device.healthy or bool(device.host_use)
            or any(other.id in records for other in inventory.related(device)))
