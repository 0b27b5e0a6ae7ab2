# SPDX-License-Identifier: Apache-2.0
"""Write data about a node and its VMs for OpenNebula's monitoring in its template syntax. Pure.

As in OpenNebula, memory of hosts and VMs is in KiB, of GPUs in MiB, and CPU in hundredths of a CPU.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from containerhost import vendors
from containerhost.devices.model import Device, Kind, divided
from containerhost.engines.contract import ContainerState, Metrics, ServerInfo, Status
from containerhost.inventory.scan import Inventory
from containerhost.linux.storage.diskio import DiskIo
from containerhost.vendors.base import Use
from onedriver import template
from onedriver.node.devices import UNKNOWN_SLICE, product
from onedriver.node.names import LABEL, PREFIX
from onedriver.node.pcifilter import PciFilter
from onedriver.pciaddress import from_device_id

if TYPE_CHECKING:
    from containerhost.inventory.topology import MemoryUse, NumaNode, Topology

ROOT = "root"  # name of the root disk in the container
KIB, MIB = 1 << 10, 1 << 20
SECOND = 1_000_000_000  # ns
CLASS_NAMES = {"0200": "Ethernet controller", "0207": "Infiniband controller", "0208": "Fabric controller",
               "0300": "VGA compatible controller", "0302": "3D controller", "0380": "Display controller",
               "0c06": "InfiniBand", "1200": "Processing accelerators"}
STATES = {Status.RUNNING: "RUNNING", Status.STARTING: "RUNNING", Status.STOPPING: "RUNNING", Status.FROZEN: "SUSPENDED",
          Status.STOPPED: "POWEROFF", Status.ERROR: "FAILURE"}


@dataclasses.dataclass(frozen=True)
class Space:
    """Hold the size and usage of one datastore on the node, in bytes."""

    datastore: int
    total: int
    used: int
    free: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """Hold one sample of a container's CPU time.

    :ivar pid: its first process, which identifies the start
    :ivar cpu_time: ns since that start
    :ivar moment: s since the host's start
    """

    pid: int
    cpu_time: int
    moment: float


# The host.


def host_system(driver: str, engine: str, server: ServerInfo, host: "Topology", inventory: Inventory,
                own: Collection[str], elsewhere: Collection[str], reported: PciFilter) -> str:
    """Report host/system: rarely changing data.

    :param own: ids of devices that containers of this driver have
    :param elsewhere: ids of devices that containers of other drivers have
    """
    facts = {"ARCH": host.cpu.arch, "MODELNAME": host.cpu.model, "HYPERVISOR": driver, "HOSTNAME": server.hostname,
             f"{engine.upper()}_VERSION": f"{server.name} {server.version}", "TOTALCPU": len(host.cpus) * 100,
             "TOTALMEMORY": sum(node.memory for node in host.nodes) // KIB}
    return "\n".join([template.lines(facts), *numa_system(host.nodes), *pci(inventory, own, elsewhere, reported)])


def numa_system(nodes: "Iterable[NumaNode]") -> Iterator[str]:
    nodes = tuple(nodes)
    for node in nodes:
        for size, (pages, _) in node.hugepages.items():
            yield template.vector("HUGEPAGE", {"NODE_ID": node.id, "SIZE": size // KIB, "PAGES": pages})
        for core in node.siblings:
            cpus = ",".join(map(str, sorted(core)))
            yield template.vector("CORE", {"NODE_ID": node.id, "ID": min(core), "CPUS": cpus})
        yield template.vector("MEMORY_NODE", {"NODE_ID": node.id, "TOTAL": node.memory // KIB,
                                              "DISTANCE": nearest_first(node, [each.id for each in nodes])})


def nearest_first(node: "NumaNode", ids: Sequence[int]) -> str:
    """Sort all nodes by distance, the node itself first, as OpenNebula requires."""
    return " ".join(str(other) for _, other in sorted(zip(node.distances, ids, strict=False))) or str(node.id)


def host_monitor(memory: "MemoryUse", cpus: int, busy: float, network: tuple[int, int],
                 nodes: "Iterable[NumaNode]") -> str:
    """Report host/monitor: constantly changing data.

    :param busy: share of all CPUs' time in use, 0 to 1
    :param network: bytes received and sent
    """
    used = round(cpus * 100 * min(max(busy, 0.0), 1.0))
    facts = {"USEDCPU": used, "FREECPU": cpus * 100 - used, "USEDMEMORY": memory.used // KIB,
             "FREEMEMORY": (memory.total - memory.used) // KIB, "NETRX": network[0], "NETTX": network[1]}
    return "\n".join([template.lines(facts), *numa_monitor(nodes)])


def numa_monitor(nodes: "Iterable[NumaNode]") -> Iterator[str]:
    for node in nodes:
        for size, (_, free) in node.hugepages.items():
            yield template.vector("HUGEPAGE", {"NODE_ID": node.id, "SIZE": size // KIB, "FREE": free})
        yield template.vector("MEMORY_NODE", {"NODE_ID": node.id, "FREE": node.free // KIB,
                                              "USED": (node.memory - node.free) // KIB})


def datastores(location: Space, each: Iterable[Space]) -> str:
    """Report the datastores, and the space of the directory that contains them."""
    total = {"DS_LOCATION_TOTAL_MB": location.total // MIB, "DS_LOCATION_USED_MB": location.used // MIB,
             "DS_LOCATION_FREE_MB": location.free // MIB}
    rows = [template.vector("DS", {"ID": space.datastore, "TOTAL_MB": space.total // MIB, "USED_MB": space.used // MIB,
                                   "FREE_MB": space.free // MIB}) for space in each]
    return "\n".join([template.lines(total), *rows])


# Devices.


def pci(inventory: Inventory, own: Collection[str], elsewhere: Collection[str], reported: PciFilter
        ) -> Iterator[str]:
    """Yield the PCI devices of the host, with the parts of divided GPUs and cards instead of the whole.

    A whole GPU and its slices exclude each other, and so do a physical function and its virtual ones. Devices that
    cannot be allocated are left out, and the core removes them; a VM's devices stay, healthy or not. A slice with an
    unknown profile could be taken for any other: it is left out, too."""
    whole = {device.parent for device in inventory.devices if device.parent} | divided((*own, *elsewhere))
    for device in inventory.devices:
        taken = {device.id, *(other.id for other in inventory.related(device))} & set(elsewhere)
        usable = device.id in own or (device.healthy and not device.host_use)
        named = device.id in own or product(device) != UNKNOWN_SLICE
        if device.id not in whole and not taken and usable and named and passes(device, reported):
            yield template.vector("PCI", pci_attributes(device))


def passes(device: Device, reported: PciFilter) -> bool:
    return reported.passes((device.vendor_id, product(device), device.class_code[:4]),
                           from_device_id(device.id).short, device_name(device))


def kind(device: Device) -> str:
    return f"{device.vendor_id}:{product(device)}:{device.class_code[:4]}"


def pci_attributes(device: Device) -> dict[str, str | int | None]:
    """Return the PCI attributes of a device in the core's format."""
    address, class_code = from_device_id(device.id), device.class_code[:4]
    return {
        "ADDRESS": address.address, "SHORT_ADDRESS": address.short, "DOMAIN": address.domain, "BUS": address.bus,
        "SLOT": address.slot, "FUNCTION": address.function, "VENDOR": device.vendor_id, "DEVICE": product(device),
        "CLASS": class_code, "TYPE": kind(device), "VENDOR_NAME": vendors.pci_vendor(device),
        "DEVICE_NAME": device_name(device), "CLASS_NAME": CLASS_NAMES.get(class_code, class_code),
        "NUMA_NODE": "-" if device.numa_node is None else device.numa_node, "UUID": device.uuid}


def device_name(device: Device) -> str:
    if device.slice:
        return f"{device.model or 'GPU'} MIG {device.slice.profile or ''}".strip()
    if device.kind is Kind.GPU_SHARE:
        return f"{device.model or 'GPU'} shared"
    if device.kind is Kind.NET:
        return f"{device.link_layer or 'network'} {'virtual ' if device.parent else ''}function"
    return device.model or product(device)


# VMs.


def vm_status(containers: Iterable[ContainerState]) -> str:
    """Report vm/status: the state of every VM. Replacing containers, which have other names, are omitted."""
    rows = (template.vector("VM", {"ID": state.labels[LABEL], "DEPLOY_ID": state.name, "STATE": STATES[state.status]})
            for state in containers if LABEL in state.labels and state.name == f"{PREFIX}{state.labels[LABEL]}")
    return "\n".join(rows)


def complete() -> str:
    """Return the line that marks a list of states as complete: oned sets VMs missing from it to off or unknown."""
    return template.lines({"SYNC_STATE": "yes", "MISSING_STATE": STATES[Status.STOPPED]})


def wilds(containers: Iterable[ContainerState]) -> str:
    """Report containers that OpenNebula did not create, for the administrator."""
    names = [state.name for state in containers if LABEL not in state.labels]
    return template.lines({"TOTAL_WILDS": len(names), "WILDS": ",".join(names)}) if names else ""


def vm_monitor(state: ContainerState, values: Mapping[str, template.Value], disks: str = "") -> str:
    """Report vm/monitor: one VM's line, with the disks of :func:`disk_values`."""
    return template.vector("VM", {"ID": state.labels[LABEL], "DEPLOY_ID": state.name,
                                  "MONITOR": template.encoded(values, disks)})


def vm_values(now: Metrics, moment: float, before: Sample | None) -> dict[str, template.Value]:
    """Return the values of a container's metrics.

    :param moment: seconds since the host's start
    :param before: of an earlier round; without it, or after a restart, CPU is not reported
    """
    values: dict[str, template.Value] = {
        "MEMORY": now.memory // KIB,
        "NETRX": sum(interface.received_bytes for interface in now.interfaces),
        "NETTX": sum(interface.sent_bytes for interface in now.interfaces)}
    if before and before.pid == now.pid and moment > before.moment and now.cpu_time >= before.cpu_time:
        values["CPU"] = round((now.cpu_time - before.cpu_time) * 100 / ((moment - before.moment) * SECOND))
    return values


def io_values(found: DiskIo | None) -> dict[str, template.Value]:
    if found is None:
        return {}
    return {"DISKRDBYTES": found.read, "DISKWRBYTES": found.written, "DISKRDIOPS": found.reads,
            "DISKWRIOPS": found.writes}


def disk_values(used: int) -> str:
    """Return the root disk's use; 0 bytes mean unknown."""
    return template.vector("DISK_SIZE", {"ID": 0, "SIZE": math.ceil(used / MIB)}) if used else ""


def fault_values(faults: Sequence[str]) -> dict[str, template.Value]:
    """Return the faults of the VM's devices, for the administrator and its owner."""
    return {"DEVICE_FAULTS": ", ".join(faults)} if faults else {}


def gpu_values(uses: Sequence[Use | None]) -> dict[str, template.Value]:
    """Return average use, total free memory and total power of a VM's GPUs if all report it; None is unknown."""
    if not uses:
        return {}
    known = [use for use in uses if use is not None]
    values: dict[str, template.Value] = {"GPU_COUNT": len(uses)}
    for name, tell, total in GPU_METRICS:
        numbers = [number for use in known if (number := tell(use)) is not None]
        if len(numbers) == len(uses):
            values[name] = round(total(numbers))
    return values


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


GPU_METRICS: tuple[tuple[str, Callable[[Use], float | None], Callable[[Sequence[float]], float]], ...] = (
    ("GPU_UTILIZATION", lambda use: use.busy, mean),
    ("GPU_MEMORY_UTILIZATION", lambda use: use.memory_busy, mean),
    ("GPU_MEMORY_FREE", lambda use: use.free, lambda numbers: sum(numbers) // MIB),
    ("GPU_POWER_USAGE", lambda use: use.power, sum),
)
