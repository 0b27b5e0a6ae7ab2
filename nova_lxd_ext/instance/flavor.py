# SPDX-License-Identifier: Apache-2.0
"""Translate flavor and claims to the CPU, memory, disk and security of a container. Pure.

The keys are nova's own (doc/source/configuration/extra-specs of nova) and, where nova has none, those of
:mod:`nova_lxd_ext.validators`. Values arrive as the strings an administrator typed; keys that bypassed the API's
    checks (an old flavor, the database) are validated equally here.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from nova import objects
from oslo_utils import strutils, units

from containerhost import errors
from containerhost.allocation import sharedmemory
from containerhost.devices.grants import GPU_CAPABILITIES
from containerhost.engines.affinity import parse
from containerhost.engines.bounds import Bounds, Wanted, bounds_of
from containerhost.engines.gpubounds import GpuBounds
from containerhost.engines.spec import Cpu, IoLimit, Memory, RootDisk, Security
from hpcplan.affinity import Affinity
from nova_lxd_ext.validators import (
    ELASTIC,
    ELASTIC_PRIORITY,
    GPUS_MIN,
    LIVE_MIGRATION,
    LIVE_RESIZE,
    MEMORY_MAX,
    MEMORY_MIN,
    PREFERRED,
    REQUIRED,
    RESTART,
    SHARED_MEMORY,
    VCPUS_MAX,
    VCPUS_MIN,
    VF_RATE,
)

AFFINITY = "hpc:affinity"
ACCELERATORS = "accel:device_profile"
ORDINARY_PAGE_KIB = 4


@dataclasses.dataclass(frozen=True)
class HostCpus:
    """Describe the cores of this host as nova's options divide them.

    :ivar shared: ``[compute] cpu_shared_set``; None if unset, which means every core
    :ivar dedicated: ``[compute] cpu_dedicated_set``, which unpinned vCPUs do not use
    :ivar memory: the memory node of a NUMA node's containers, if it is another one
    """

    cells: Mapping[int, frozenset[int]]
    shared: frozenset[int] | None = None
    dedicated: frozenset[int] = frozenset()
    memory: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def choice(self) -> frozenset[int]:
        """Return the cores that an affinity may choose from: those of unpinned vCPUs."""
        everything = frozenset[int]().union(*self.cells.values())
        return everything & (everything - self.dedicated if self.shared is None else self.shared)

    def floating(self, node: int) -> frozenset[int]:
        """Return the cores of ``node`` that unpinned vCPUs may use.

        :raises UnsupportedOnHost: the node does not exist or has no shared cores
        """
        cores = self.cells.get(node, frozenset())
        allowed = cores if self.shared is None else cores & self.shared
        if not allowed:
            raise errors.UnsupportedOnHost(
                f"The server was placed on NUMA node {node}, of which the host has the cores {sorted(cores)}, but "
                f"[compute]cpu_shared_set includes none of them for unpinned vCPUs. Correct cpu_shared_set on this "
                "host.")
        return allowed


def cpu(vcpus: int, topology: objects.InstanceNUMATopology | None, host: HostCpus) -> Cpu:
    """Return the CPU limits: dedicated vCPUs get the cores that nova pinned them to.

    Others float over the shared cores of the NUMA node they were placed on, or of the whole host without a topology;
    if there are more such cores than vCPUs, the limit is the time of ``vcpus`` cores. With neither a topology nor a
    shared set the engine chooses ``vcpus`` cores.

    :raises SpecError: nova names a core this host does not have, or no core is left for unpinned vCPUs
    """
    if topology is not None:
        cores = frozenset().union(*(_cell_cores(cell, host) for cell in topology.cells))
        nodes = frozenset(host.memory.get(cell.id, cell.id) for cell in topology.cells)
    elif host.shared is not None:
        cores, nodes = host.shared, frozenset()
    else:
        return Cpu(count=vcpus)
    if absent := cores - frozenset().union(*host.cells.values()):
        # The engine would silently ignore them.
        raise errors.UnsupportedOnHost(
            f"Nova gives the server host cores {sorted(absent)}, which are missing or offline. Correct "
            "cpu_shared_set and cpu_dedicated_set in [compute] on this host.")
    return Cpu(count=vcpus, cores=cores, nodes=nodes, share=vcpus * 100 if vcpus < len(cores) else None)


def bound_cpu(vcpus: int, topology: objects.InstanceNUMATopology | None, host: HostCpus,
              extra_specs: Mapping[str, str]) -> Cpu:
    """Return the CPU limits with the affinity of ``hpc:affinity``.

    NUMA nodes and cores that nova has chosen stay; from the others, the host chooses exclusive cores for the
    container.

    :raises SpecError: the affinity is invalid, or contradicts nova's keys
    """
    found = cpu(vcpus, topology, host)
    text = extra_specs.get(AFFINITY)
    affinity = Affinity.ANY if text is None else parse(text, f"Flavor key {AFFINITY}")
    if text is None:
        return found
    if topology is None:
        return found if affinity is Affinity.ANY else Cpu(vcpus, affinity=affinity, choice=host.choice)
    require_same(affinity, topology, host)
    if any(cell.cpu_pinning for cell in topology.cells):
        return dataclasses.replace(found, affinity=affinity)
    choice = host.choice & frozenset[int]().union(*(host.cells.get(cell.id, frozenset()) for cell in topology.cells))
    return Cpu(vcpus, affinity=affinity, choice=choice)


def require_same(affinity: Affinity, topology: objects.InstanceNUMATopology, host: HostCpus) -> None:
    """Refuse an affinity that contradicts nova's choice of NUMA nodes and cores.

    :raises SpecError: naming both keys
    """
    cells = len(topology.cells)
    pinned = [bool(cell.cpu_pinning) for cell in topology.cells]
    said = None
    if affinity is Affinity.ANY:
        said = (f"{'hw:cpu_policy binds it to cores' if any(pinned) else 'hw:numa_nodes or hw:mem_page_size binds it'} "
                f"of {cells} NUMA nodes")
    elif any(cell.cpu_pinning and cell.cpuset for cell in topology.cells) or (any(pinned) and not all(pinned)):
        said = "hw:cpu_policy=mixed pins only some of its vCPUs"
    elif affinity is Affinity.CPU and {cell.id for cell in topology.cells} != {
            node for node, cores in host.cells.items() if cores}:
        said = f"hw:numa_nodes={cells} places it on {cells} of this host's {len(host.cells)} NUMA nodes"
    elif affinity in (Affinity.CPUMEM, Affinity.CPUMEMPIN) and cells > 1:
        said = f"hw:numa_nodes={cells} places it on {cells} NUMA nodes"
    if said is not None:
        raise errors.SpecError(f"Flavor key {AFFINITY}={affinity} and nova's placement contradict each other: {said}. "
                               "Remove one of the two keys from the flavor (or hw_numa_nodes, hw_cpu_policy from the "
                               "image).")


def _cell_cores(cell: objects.InstanceNUMACell, host: HostCpus) -> frozenset[int]:
    pinned = frozenset((cell.cpu_pinning or {}).values())
    floating = host.floating(cell.id) if cell.cpuset else frozenset()
    return pinned | floating


def memory(memory_mb: int, topology: objects.InstanceNUMATopology | None) -> Memory:
    """Return the memory: ``memory_mb`` MiB, and the huge pages that nova reserved (``hw:mem_page_size``).

    The kernel counts huge pages separately from ordinary memory, which every container needs: both limits apply.
    """
    hugepages: dict[int, int] = {}
    for cell in topology.cells if topology is not None else ():
        if cell.pagesize and cell.pagesize > ORDINARY_PAGE_KIB:
            page = cell.pagesize * units.Ki
            hugepages[page] = hugepages.get(page, 0) + cell.memory * units.Mi
    return Memory(size=memory_mb * units.Mi, hugepages=hugepages)


def root_disk(root_gb: int, extra_specs: Mapping[str, str], pool: str) -> RootDisk:
    """Return the root disk: ``root_gb`` GiB in ``pool`` (0 is the pool's default) with the limits of ``quota:disk_*``.

    :raises SpecError: a quota is not a number
    """
    return RootDisk(pool=pool, size=root_gb * units.Gi or None, io=_io_limit(extra_specs))


def _io_limit(extra_specs: Mapping[str, str]) -> IoLimit:
    def limit(direction: str, unit: str) -> int | None:
        """Return the lower of a direction's own limit and the total one: LXD applies limits per direction."""
        found = [number(extra_specs, f"quota:disk_{which}_{unit}_sec", 0) for which in (direction, "total")]
        return min((value for value in found if value), default=None)

    return IoLimit(read_bytes=limit("read", "bytes"), write_bytes=limit("write", "bytes"),
                   read_iops=limit("read", "iops"), write_iops=limit("write", "iops"))


def security(extra_specs: Mapping[str, str], *, allow_privileged: bool, isolated: bool) -> Security:
    """Return the security options of a flavor.

    :param isolated: the operator's default for ``lxd:isolated``
    :raises SpecError: a value is not a boolean
    :raises UnsupportedOnHost: the flavor is privileged, which the operator does not allow
    """
    privileged = _boolean(extra_specs, "lxd:privileged_allowed", False)
    if privileged and not allow_privileged:
        raise errors.UnsupportedOnHost(
            "The flavor requests a privileged container (lxd:privileged_allowed=true), which this host's operator does "
            "not allow. Use another flavor, or set allow_privileged in [lxd] on hosts whose tenants are trusted.")
    # A privileged container uses the host's ids, so there is no map to isolate.
    own_ids = not privileged and _boolean(extra_specs, "lxd:isolated", isolated)
    return Security(privileged=privileged, isolated=own_ids,
                    nesting=_boolean(extra_specs, "lxd:nested_allowed", False))


def shared_memory(extra_specs: Mapping[str, str], memory_mb: int) -> int | None:
    """Return the bytes of memory that a server shares with others of its job; None if it shares none.

    :raises SpecError: the flavor's number is invalid, 0, or more than the server's memory
    """
    found = number(extra_specs, SHARED_MEMORY)
    if found is None:
        return None
    sharedmemory.require_size(found * units.Mi, memory_mb * units.Mi, SHARED_MEMORY)
    return found * units.Mi


def elastic(extra_specs: Mapping[str, str], topology: objects.InstanceNUMATopology | None, cpu: Cpu, memory: Memory
            ) -> Bounds | None:
    """Return the bounds of a server's size while it runs; None if it did not opt in.

    Nova claims all resources of the flavor, so these are the maximum.

    :raises SpecError: the flavor requests more than it has, or nova's keys fix its cores
    """
    if not any(key in extra_specs for key in ELASTIC):
        return None
    if any(cell.cpu_pinning for cell in (topology.cells if topology is not None else ())):
        raise errors.SpecError(f"The flavor has {VCPUS_MIN} or the like and hw:cpu_policy, which fixes the server's "
                               "cores. Remove one of the two keys.")
    found = {key: number(extra_specs, key, 0 if key == ELASTIC_PRIORITY else 1) for key in ELASTIC}
    least, most = (None if found[key] is None else (found[key] or 0) * units.Mi for key in (MEMORY_MIN, MEMORY_MAX))
    return bounds_of(Wanted(found[VCPUS_MIN], found[VCPUS_MAX], least, most, found[ELASTIC_PRIORITY]), cpu, memory,
                   "The flavor")


def gpus(extra_specs: Mapping[str, str], capabilities: Iterable[str]) -> GpuBounds | None:
    """Return how many of its GPUs a server can lose; None if it did not opt in.

    :param capabilities: the operator's default for ``lxd:gpu_capabilities``
    :raises SpecError: the flavor's number is invalid, or nova does not allocate its GPUs
    """
    least = number(extra_specs, GPUS_MIN, 0)
    if least is None:
        return None
    if ACCELERATORS in extra_specs:
        raise errors.SpecError(f"The flavor has {GPUS_MIN} and {ACCELERATORS}: the elastic service does not change "
                               "Cyborg's devices. Remove one of the two keys.")
    return GpuBounds(least, gpu_capabilities(extra_specs, capabilities))


def gpu_capabilities(extra_specs: Mapping[str, str], default: Iterable[str]) -> frozenset[str]:
    """Return the driver capabilities of the container's GPUs; empty if the flavor has ``none``.

    :raises SpecError: a name is not one of :data:`~containerhost.devices.grants.GPU_CAPABILITIES`
    """
    text = extra_specs.get("lxd:gpu_capabilities")
    if text == "none":
        return frozenset()
    wanted = frozenset(default if text is None else (name.strip() for name in text.split(",")))
    if unknown := wanted.difference(GPU_CAPABILITIES):
        raise errors.SpecError(f"GPU capabilities {', '.join(sorted(map(repr, unknown)))} are unknown; "
                               f"lxd:gpu_capabilities must be none or some of {', '.join(GPU_CAPABILITIES)}.")
    return wanted


def processes(extra_specs: Mapping[str, str], default: int) -> int:
    """Return the maximum number of processes and threads of the container.

    :raises SpecError: the flavor's number is invalid
    """
    found = number(extra_specs, "lxd:process_limit")
    return default if found is None else found


def vf_rate(extra_specs: Mapping[str, str]) -> int | None:
    """Return the transmit limit of each of the server's virtual functions in Mbit/s; None is no limit.

    :raises SpecError: the flavor's number is invalid
    """
    return number(extra_specs, VF_RATE)


def restarts_to_migrate(extra_specs: Mapping[str, str], default: str) -> bool:
    """Return whether a live migration may restart the server.

    :raises SpecError: the value is not one of :data:`~nova_lxd_ext.validators.LIVE_MIGRATION`
    """
    text = extra_specs.get("lxd:live_migration", default)
    if text not in LIVE_MIGRATION:
        raise errors.SpecError(f"Flavor key lxd:live_migration must be {' or '.join(LIVE_MIGRATION)}, not {text!r}.")
    return text == RESTART


def live_resize_required(extra_specs: Mapping[str, str]) -> bool:
    """Return whether a running server may get the flavor only by a live resize.

    :raises SpecError: the value is not one of :data:`~nova_lxd_ext.validators.LIVE_RESIZE`
    """
    text = extra_specs.get("lxd:live_resize", PREFERRED)
    if text not in LIVE_RESIZE:
        raise errors.SpecError(f"Flavor key lxd:live_resize must be {' or '.join(LIVE_RESIZE)}, not {text!r}.")
    return text == REQUIRED


def _boolean(extra_specs: Mapping[str, str], key: str, default: bool) -> bool:
    try:
        return strutils.bool_from_string(extra_specs.get(key, default), strict=True)
    except ValueError as error:
        raise errors.SpecError(f"Flavor key {key} must be true or false, not {extra_specs[key]!r}.") from error


def number(extra_specs: Mapping[str, str], key: str, least: int = 1) -> int | None:
    """Return the number of a key; None if the flavor does not have it.

    :raises SpecError: it is not a number, or less than ``least``
    """
    text = extra_specs.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise errors.SpecError(f"Flavor key {key} must be a whole number of at least {least}, not {text!r}.")
    return int(text)
