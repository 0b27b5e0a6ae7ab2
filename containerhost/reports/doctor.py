# SPDX-License-Identifier: Apache-2.0
"""Report what is wrong with a host, in words for its administrator."""

from collections.abc import Sequence
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.devices.scan import Inventory
from containerhost.errors import AllocationsUnreadable
from containerhost.reports.allocations import remedy
from containerhost.sysfs import Host
from containerhost.topology import Topology


def unlimited(host: Host) -> Sequence[str]:
    """Return what of a container's limits this host's kernel does not hold."""
    files = ("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers")
    if any("pids" in (host.text(file) or "").split() for file in files) or host.is_directory("/sys/fs/cgroup/pids"):
        return ()
    return ("nothing limits how many processes a container has, because the kernel has no control group controller "
            "pids; use one with CONFIG_CGROUP_PIDS, booted without cgroup_disable=pids",)


def complaints(inventory: Inventory, found: Topology, directory: Path) -> Sequence[str]:
    """Return what is wrong with the host, in words.

    :param directory: of the allocation records
    """
    wrong = [f"{device.id}: {complaint}" for device in inventory.devices for complaint in device.health]
    if len(found.nodes) > 1:
        wrong += [f"{device.id}: the firmware does not say which NUMA node it is on, so it cannot be placed near "
                  "its CPUs" for device in inventory.devices if device.numa_node is None]
    try:
        records = AllocationStore(directory).records()
    except AllocationsUnreadable as error:
        return [*wrong, str(error)]
    known = {device.id for device in inventory.devices}
    wrong += [f"{record.device_id}: blocked: {record.blocked}; {remedy(record, record.device_id in known)}"
              for record in records.values() if record.blocked]
    wrong += [f"{record.device_id}: held by {record.consumer}, but this host has no such device"
              for record in records.values() if record.device_id not in known]
    return wrong
