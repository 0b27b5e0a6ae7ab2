# SPDX-License-Identifier: Apache-2.0
"""Translate CPUs, memory and disk rates of a VM to a container's limits. Pure."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from containerhost.allocation.sharedmemory import JobMemory
from containerhost.engines.affinity import parse
from containerhost.engines.bounds import Bounds, Wanted, bounds_of
from containerhost.engines.gpubounds import GpuBounds
from containerhost.engines.spec import Cpu, IoLimit, Memory
from containerhost.errors import SpecError
from hpcplan.affinity import Affinity
from onedriver.errors import BadInput
from onedriver.vm import MIB, Disk, Topology, Vm

JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
GPUS = "gpus"
NETWORK = "02"  # prefix of the class of PCI network functions
BOUNDS = re.compile(r"(?P<key>cores|memory|priority|gpus)=(?P<least>[0-9]{1,9})(?:-(?P<most>[0-9]{1,9}))?", re.I | re.A)


@dataclasses.dataclass(frozen=True)
class NodeCores:
    """Map the host's NUMA nodes to their cores and memory nodes.

    :ivar memory: the memory node of a NUMA node's containers, if it is another one
    """

    cores: Mapping[int, frozenset[int]] = dataclasses.field(default_factory=dict)
    memory: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def of(self, nodes: frozenset[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self.cores.get(node, frozenset()) for node in nodes))

    def memory_of(self, nodes: frozenset[int]) -> frozenset[int]:
        return frozenset(self.memory.get(node, node) for node in nodes)


def cpu(vm: Vm, host: NodeCores) -> Cpu:
    """Return the CPU limits with HPC's affinity. Cores and nodes chosen by OpenNebula's core stay.

    :raises BadInput: the affinity is invalid, or contradicts TOPOLOGY or CPU
    """
    found = placed_cpu(vm, host)
    if vm.affinity is None:
        return found
    try:
        affinity = parse(vm.affinity, f"VM {vm.id}: AFFINITY of HPC")
    except SpecError as error:
        raise BadInput(str(error)) from error
    nodes = frozenset(node.memory_node for node in vm.topology.nodes)
    require_same(vm, affinity, nodes, host)
    if affinity is Affinity.ANY:
        return found
    if vm.topology.pin_policy in ("CORE", "THREAD", "SHARED"):
        return dataclasses.replace(found, affinity=affinity)
    return Cpu(vm.vcpu, affinity=affinity, choice=host.of(nodes or frozenset(host.cores)))


def require_same(vm: Vm, affinity: Affinity, nodes: frozenset[int], host: NodeCores) -> None:
    """Raise BadInput, naming both attributes, if the template contradicts the affinity."""
    said, policy = None, vm.topology.pin_policy
    if affinity is Affinity.ANY:
        said = f"TOPOLOGY binds it (PIN_POLICY or NODE_AFFINITY: {policy})" if policy != "NONE" else None
    elif policy == "NONE" and vm.cpu < 100 * vm.vcpu:
        said = f"CPU={vm.cpu / 100:g} is less than VCPU={vm.vcpu}, and its cores are reserved for it"
    elif affinity is Affinity.CPU and policy != "NONE" and nodes != host.cores.keys():
        said = f"TOPOLOGY places it on {len(nodes)} of this host's {len(host.cores)} NUMA nodes"
    elif affinity in (Affinity.CPUMEM, Affinity.CPUMEMPIN) and len(nodes) > 1:
        said = f"TOPOLOGY places it on {len(nodes)} NUMA nodes"
    if said is not None:
        raise BadInput(f"VM {vm.id}: HPC=[AFFINITY={affinity}] and its other attributes contradict each other: {said}; "
                       "change one of them")


def placed_cpu(vm: Vm, host: NodeCores) -> Cpu:
    """Return the CPU limits: pinned to the CPUs, or all of the nodes, that the core chose; otherwise CPU's time."""
    nodes = frozenset(node.memory_node for node in vm.topology.nodes)
    unknown = nodes - host.cores.keys()
    if unknown:
        raise BadInput(f"VM {vm.id} is placed on NUMA node {min(unknown)}, which this host does not have")
    memory_nodes = host.memory_of(nodes)
    if vm.topology.pin_policy == "NODE_AFFINITY":
        return Cpu(vm.vcpu, host.of(nodes), memory_nodes, share=vm.cpu)
    cores = frozenset[int]().union(*(node.cpus for node in vm.topology.nodes))
    require_chosen(vm.id, vm.topology, cores)
    return Cpu(vm.vcpu, cores, memory_nodes) if cores else Cpu(vm.vcpu, share=vm.cpu)


def require_chosen(vm_id: int, topology: Topology, cores: frozenset[int]) -> None:
    if topology.pin_policy != "NONE" and not cores:
        raise BadInput(f"VM {vm_id} requests pinning ({topology.pin_policy}), but the core chose no CPUs: set the "
                       "host's PIN_POLICY to PINNED")


def memory(vm: Vm) -> Memory:
    page = vm.topology.hugepage
    return Memory(vm.memory, {page: vm.memory} if page else {})


def processes(own: Mapping[str, str], key: str, most: int) -> int:
    """Return the maximum number of processes and threads of a container.

    :param own: the template's attributes of the driver
    :param key: the one that requests fewer
    :param most: the administrator's maximum
    :raises BadInput: the value is invalid
    """
    text = own.get(key, "").strip()
    if text and (not NUMBER.fullmatch(text) or int(text) > most):
        raise BadInput(f"{key} is {text[:60]!r}, but must be a number from 1 to {most}, the node's process_limit")
    return int(text) if text else most


def shared_memory(vm: Vm) -> JobMemory | None:
    """Return the size of the shared memory of a VM with others of its owner's job; None if it has none.

    :raises BadInput: HPC is invalid
    """
    size, job = vm.hpc.get("SHARED_MEMORY", ""), vm.hpc.get("JOB", "")
    if not size and not job:
        return None
    if not NUMBER.fullmatch(size) or int(size) * MIB > vm.memory:
        raise BadInput(f"HPC of VM {vm.id} has SHARED_MEMORY={size[:60]!r}, but must have a number of MiB from 1 to "
                       f"{vm.memory // MIB}, the VM's MEMORY, against which it counts")
    if not JOB.fullmatch(job):
        raise BadInput(f"HPC of VM {vm.id} has JOB={job[:60]!r}, but must name the job whose VMs share memory: at most "
                       "64 letters, digits, dots, dashes, underscores")
    if vm.uid is None:
        raise BadInput(f"VM {vm.id} has no UID, so its partners for shared memory are unknown")
    return JobMemory(str(vm.uid), job, int(size) * MIB)


def elastic(vm: Vm, cpu: Cpu, memory: Memory) -> Bounds | None:
    """Return the bounds of a VM's size while it runs; None if its template lacks ELASTIC.

    :raises BadInput: HPC is invalid, or exceeds CPU, VCPU and MEMORY
    """
    found = bounds(vm)
    if not found.keys() - {GPUS}:
        return None
    if vm.topology.pin_policy not in ("NONE", "NODE_AFFINITY"):
        raise BadInput(f"HPC of VM {vm.id} has ELASTIC, and TOPOLOGY binds it to cores ({vm.topology.pin_policy}); "
                       "remove one of the two")
    (cores, memories), priority = (_bounds(found.get(key)) for key in ("cores", "memory")), found.get("priority")
    least, most = (None if size is None else size * MIB for size in memories)
    try:
        allowed = bounds_of(Wanted(*cores, least, most, int(priority["least"]) if priority else None), cpu, memory,
                            f"HPC=[ELASTIC] of VM {vm.id}")
    except SpecError as error:
        raise BadInput(str(error)) from error
    if vm.cpu < 100 * allowed.cores.most:
        raise BadInput(f"VM {vm.id} may grow to {allowed.cores.most} cores by HPC=[ELASTIC], but claims only "
                       f"CPU={vm.cpu / 100:g} of them; raise CPU, or set cores=LEAST-MOST with a lower maximum")
    return allowed


def elastic_gpus(vm: Vm, capabilities: Iterable[str]) -> GpuBounds | None:
    """Return how many of its GPUs a VM can lose; None if its template does not set it.

    :param capabilities: driver capabilities whose libraries come with its GPUs
    :raises BadInput: HPC is invalid
    """
    least, most = _bounds(bounds(vm).get(GPUS))
    if least is None:
        return None
    gpus = sum(1 for pci in vm.pcis if not (pci.class_code or "").startswith(NETWORK)
               and not (pci.address and "/" in pci.address.device_id))
    if not least <= (gpus if most is None else most) == gpus:
        raise BadInput(f"HPC of VM {vm.id} has ELASTIC={vm.hpc['ELASTIC'][:60]!r}, but its template requests {gpus} "
                       "whole GPUs, all of which it has while they are healthy: set gpus=LEAST, or gpus=LEAST-MOST "
                       "with these as the most")
    return GpuBounds(least, frozenset(capabilities))


def bounds(vm: Vm) -> dict[str, re.Match[str]]:
    """Return the parts of a template's ELASTIC by key; none without ELASTIC.

    :raises BadInput: HPC is invalid
    """
    text = vm.hpc.get("ELASTIC", "")
    items = text.split(",") if text else []
    found = {match["key"].lower(): match for item in items if (match := BOUNDS.fullmatch(item.strip()))}
    if len(found) != len(items):
        raise BadInput(f"HPC of VM {vm.id} has ELASTIC={text[:60]!r}, but must have some of cores=LEAST-MOST, "
                       "memory=LEAST-MOST (MiB), gpus=LEAST and priority=0 to 10, separated by commas")
    return found


def _bounds(match: re.Match[str] | None) -> tuple[int | None, int | None]:
    """Return the minimum and the maximum; None if unset."""
    if match is None:
        return None, None
    return int(match["least"]), int(match["most"]) if match["most"] else None


def io_limit(disk: Disk) -> IoLimit:
    """Return the rate limits of a disk; a total limits reading and writing each, which cgroups count separately."""
    return IoLimit(*(disk.speed.get(f"{way}_{unit}_SEC", disk.speed.get(f"TOTAL_{unit}_SEC"))
                     for unit in ("BYTES", "IOPS") for way in ("READ", "WRITE")))
