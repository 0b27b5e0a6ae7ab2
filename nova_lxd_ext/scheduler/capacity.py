# SPDX-License-Identifier: Apache-2.0
"""Count how many servers of one request fit on a host, by nova-scheduler's view of the host.

Nova's filters determine whether one fits. Resources that only Placement knows (custom classes, reserved ones on
hosts with an allocation ratio above 1) are not counted: nova claims them for each server afterwards, and releases
all if one claim fails.
"""

import copy

from nova import exception, objects
from nova.pci import utils
from nova.scheduler.host_manager import HostState
from nova.virt import hardware

_UNBOUNDED = 1 << 30


def upper(host: HostState, spec: objects.RequestSpec, placed: int) -> int:
    """Return how many servers fit by cores, memory, disk and the numbers of devices and pinned cores.

    :param placed: servers of this request already on the host; nova subtracts their disks only from
        ``free_disk_mb``, which is the daemon's free space, while Placement counts the flavors' sizes
    """
    disk_mb = (0 if "is_bfv" in spec and spec.is_bfv else spec.root_gb * 1024) + spec.ephemeral_gb * 1024 + spec.swap
    disk_free_mb = host.total_usable_disk_gb * 1024 * _ratio(host.disk_allocation_ratio) - host.disk_mb_used
    ram_free_mb = host.free_ram_mb + host.total_usable_ram_mb * (_ratio(host.ram_allocation_ratio) - 1)
    cores_free = host.vcpus_total * _ratio(host.cpu_allocation_ratio) - host.vcpus_used
    return max(0, min(_count(cores_free, spec.vcpus), _count(ram_free_mb, spec.memory_mb),
                      _count(disk_free_mb, disk_mb) - (placed if disk_mb else 0), _by_devices(host, spec),
                      _by_pinned_cores(host, spec)))


def _by_devices(host: HostState, spec: objects.RequestSpec) -> int:
    """Return for how many servers the free PCI devices suffice, wherever they are."""
    pools = host.pci_stats.pools if host.pci_stats else []
    return min((sum(pool["count"] for pool in pools if utils.pci_device_prop_match(pool, request.spec))
                // request.count for request in _pci_requests(spec)), default=_UNBOUNDED)


def _by_pinned_cores(host: HostState, spec: objects.RequestSpec) -> int:
    """Return an upper bound of servers that fit into the free dedicated cores of the host's NUMA nodes.

    All of a server's nodes are assumed to be as small as its smallest."""
    needed = [len(cell.pcpuset) for cell in spec.numa_topology.cells if cell.pcpuset] if spec.numa_topology else []
    if not needed or not host.numa_topology:
        return _UNBOUNDED
    return int(sum(len(cell.free_pcpus) // min(needed) for cell in host.numa_topology.cells) // len(needed))


def _ratio(value: float | None) -> float:
    return value or 1.0


def _count(free: float, each: int) -> int:
    return int(free // each) if each else _UNBOUNDED


def needs_devices_or_numa(spec: objects.RequestSpec) -> bool:
    """Return whether ``upper`` may exceed ``exact``."""
    return bool(_pci_requests(spec)) or bool(spec.numa_topology)


def exact(host: HostState, spec: objects.RequestSpec, most: int) -> int:
    """Return how many servers, up to ``most``, get their PCI devices and NUMA nodes on the host.

    Changes nothing: works on copies, as ``HostState.consume_from_request`` does on the host itself.
    """
    requests, numa, host_numa = _pci_requests(spec), spec.numa_topology, host.numa_topology
    if (numa and not host_numa) or (requests and not host.pci_stats):
        return 0
    pci = copy.deepcopy(host.pci_stats)
    limits = objects.NUMATopologyLimits(cpu_allocation_ratio=_ratio(host.cpu_allocation_ratio),
                                        ram_allocation_ratio=_ratio(host.ram_allocation_ratio))
    for count in range(most):
        cells = None
        if numa:
            fitted = hardware.numa_fit_instance_to_host(host_numa, numa.obj_clone(), limits=limits,
                                                        pci_requests=requests, pci_stats=pci, provider_mapping=None)
            if fitted is None:
                return count
            host_numa = hardware.numa_usage_from_instance_numa(host_numa, fitted)
            cells = fitted.cells
        try:
            if requests:
                pci.apply_requests(requests, None, cells)
        except exception.PciDeviceRequestFailed:
            return count
    return most


def unusable_devices(host: HostState, spec: objects.RequestSpec, room: int) -> int:
    """Return how many free PCI devices of the host servers of this request cannot use.

    These are devices that the servers do not request, and those for which the host lacks the cores, memory or disk
    of another server.

    :param room: number of servers that fit according to ``upper``: a hint for the order of hosts
    """
    free = sum(pool["count"] for pool in host.pci_stats.pools) if host.pci_stats else 0
    return free - room * sum(request.count for request in _pci_requests(spec)) if free else 0


def _pci_requests(spec: objects.RequestSpec) -> list[objects.InstancePCIRequest]:
    return list(spec.pci_requests.requests) if spec.pci_requests else []
