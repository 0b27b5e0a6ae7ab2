# SPDX-License-Identifier: Apache-2.0
"""Support NVIDIA GPUs and their MIG slices, from sysfs, /proc/driver/nvidia, and NVML for the rest.

Sources: the NVIDIA driver's README, chapters "/proc interface" and "Device files"; the MIG User Guide, chapter "Device
nodes and capabilities".
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from containerhost.devices import health, migprofile
from containerhost.devices.findings import Finding
from containerhost.devices.grants import GrantOptions
from containerhost.devices.health.kernellog import DriverLog
from containerhost.devices.model import CharNode, Device, Kind, NodeUse, PciFunction, Slice
from containerhost.linux.sysfs import Host
from containerhost.vendors import base
from containerhost.vendors.nvidia import installation, libraries, nvml, nvmlhealth, reset
from containerhost.vendors.nvidia.xidlog import XidLog

# The major is registered for NVIDIA (Documentation/admin-guide/devices.txt), so it is valid even if /proc/devices has
# an unknown name for the driver. The majors of uvm and caps are dynamic and have no safe default.
_MAJOR = 195
_MAJOR_NAMES = ("nvidia", "nvidia-frontend")
_CONTROL_MINOR = 255
_MODESET_MINOR = 254
_PROC = "/proc/driver/nvidia"
# LXD's keys for the libraries that NVIDIA's toolkit adds when a container starts (LXD, "Instance options").
RUNTIME, CAPABILITIES = "nvidia.runtime", "nvidia.driver.capabilities"
_GPU_INSTANCE = re.compile(r"gi([0-9]{1,4})")
_COMPUTE_INSTANCE = re.compile(r"ci([0-9]{1,4})")


class Nvidia(base.GpuVendor):
    name: ClassVar[str] = "nvidia"
    label: ClassVar[str] = "NVIDIA"
    nodes: ClassVar[tuple[str, ...]] = (*base.GpuVendor.nodes, "nvidia*", "nvidia-caps/*")
    lxd_gpu_nodes: ClassVar[tuple[str, ...]] = (*base.GpuVendor.lxd_gpu_nodes, "nvidia*", "nvidia-caps/*")
    cdi_vendor: ClassVar[str | None] = "nvidia.com"
    apptainer_libraries: ClassVar[str | None] = "--nv"
    tool: ClassVar[tuple[str, ...]] = ("nvidia-smi", "-L")
    by_gpu_request: ClassVar[bool] = True
    vendor_id: ClassVar[str] = "10de"
    pci_vendors: ClassVar[Mapping[str, str]] = {"10de": "NVIDIA Corporation"}
    drivers: ClassVar[frozenset[str]] = frozenset({"nvidia"})
    driver_log: ClassVar[type[DriverLog] | None] = XidLog
    needs_render: ClassVar[bool] = False  # nvidia-drm creates it; computing does not need it
    # drivers/vfio/pci/nvgrace-gpu/main.c of Linux: GH200 120GB, 480GB, 144GB; GB200; GB300.
    coherent_gpus: ClassVar[frozenset[str]] = frozenset(
        f"10de:{product}" for product in ("2342", "2345", "2348", "2941", "31c2"))

    @classmethod
    def libraries(cls, options: GrantOptions) -> frozenset[str]:
        return options.gpu_capabilities

    @classmethod
    def cdi_name(cls, device: Device) -> str | None:
        """Return ``nvidia.com/gpu=GPU-...``, or ``nvidia.com/mig=MIG-...``, as ``nvidia-ctk cdi generate`` does."""
        return f"{cls.cdi_vendor}/{'mig' if device.slice else 'gpu'}={device.uuid}" if device.uuid else None

    @classmethod
    def lxd_libraries(cls, capabilities: Collection[str]) -> base.LxdLibraries:
        return base.LxdLibraries("nvidia_runtime", {RUNTIME: "true", CAPABILITIES: ",".join(sorted(capabilities))})

    @classmethod
    def library_hook(cls, capabilities: Collection[str]) -> dict[str, Any]:
        return libraries.hook(capabilities)

    @classmethod
    def computation(cls) -> str:
        return Path(__file__).with_name("computation.py").read_text("utf-8")

    @classmethod
    def environment(cls, devices: Iterable[Device]) -> dict[str, str]:
        uuids = dict.fromkeys(device.uuid or "" for device in devices if device.plugin == cls.name)
        return {} if "" in uuids else {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}

    @classmethod
    def usage(cls) -> dict[str, base.Use]:
        found = {}
        for address, gpu in nvml.query().items():
            if gpu.use:
                found[address] = dataclasses.replace(gpu.use, number=gpu.index)
            for (gi, ci), part in gpu.slices.items():
                found[f"{address}/gi{gi}/ci{ci}"] = base.Use(None, None, part.free, None)
        return found

    @classmethod
    def links(cls) -> dict[frozenset[str], int]:
        return nvml.links_between(nvml.query())

    def check(self) -> Iterable[Finding]:
        return installation.check(self.host)

    def peer_access(self) -> base.PeerAccess:
        """Return how network cards reach the memory of the GPUs.

        Sources: NVIDIA GPUDirect RDMA documentation (module nvidia-peermem); NVIDIA open GPU kernel modules, README:
        only the open modules export DMA-BUF, on kernels with CONFIG_DMABUF_MOVE_NOTIFY, so since 5.12."""
        modules = ("nvidia_peermem", "nv_peer_mem")
        return base.PeerAccess(
            dma_buf="Open Kernel Module" in (self.host.text("/proc/driver/nvidia/version") or ""),
            peer_memory=any(self.host.is_directory(f"/sys/module/{module}") for module in modules),
            remedy="load module nvidia-peermem (modprobe nvidia-peermem), or install the open kernel modules of "
                   "the driver")

    @classmethod
    def reset(cls, address: str) -> bool:
        return reset.reset(address)

    @classmethod
    def reset_with(cls, address: str, others: Collection[str]) -> bool:
        return reset.reset(address, others) if others else cls.reset(address)

    @classmethod
    def memory_nodes(cls, host: Host) -> Mapping[str, int]:
        """Return the memory nodes from ``numa_status`` (the driver's nv-procfs.c: ``Node: 1``)."""
        found = {address: host.fields(f"{_PROC}/gpus/{address}/numa_status").get("Node", "")
                 for address in host.names(f"{_PROC}/gpus")}
        return {address: int(node) for address, node in found.items() if node.isascii() and node.isdigit()}

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        (gpu,) = super().describe(function)
        return self._with_driver(gpu) if function.driver in self.drivers else (gpu,)

    def _with_driver(self, gpu: Device) -> tuple[Device, ...]:
        """Describe the GPU as NVIDIA's driver reports it, and its slices."""
        information = self.host.fields(f"{_PROC}/gpus/{gpu.address}/information")
        minor = information.get("Device Minor", "")
        gpu = dataclasses.replace(gpu, model=information.get("Model") or None, uuid=_uuid(information))
        if not (minor.isascii() and minor.isdigit() and int(minor[:6]) < _MODESET_MINOR):
            trouble = (f"the nvidia driver does not know it: {_PROC}/gpus/{gpu.address}/information has no Device "
                       "Minor; the kernel's log has the reason (NVRM, Xid)")
            return (dataclasses.replace(gpu, health=gpu.health or (trouble,)),)
        own = CharNode(f"/dev/nvidia{int(minor)}", self._major, int(minor))
        complaints = tuple(health.of_nodes(self.host, (own,))) + self._shared_complaints
        gpu = dataclasses.replace(gpu, nodes=(own, *gpu.nodes, *self._shared_nodes), health=gpu.health + complaints)
        return self._enriched(gpu, self._slices(gpu, own))

    @functools.cached_property
    def _majors(self) -> dict[str, int]:
        return self.host.char_majors

    @property
    def _major(self) -> int:
        return next((self._majors[name] for name in _MAJOR_NAMES if name in self._majors), _MAJOR)

    @functools.cached_property
    def _shared_nodes(self) -> tuple[CharNode, ...]:
        """Return the nodes that every user of an NVIDIA GPU needs, with modeset and uvm-tools if they exist."""
        nodes = [CharNode("/dev/nvidiactl", self._major, _CONTROL_MINOR, NodeUse.SHARED)]
        optional = [CharNode("/dev/nvidia-modeset", self._major, _MODESET_MINOR, NodeUse.SHARED)]
        uvm = self._majors.get("nvidia-uvm")
        if uvm is not None:
            nodes.append(CharNode("/dev/nvidia-uvm", uvm, 0, NodeUse.SHARED))
            optional.append(CharNode("/dev/nvidia-uvm-tools", uvm, 1, NodeUse.SHARED))
        return tuple(nodes + [node for node in optional
                              if self.host.node_fault(node.path, node.major, node.minor) is None])

    @functools.cached_property
    def _shared_complaints(self) -> tuple[str, ...]:
        complaints = tuple(health.of_nodes(self.host, self._shared_nodes))
        if "nvidia-uvm" not in self._majors:
            complaints += ("module nvidia-uvm is not loaded, so CUDA cannot work: run nvidia-modprobe -u -c 0",)
        return complaints

    def _slices(self, gpu: Device, own: CharNode) -> list[Device]:
        """Return the compute instances below /proc/driver/nvidia/capabilities/gpu<minor>/mig, by number."""
        mig = f"{_PROC}/capabilities/gpu{own.minor}/mig"
        found = []
        for gi, gi_name in _numbered(_GPU_INSTANCE, self.host.names(mig)):
            gi_node = self._capability(f"{mig}/{gi_name}")
            for ci, ci_name in _numbered(_COMPUTE_INSTANCE, self.host.names(f"{mig}/{gi_name}")):
                capabilities = (gi_node, self._capability(f"{mig}/{gi_name}/{ci_name}"))
                found.append(self._slice(gpu, own, Slice(gi, ci), capabilities))
        return found

    def _slice(self, gpu: Device, own: CharNode, which: Slice,
               capabilities: tuple[CharNode | None, CharNode | None]) -> Device:
        gi_node, ci_node = capabilities
        # All slices of a GPU need its node, and all compute instances of a GPU instance need that of the GPU instance.
        shared = [dataclasses.replace(node, use=NodeUse.SHARED) for node in (own, gi_node) if node]
        own_nodes = (ci_node,) if ci_node else ()
        complaints = list(health.of_nodes(self.host, [node for node in capabilities if node]))
        if None in capabilities:
            complaints.append("its capability has no device minor; is module nvidia loaded with nvidia-caps?")
        return dataclasses.replace(
            gpu, id=f"{gpu.address}/gi{which.gi}/ci{which.ci}", kind=Kind.GPU_SLICE, parent=gpu.address, uuid=None,
            slice=which, nodes=(*own_nodes, *shared, *self._shared_nodes), health=(*gpu.health, *complaints))

    def _capability(self, directory: str) -> CharNode | None:
        """Return the /dev/nvidia-caps node that a capability's ``access`` file names."""
        minor = self.host.fields(f"{directory}/access").get("DeviceFileMinor", "")
        major = self._majors.get("nvidia-caps")
        if major is None or not (minor.isascii() and minor.isdigit() and len(minor) <= 6):
            return None
        return CharNode(f"/dev/nvidia-caps/nvidia-cap{int(minor)}", major, int(minor))

    def _enriched(self, gpu: Device, slices: list[Device]) -> tuple[Device, ...]:
        facts = self._nvml.get(gpu.address)
        if facts is None:
            return (gpu, *slices)
        gpu = dataclasses.replace(gpu, uuid=gpu.uuid or facts.uuid, model=gpu.model or facts.model, memory=facts.memory)
        found = nvmlhealth.health(facts.state)
        return tuple(dataclasses.replace(device, health=device.health + found.complaints,
                                         notes=device.notes + found.notes)
                     for device in (gpu, *(self._enriched_slice(part, facts) for part in slices)))

    def _enriched_slice(self, part: Device, facts: "nvml.Gpu") -> Device:
        more = facts.slices.get((part.slice.gi, part.slice.ci)) if part.slice else None
        if more is None or part.slice is None:
            return part
        unnamed = () if more.profile is None or migprofile.parse(more.profile) else (
            f"its profile {more.profile} has no name in the clouds, of which this release knows those with "
            f"{', '.join(filter(None, migprofile.SUFFIXES))}: cut the GPU into other slices",)
        return dataclasses.replace(part, uuid=more.uuid, memory=more.memory, health=part.health + unnamed,
                                   slice=dataclasses.replace(part.slice, profile=more.profile))

    @functools.cached_property
    def _nvml(self) -> dict[str, nvml.Gpu]:
        if not self.host.live:
            return {}
        return nvml.query()


def _uuid(information: dict[str, str]) -> str | None:
    """Return the UUID, if known: the driver writes question marks until the GPU is first used."""
    uuid = information.get("GPU UUID", "")
    return uuid if uuid and "?" not in uuid else None


def _numbered(pattern: re.Pattern[str], names: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted((int(match[1]), name) for name in names if (match := pattern.fullmatch(name)))
