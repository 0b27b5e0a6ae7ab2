# SPDX-License-Identifier: Apache-2.0
"""Report this host's resources and their usage to nova's resource tracker.

One call of :meth:`Resources.look` reads the kernel's files and sends two short requests to the engine, however many
containers there are. The servers' use of CPUs, NUMA cells and devices is tracked by nova, not here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from nova.objects.fields import HVType
from nova.virt import hardware
from oslo_log import log as logging
from oslo_serialization import jsonutils
from oslo_utils import units

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Engine, PoolUsage, ServerInfo
from containerhost.errors import AllocationsUnreadable
from containerhost.inventory import devicechoice, freedevices, topology
from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import CpuInfo, MemoryUse, Topology
from containerhost.linux.sysfs import Host
from nova_lxd_ext.hardware import pci
from nova_lxd_ext.hardware.devicefaults import DeviceFaults
from nova_lxd_ext.hardware.devicespec import one_time_use
from nova_lxd_ext.host import cpusets, hostinfo, numa
from nova_lxd_ext.host.architectures import canonical
from nova_lxd_ext.host.cpusets import CpuSets

PAIRS = "lxd_device_pairs"  # free GPUs with a free network function below their PCIe switch

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """Hold the state of the host's daemon, topology, CPUs, memory and storage pool at one moment."""

    server: ServerInfo
    topology: Topology
    cpus: CpuSets
    memory: MemoryUse
    pool: PoolUsage


class Resources:
    """Report this host's CPUs, memory, storage pool and PCI devices to nova's resource tracker.

    :param faults: receives the records and the devices at each call
    """

    def __init__(self, engine: Engine, host: Host, inventory: Callable[[], Inventory], store: AllocationStore,
                 pool: str, faults: DeviceFaults | None = None) -> None:
        self._engine = engine
        self._host = host
        self._inventory = inventory
        self._store = store
        self._pool = pool
        self._faults = faults or DeviceFaults()

    def look(self) -> HostFacts:
        found = topology.read(self._host)
        return HostFacts(server=self._engine.server(), topology=found, cpus=cpusets.configured(found.cpus),
                         memory=topology.memory(self._host), pool=self._engine.pool(self._pool))

    def available(self, nodename: str) -> dict[str, Any]:
        """Return the resources for ComputeDriver.get_available_resource."""
        devices, pairs = self._devices()
        return describe(self.look(), nodename, devices, pairs)

    def _devices(self) -> tuple[list[dict[str, Any]], int]:
        """Return the devices for nova, and the number of free pairs; none if the records are unreliable."""
        try:
            records = self._store.records()
        except AllocationsUnreadable as error:
            LOG.error("No device of this host is reported to nova: %s", error)
            return [], 0
        inventory = self._inventory()
        self._faults.look(records, inventory)
        free = freedevices.candidates(inventory, self._host, records)
        return pci.passthrough(inventory, records, one_time_use), devicechoice.pairs(free)


def describe(facts: HostFacts, nodename: str, devices: list[dict[str, Any]], pairs: int = 0) -> dict[str, Any]:
    """Describe the host in nova's format, with sizes in MiB and GiB as in nova/virt/fake.py. Pure."""
    reserved = hardware.numa_get_reserved_huge_pages()
    return {
        "hypervisor_hostname": nodename,
        # Nova has no hypervisor type for Incus; images and filters need not distinguish them.
        "hypervisor_type": HVType.LXD,
        "hypervisor_version": hostinfo.version_number(facts.server.version),
        "supported_instances": hostinfo.supported_instances(facts.server.architectures),
        "cpu_info": jsonutils.dumps(_cpu_info(facts.topology.cpu, len(facts.topology.nodes))),
        "vcpus": len(facts.cpus.shared),
        # The resource tracker overwrites this with its servers' total.
        "vcpus_used": 0,
        "memory_mb": facts.memory.total // units.Mi,
        "memory_mb_used": facts.memory.used // units.Mi,
        "local_gb": facts.pool.total // units.Gi,
        "local_gb_used": facts.pool.used // units.Gi,
        "disk_available_least": max(facts.pool.total - facts.pool.used, 0) // units.Gi,
        "numa_topology": numa.topology(facts.topology, facts.cpus, reserved)._to_json(),
        "pci_passthrough_devices": jsonutils.dumps(devices),
        "stats": {PAIRS: pairs},
    }


def _cpu_info(cpu: CpuInfo, cells: int) -> dict[str, Any]:
    return {
        "arch": canonical(cpu.arch),
        "model": cpu.model,
        "vendor": cpu.vendor,
        "topology": {"cells": cells, "sockets": cpu.sockets, "cores": cpu.cores_per_socket,
                     "threads": cpu.threads_per_core},
        "features": sorted(cpu.features),
    }
