# SPDX-License-Identifier: Apache-2.0
"""Find the NUMA nodes whose memory belongs to an accelerator.

A GPU that shares a cache-coherent address space with the processors (GH200, GB200, V100 on POWER9) has its memory
brought online by its driver as NUMA nodes without processors, for use through the GPU. Nodes without processors that
are the host's own memory (CXL, persistent memory) look the same in /sys/devices/system/node. What tells them apart:

- ``has_generic_initiator`` lists the nodes of accelerators (ACPI 6.3, SRAT Generic Initiator Affinity; Linux 5.10,
  drivers/base/node.c);
- NVIDIA's driver names a GPU's node in /proc/driver/nvidia/gpus/ADDRESS/numa_status (its nv-procfs.c: ``Node: 1``);
- where neither is there (firmware without such entries, driver not loaded yet): on a host with a GPU of coherent
  memory, the nodes that are the target of no DAX device, as which CXL and persistent memory come online
  (/sys/bus/dax/devices/daxN.M/target_node, Documentation/ABI/testing/sysfs-bus-dax).
"""

import re
from collections.abc import Iterable

from containerhost.idlist import id_list
from containerhost.sysfs import Host

NODES = "/sys/devices/system/node"
_NODE = re.compile(r"node([0-9]{1,5})")
_NVIDIA = "/proc/driver/nvidia/gpus"
_PCI = "/sys/bus/pci/devices"
_DAX = "/sys/bus/dax/devices"
# drivers/vfio/pci/nvgrace-gpu/main.c of Linux: GH200 120GB, 480GB, 144GB; GB200; GB300.
_COHERENT = frozenset(f"PCI_ID=10DE:{product}" for product in ("2342", "2345", "2348", "2941", "31C2"))


def ids(host: Host) -> tuple[int, ...]:
    """Return the numbers of all NUMA nodes; none on a kernel without NUMA."""
    return tuple(sorted(int(match[1]) for name in host.names(NODES) if (match := _NODE.fullmatch(name))))


def of_devices(host: Host) -> frozenset[int]:
    """Return the nodes without processors that belong to an accelerator."""
    bare = frozenset(node for node in ids(host) if not host.text(f"{NODES}/node{node}/cpulist"))
    if not bare:
        return bare
    initiators = id_list(host.text(f"{NODES}/has_generic_initiator"))
    found = bare & (initiators | _of_driver(host))
    return found or (bare - _of_dax(host) if _has_coherent_gpu(host) else found)


def of_gpu(host: Host, address: str) -> frozenset[int]:
    """Return the nodes of a GPU's memory, as far as its driver names them.

    :param address: PCI address
    """
    node = host.fields(f"{_NVIDIA}/{address}/numa_status").get("Node", "")
    return frozenset((int(node),)) if node.isascii() and node.isdigit() else frozenset()


def for_container(host: Host, gpus: Iterable[str]) -> frozenset[int]:
    """Return the nodes that a container's memory may come from: the host's, and those of its own GPUs.

    :param gpus: PCI addresses of the container's GPUs
    :returns: empty for every node, where none belongs to an accelerator
    """
    foreign = of_devices(host)
    if not foreign:
        return foreign
    filled = id_list(host.text(f"{NODES}/has_memory"))  # the kernel binds memory to no other node
    return filled - (foreign - frozenset[int]().union(*(of_gpu(host, address) for address in gpus)))


def _of_driver(host: Host) -> frozenset[int]:
    return frozenset[int]().union(*(of_gpu(host, address) for address in host.names(_NVIDIA)))


def _of_dax(host: Host) -> frozenset[int]:
    targets: Iterable[int | None] = (host.number(f"{_DAX}/{name}/target_node") for name in host.names(_DAX))
    return frozenset(node for node in targets if node is not None)


def _has_coherent_gpu(host: Host) -> bool:
    return any(not _COHERENT.isdisjoint((host.text(f"{_PCI}/{address}/uevent") or "").split("\n"))
               for address in host.names(_PCI))
