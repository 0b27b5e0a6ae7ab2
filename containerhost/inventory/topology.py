# SPDX-License-Identifier: Apache-2.0
"""Read the host's processors, memory and NUMA nodes, and their load.

Sources: Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/cputopology.rst and
Documentation/filesystems/proc.rst. Sizes are bytes, times nanoseconds unless a name says otherwise.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from containerhost.inventory import memorynodes
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host

_NODES = memorynodes.NODES
_CPUS = "/sys/devices/system/cpu"
_HUGEPAGES = re.compile(r"hugepages-([0-9]{1,9})kB")
_FAR = 255  # the largest distance in ACPI's SLIT
_NANOSECONDS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class NumaNode:
    """Describe the processors, memory and hugepages of a NUMA node.

    :ivar cpus: the node's CPUs that are online
    :ivar siblings: its cores, each as the hardware threads it has, by lowest thread
    :ivar socket: the package of all its CPUs; None if there are several, or it is unknown
    :ivar memory: bytes
    :ivar free: bytes
    :ivar hugepages: by page size in bytes: total and free number of pages
    :ivar distances: to each node of the host in their order, 10 being this node itself
    """

    id: int
    cpus: frozenset[int]
    siblings: tuple[frozenset[int], ...]
    socket: int | None
    memory: int
    free: int
    hugepages: Mapping[int, tuple[int, int]]
    distances: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CpuInfo:
    """Describe the host's processors: model, features, and numbers of sockets, cores and threads.

    :ivar arch: as ``uname -m`` prints it
    :ivar features: flags as /proc/cpuinfo names them
    """

    arch: str
    vendor: str | None
    model: str | None
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    features: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """Describe the host's NUMA nodes and processors.

    :ivar nodes: by id; a host without NUMA has one node, 0. Without nodes that have neither processors nor memory
    :ivar allocatable: nodes whose memory this process may use; empty if unknown
    :ivar of_devices: nodes with memory that belongs to an accelerator (:mod:`containerhost.inventory.memorynodes`).
        It is not part of the host's memory: none of them is among ``nodes``
    """

    nodes: tuple[NumaNode, ...]
    cpu: CpuInfo
    allocatable: frozenset[int] = frozenset()
    of_devices: tuple[NumaNode, ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset[int]().union(*(node.cpus for node in self.nodes))

    def memory_of(self, nodes: Iterable[int]) -> frozenset[int]:
        """Return the nodes to bind memory to on ``nodes``: for a node without memory, the nearest with some.

        A node that the host does not have stays."""
        known = {node.id: node for node in self.nodes}
        return frozenset(self._nearest_memory(known[node]) if node in known else node for node in nodes)

    def _nearest_memory(self, node: NumaNode) -> int:
        having = [other.id for other in self.nodes
                  if other.memory > 0 and (not self.allocatable or other.id in self.allocatable)]
        if node.id in having or not having:
            return node.id
        distances = dict(zip((other.id for other in self.nodes), node.distances, strict=False))
        return min(having, key=lambda other: (distances.get(other, _FAR), other))


class CpuTimes(NamedTuple):
    """Hold CPU times in nanoseconds since boot, summed over all CPUs."""

    kernel: int
    user: int
    idle: int
    iowait: int


class MemoryUse(NamedTuple):
    """Hold the size and the use of the host's memory in bytes, without that of accelerators.

    :ivar used: bytes not available to new programs: total less MemAvailable
    """

    total: int
    used: int


def read(host: Host | None = None) -> Topology:
    host = host or Host()
    online = id_list(host.text(f"{_CPUS}/online"))
    cores = _cores(host, online)
    ids, foreign = memorynodes.ids(host), memorynodes.of_devices(host)
    every = [_node(host, number, online, cores) for number in ids]
    own = [node for node in every if node.id not in foreign and (node.cpus or node.memory)]
    kept = frozenset(node.id for node in own)
    nodes = tuple(dataclasses.replace(node, distances=tuple(
        distance for other, distance in zip(ids, node.distances, strict=False) if other in kept)) for node in own)
    allocatable = id_list(host.fields("/proc/self/status").get("Mems_allowed_list"))
    return Topology(nodes or (_only_node(host, online, cores),), _cpu_info(host, online, cores), allocatable,
                    tuple(node for node in every if node.id in foreign and node.memory))


def _node(host: Host, number: int, online: frozenset[int], cores: Mapping[int, frozenset[int]]) -> NumaNode:
    directory = f"{_NODES}/node{number}"
    cpus = id_list(host.text(f"{directory}/cpulist"))
    cpus = cpus & online if online else cpus
    memory = _meminfo(host, number)
    distances = (host.text(f"{directory}/distance") or "").split()
    return NumaNode(
        id=number, cpus=cpus, siblings=_siblings(cpus, cores), socket=_socket(host, cpus),
        memory=memory["MemTotal"], free=memory["MemFree"],
        hugepages=_hugepages(host, f"{directory}/hugepages"),
        distances=tuple(int(distance[:6]) for distance in distances if distance.isascii() and distance.isdigit()))


def _meminfo(host: Host, number: int) -> dict[str, int]:
    """Return the total and free memory of a node. Its lines read ``Node 0 MemTotal:  32779340 kB``."""
    found = {key.rpartition(" ")[2]: value for key, value in host.fields(f"{_NODES}/node{number}/meminfo").items()}
    return {key: _kilobytes(found.get(key)) for key in ("MemTotal", "MemFree")}


def _only_node(host: Host, online: frozenset[int], cores: Mapping[int, frozenset[int]]) -> NumaNode:
    """Return the single node of a host whose kernel has no NUMA."""
    memory = host.fields("/proc/meminfo")
    return NumaNode(
        id=0, cpus=online, siblings=_siblings(online, cores), socket=_socket(host, online),
        memory=_kilobytes(memory.get("MemTotal")), free=_kilobytes(memory.get("MemFree")),
        hugepages=_hugepages(host, "/sys/kernel/mm/hugepages"), distances=(10,))


def _cores(host: Host, online: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return each CPU's core, as the set of its online threads; an unknown CPU is a separate core."""
    cores = {}
    for cpu in sorted(online):
        threads = id_list(host.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list")) & online
        cores[cpu] = threads | {cpu}
    return cores


def _siblings(cpus: frozenset[int], cores: Mapping[int, frozenset[int]]) -> tuple[frozenset[int], ...]:
    found = {cores.get(cpu, frozenset((cpu,))) & cpus for cpu in cpus}
    return tuple(sorted(found, key=min))


def _packages(host: Host, cpus: frozenset[int]) -> set[int | None]:
    return {host.number(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in cpus}


def _socket(host: Host, cpus: frozenset[int]) -> int | None:
    packages = _packages(host, cpus)
    return packages.pop() if len(packages) == 1 else None


def _hugepages(host: Host, directory: str) -> dict[int, tuple[int, int]]:
    found = {}
    for name in host.names(directory):
        match = _HUGEPAGES.fullmatch(name)
        if match:
            total = host.number(f"{directory}/{name}/nr_hugepages") or 0
            found[int(match[1]) * 1024] = (total, host.number(f"{directory}/{name}/free_hugepages") or 0)
    return dict(sorted(found.items()))


def _cpu_info(host: Host, online: frozenset[int], cores: Mapping[int, frozenset[int]]) -> CpuInfo:
    sockets = max(1, len(_packages(host, online)))
    count = max(1, len(set(cores.values())))
    first = _first_processor(host)
    return CpuInfo(
        arch=_arch(host, first),
        vendor=first.get("vendor_id") or first.get("CPU implementer"),
        model=first.get("model name") or first.get("cpu"),
        sockets=sockets,
        cores_per_socket=max(1, -(-count // sockets)),  # rounded up, because a core may be offline
        threads_per_core=max((len(core) for core in cores.values()), default=1),
        features=frozenset((first.get("flags") or first.get("Features") or "").split()),
    )


def _first_processor(host: Host) -> dict[str, str]:
    """Return the first block of /proc/cpuinfo; the others differ in number and clock only."""
    first: dict[str, str] = {}
    for line in host.lines("/proc/cpuinfo"):
        if not line.strip() and first:
            break
        key, _, value = line.partition(":")
        first[key.strip()] = value.strip()
    return first


def _arch(host: Host, cpu: Mapping[str, str]) -> str:
    """Return the architecture, from /proc (Linux 6.1) or, in an older captured tree, from its format of features."""
    told = host.text("/proc/sys/kernel/arch")
    if told or host.live:
        return told or os.uname().machine
    return "x86_64" if "flags" in cpu else "aarch64" if "Features" in cpu else "unknown"


def cpu_times(host: Host | None = None) -> CpuTimes:
    host = host or Host()
    row = next((line.split()[1:] for line in host.lines("/proc/stat") if line.startswith("cpu ")), [])
    ticks = [int(value) for value in row if value.isascii() and value.isdigit()]
    user, nice, system, idle, iowait, irq, softirq = (ticks + [0] * 7)[:7]
    tick = _NANOSECONDS // os.sysconf("SC_CLK_TCK")
    return CpuTimes(kernel=(system + irq + softirq) * tick, user=(user + nice) * tick, idle=idle * tick,
                    iowait=iowait * tick)


def uptime(host: Host | None = None) -> float:
    """Return the seconds since boot; 0.0 if unknown."""
    return next(iter(_numbers(host or Host(), "/proc/uptime")), 0.0)


def loadavg(host: Host | None = None) -> tuple[float, float, float]:
    """Return the number of runnable processes, averaged over 1, 5 and 15 minutes."""
    one, five, fifteen = [*_numbers(host or Host(), "/proc/loadavg"), 0.0, 0.0, 0.0][:3]
    return one, five, fifteen


def memory(host: Host | None = None) -> MemoryUse:
    """Return the use of the host's memory, without that of accelerators, which the kernel includes."""
    host = host or Host()
    table, foreign = host.fields("/proc/meminfo"), [_meminfo(host, node) for node in memorynodes.of_devices(host)]
    total = _kilobytes(table.get("MemTotal")) - sum(node["MemTotal"] for node in foreign)
    available = _kilobytes(table.get("MemAvailable") or table.get("MemFree")) - sum(node["MemFree"] for node in foreign)
    return MemoryUse(total=max(0, total), used=max(0, total - max(0, available)))


def _numbers(host: Host, path: str) -> list[float]:
    """Return the leading decimal fractions of a /proc line."""
    words = (host.text(path) or "").split()
    return [float(word) for word in words if re.fullmatch(r"[0-9]{1,15}\.[0-9]{1,9}", word, re.ASCII)]


def _kilobytes(text: str | None) -> int:
    """Parse ``32779340 kB`` into bytes; 0 for any other text."""
    number = (text or "").partition(" ")[0]
    return int(number) * 1024 if number.isascii() and number.isdigit() and len(number) <= 15 else 0
