# SPDX-License-Identifier: Apache-2.0
"""Define a vendor plug-in, and the common part of all plug-ins for GPUs.

A plug-in turns a PCI function into devices and a device into a grant. It exists for one scan, or for reading a few
functions, so it may cache what it reads. Outside packages register theirs as an entry point of the group
``containerhost.vendors``.
"""

import abc
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from containerhost.devices import drm, health
from containerhost.devices.findings import Finding
from containerhost.devices.grants import GpuGrant, Grant, GrantOptions
from containerhost.devices.health.kernellog import DriverLog
from containerhost.devices.model import Device, Kind, NodeUse, PciFunction
from containerhost.errors import DeviceHeld, DeviceUnhealthy
from containerhost.linux.sysfs import Host

DISPLAY = "03"
ACCELERATOR = "12"


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Hold the current use of a GPU or a slice; None where it does not report a value.

    Slices and divided GPUs do not report their load.

    :ivar busy, memory_busy: per cent of time
    :ivar free: bytes of its memory
    :ivar power: W
    :ivar number: the GPU's number in the vendor's own monitoring
    """

    busy: int | None
    memory_busy: int | None
    free: int | None
    power: float | None
    number: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LxdLibraries:
    """Describe how LXD brings a GPU driver's libraries into a starting container without CDI.

    :ivar extension: the API extension that the daemon needs
    :ivar keys: of the instance's configuration. A value is a list separated by commas: a container has all parts of
        the value at its start
    """

    extension: str
    keys: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class PeerAccess:
    """Describe how network cards can reach the memory of a vendor's GPUs (GPUDirect RDMA).

    :ivar peer_memory: a module that registers the memory with the RDMA subsystem is loaded
    """

    dma_buf: bool
    peer_memory: bool
    remedy: str


class Vendor(abc.ABC):
    """Describe one kind of hardware.

    :cvar name: the plug-in's name, which is that of its entry point; written into every device it describes
    :cvar nodes: which nodes below /dev are those of its hardware, as patterns of fnmatch: ``dri/*``, ``kfd``. Only
        the last component may have wildcards. A container must see none of these that it was not granted
    :cvar label: display name of a vendor that has libraries
    :cvar pci_vendors: names of its hardware's vendors in the PCI database (pci.ids), by PCI vendor id
    :cvar driver_log: reads the driver's messages in the kernel's log, if these are about health
    :cvar lxd_gpu_nodes: those of ``nodes`` that LXD's ``gpu`` device brings itself
    :cvar cdi_vendor: the vendor part of CDI names, such as ``vendor.com``
    :cvar apptainer_libraries: Apptainer's option that brings the driver's libraries
    :cvar coherent_gpus: PCI ids, ``10de:2342``, of GPUs whose memory may be NUMA nodes of the host
    :cvar tool: the vendor's command that shows a container its devices, for `containerhost selftest`
    :cvar by_gpu_request: whether a request for GPUs to Docker (``--gpus``) can bring its devices
    """

    name: ClassVar[str]
    nodes: ClassVar[tuple[str, ...]] = ()
    label: ClassVar[str] = ""
    pci_vendors: ClassVar[Mapping[str, str]] = {}
    driver_log: ClassVar[type[DriverLog] | None] = None
    lxd_gpu_nodes: ClassVar[tuple[str, ...]] = ()
    cdi_vendor: ClassVar[str | None] = None
    apptainer_libraries: ClassVar[str | None] = None
    tool: ClassVar[tuple[str, ...]] = ()
    by_gpu_request: ClassVar[bool] = False
    coherent_gpus: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, host: Host) -> None:
        self.host = host

    @classmethod
    @abc.abstractmethod
    def claims(cls, function: PciFunction) -> bool:
        """Return whether this plug-in describes the function; the first one to return True does."""

    @abc.abstractmethod
    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        """Describe the function as one device, followed by its slices; unexpected content is a complaint."""

    @classmethod
    @abc.abstractmethod
    def grant(cls, device: Device, options: GrantOptions) -> Grant:
        """Return the grant of the device: all that a container needs to have it. Pure: reads nothing.

        :raises DeviceHeld: the host itself uses the device
        :raises DeviceUnhealthy: the device lacks nodes that the container needs
        """

    def check(self) -> Iterable[Finding]:
        """Report problems of the driver, its libraries and its tools on this host, each with its remedy."""
        return ()

    def peer_access(self) -> PeerAccess | None:
        """Return how network cards reach its GPUs' memory; None if unknown."""
        return None

    @classmethod
    def reset(cls, address: str) -> bool:
        """Reset a whole GPU after its release, so that no data of its last tenant remain. Called as root.

        :returns: False if there is no method that is safe under the driver
        :raises HostActionFailed: it failed; the device stays blocked
        """
        return False

    @classmethod
    def reset_with(cls, address: str, others: Collection[str]) -> bool:
        """Reset a GPU like :meth:`reset`, for hardware that may require a common reset of linked GPUs.

        :param others: further unallocated GPUs of this vendor that are neither divided nor shared
        """
        return cls.reset(address)

    @classmethod
    def memory_nodes(cls, host: Host) -> Mapping[str, int]:
        """Return the NUMA node of each GPU's memory by PCI address, as far as the driver reports it."""
        return {}

    @classmethod
    def usage(cls) -> Mapping[str, Use]:
        """Return the current use of each GPU and slice of this host by device id, as the vendor's library reports."""
        return {}

    @classmethod
    def links(cls) -> Mapping[frozenset[str], int]:
        """Return the number of direct links between two of this host's GPUs, by both PCI addresses, if known.

        GPUs that are connected by a switch have none."""
        return {}

    @classmethod
    def cdi_name(cls, device: Device) -> str | None:
        """Return the fully qualified CDI name of the device with its driver's libraries; None if it has none."""
        return None

    @classmethod
    def lxd_libraries(cls, capabilities: Collection[str]) -> LxdLibraries | None:
        """Return how LXD brings libraries without CDI; None if it cannot.

        :param capabilities: driver capabilities, of :data:`containerhost.devices.grants.GPU_CAPABILITIES`
        """
        return None

    @classmethod
    def library_hook(cls, capabilities: Collection[str]) -> dict[str, Any] | None:
        """Return the OCI hook that brings libraries into a container on Docker; None if there is none.

        :raises FileNotFoundError: this host lacks the vendor's tool
        """
        return None

    @classmethod
    def computation(cls) -> str | None:
        """Return a Python program that computes with a GPU, for `containerhost selftest`; None if there is none.

        Its status is 3 if the driver's library is missing."""
        return None

    @classmethod
    def environment(cls, devices: Iterable[Device]) -> Mapping[str, str]:
        """Return variables that inform programs in a container of its devices of this vendor.

        :param devices: all of the container, including those of other vendors
        """
        return {}


def device(function: PciFunction, kind: Kind, plugin: str, *, health: tuple[str, ...], notes: tuple[str, ...] = (),
           host_use: tuple[str, ...] | None = None, **more: Any) -> Device:
    """Return the device of a function: its PCI attributes, and ``more`` fields of Device.

    :param notes: in addition to those of the function
    """
    return Device(
        id=function.address, address=function.address, kind=kind, vendor_id=function.vendor_id,
        product_id=function.product_id, class_code=function.class_code, plugin=plugin, role=function.role,
        driver=function.driver, numa_node=function.numa_node, parent=function.parent, vf_index=function.vf_index,
        total_vfs=function.total_vfs, health=health, notes=function.notes + notes,
        host_use=enabled_functions(function) if host_use is None else host_use, **more)


def enabled_functions(function: PciFunction) -> tuple[str, ...]:
    """Report enabled VFs: allocating their physical function would take them from their holders."""
    return (f"{function.num_vfs} virtual functions are enabled",) if function.num_vfs else ()


def refuse_host_use(device: Device) -> None:
    """Refuse a device that the host itself uses.

    :raises DeviceHeld: the host itself uses the device
    """
    if device.host_use:
        raise DeviceHeld(f"device {device.id} cannot be given to a container: the host uses it "
                         f"({'; '.join(device.host_use)})")


class GpuVendor(Vendor):
    """Describe a vendor whose GPUs are a set of character nodes.

    :cvar drivers: the kernel drivers that serve containers
    :cvar needs_render: the GPU requires a render node
    """

    nodes: ClassVar[tuple[str, ...]] = ("dri/*", "accel/*")
    lxd_gpu_nodes: ClassVar[tuple[str, ...]] = ("dri/*",)
    vendor_id: ClassVar[str]
    drivers: ClassVar[frozenset[str]]
    needs_render: ClassVar[bool] = True

    @classmethod
    def claims(cls, function: PciFunction) -> bool:
        return function.vendor_id == cls.vendor_id and function.class_code.startswith((DISPLAY, ACCELERATOR))

    @classmethod
    def grant(cls, device: Device, options: GrantOptions) -> Grant:
        refuse_host_use(device)
        nodes = tuple(node for node in device.nodes if node.use is not NodeUse.MANAGEMENT)
        if not nodes:
            raise DeviceUnhealthy(f"GPU {device.id} has no device nodes to give: {'; '.join(device.health)}")
        return Grant(device=device, nodes=nodes, gpu=GpuGrant(cls.libraries(options)))

    @classmethod
    def libraries(cls, options: GrantOptions) -> frozenset[str]:
        """Return the driver capabilities to bring libraries for, of a driver that is tied to its user space."""
        return frozenset()

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        """Describe a GPU by its card and render nodes."""
        nodes = drm.nodes(self.host, function.directory)
        complaints = [*self.driver_complaints(function), *health.of_nodes(self.host, nodes)]
        served = self.needs_render and function.driver in self.drivers
        if served and not any("/renderD" in node.path for node in nodes):
            complaints.append(f"driver {function.driver} made no render node; see the kernel's log")
        return (device(function, Kind.GPU, self.name, nodes=nodes, health=(*function.health, *complaints)),)

    def driver_complaints(self, function: PciFunction) -> tuple[str, ...]:
        """Report a bound driver that does not serve containers."""
        if function.driver is None or function.driver in self.drivers or function.health:
            return ()
        return (f"bound to {function.driver}; containers need {' or '.join(sorted(self.drivers))}",)
