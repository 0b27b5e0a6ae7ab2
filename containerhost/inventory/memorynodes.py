# SPDX-License-Identifier: Apache-2.0
"""Find the NUMA nodes whose memory belongs to an accelerator.

A GPU that shares a cache-coherent address space with the processors (GH200, GB200, V100 on POWER9) has its memory
brought online by its driver as NUMA nodes without processors, for use through the GPU. Nodes without processors that
are the host's own memory (CXL, persistent memory) look the same in /sys/devices/system/node. They are distinguished
as follows:

- ``has_generic_initiator`` lists the nodes of accelerators (ACPI 6.3, SRAT Generic Initiator Affinity; Linux 5.10,
  drivers/base/node.c);
- the driver names a GPU's node, which the vendor's plug-in reads (``Vendor.memory_nodes``);
- where neither exists (firmware without such entries, driver not loaded yet): on a host with a GPU of coherent
  memory, the nodes that are the target of no DAX device, as which CXL and persistent memory come online
  (/sys/bus/dax/devices/daxN.M/target_node, Documentation/ABI/testing/sysfs-bus-dax).
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from containerhost import vendors
from containerhost.devices.grants import Grant
from containerhost.linux import cpuset
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback

NODES = "/sys/devices/system/node"
_NODE = re.compile(r"node([0-9]{1,5})")
_PCI = "/sys/bus/pci/devices"
_DAX = "/sys/bus/dax/devices"

Nodes = frozenset[int]
Change = Callable[[Nodes, Nodes, Nodes], Nodes]  # the container's current nodes, those of GPUs, those of the host


class Binder(Protocol):
    def bind_memory(self, pid: int, nodes: Collection[int]) -> None: ...


def ids(host: Host) -> tuple[int, ...]:
    """Return the numbers of all NUMA nodes; none on a kernel without NUMA."""
    return tuple(sorted(int(match[1]) for name in host.names(NODES) if (match := _NODE.fullmatch(name))))


def of_devices(host: Host) -> frozenset[int]:
    """Return the nodes without processors that belong to an accelerator."""
    bare = frozenset(node for node in ids(host) if not host.text(f"{NODES}/node{node}/cpulist"))
    if not bare:
        return bare
    initiators = id_list(host.text(f"{NODES}/has_generic_initiator"))
    found = bare & (initiators | frozenset(_of_drivers(host).values()))
    return found or (bare - _of_dax(host) if _has_coherent_gpu(host) else found)


def for_container(host: Host, gpus: Iterable[str]) -> frozenset[int]:
    """Return the nodes that a container's memory may come from: the host's, and those of its GPUs.

    :returns: empty for every node, if none belongs to an accelerator
    """
    foreign = of_devices(host)
    if not foreign:
        return foreign
    filled = id_list(host.text(f"{NODES}/has_memory"))  # nodes without memory cannot be bound
    named = _of_drivers(host)
    return filled - (foreign - {named[address] for address in gpus if address in named})


def admit(host: Host, root: Binder, pid: Callable[[], int | None], grants: Iterable[Grant]) -> None:
    """Permit a running container memory of GPUs that it gets, unless it is bound to some of the host's nodes.

    :param pid: returns the container's first process; None if it is not running
    :raises HostActionFailed: the kernel refuses
    """
    _rebind(host, root, pid, grants, lambda present, nodes, hosts: present | nodes if hosts <= present else present)


@contextlib.contextmanager
def withdrawn(host: Host, root: Binder, pid: Callable[[], int | None], grants: Sequence[Grant],
              remaining: Sequence[Grant]) -> Iterator[None]:
    """Move memory off the GPUs that a running container loses in the block; undone if it fails.

    :raises HostActionFailed: the kernel refuses
    """
    kept = {grant.device.address for grant in remaining if grant.gpu}
    going = [grant for grant in grants if grant.gpu and grant.device.address not in kept]
    with Rollback("memory of GPUs") as undo:
        if _rebind(host, root, pid, going, lambda present, nodes, hosts: present - nodes):
            undo.on_error("its nodes", admit, host, root, pid, going)
        yield


def _rebind(host: Host, root: Binder, pid: Callable[[], int | None], grants: Iterable[Grant], change: Change) -> bool:
    """Change the nodes whose memory a running container may use."""
    gpus = [grant.device.address for grant in grants if grant.gpu]
    named = _of_drivers(host) if gpus and of_devices(host) else {}
    nodes = frozenset(named[address] for address in gpus if address in named)
    number = pid() if nodes else None
    if number is None:
        return False
    filled = id_list(host.text(f"{NODES}/has_memory"))
    present = cpuset.nodes_of(number, host)
    wanted = change(present, nodes & filled, filled - of_devices(host))
    if wanted and wanted != present:
        root.bind_memory(number, sorted(wanted))
    return wanted != present


def _of_drivers(host: Host) -> dict[str, int]:
    """Return the memory nodes of GPUs by PCI address, as far as their drivers report them."""
    return {address: node for vendor in vendors.load() for address, node in vendor.memory_nodes(host).items()}


def _of_dax(host: Host) -> frozenset[int]:
    targets: Iterable[int | None] = (host.number(f"{_DAX}/{name}/target_node") for name in host.names(_DAX))
    return frozenset(node for node in targets if node is not None)


def _has_coherent_gpu(host: Host) -> bool:
    ids = (ids.upper().split(":") for vendor in vendors.load() for ids in vendor.coherent_gpus)
    coherent = tuple(f"pci:v0000{vendor}d0000{product}" for vendor, product in ids)
    return any((host.text(f"{_PCI}/{address}/modalias") or "").startswith(coherent) for address in host.names(_PCI))
