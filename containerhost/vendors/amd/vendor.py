# SPDX-License-Identifier: Apache-2.0
"""Support AMD GPUs under amdgpu: their DRM nodes, and /dev/kfd that every ROCm user shares.

Source: Documentation/gpu/amdgpu/driver-misc.rst (unique_id, product_name, mem_info_vram_total).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices import health
from containerhost.devices.health.kernellog import DriverLog
from containerhost.devices.model import CharNode, Device, NodeUse, PciFunction
from containerhost.vendors import base
from containerhost.vendors.drmlog import AmdgpuLog


class Amd(base.GpuVendor):
    name: ClassVar[str] = "amd"
    nodes: ClassVar[tuple[str, ...]] = (*base.GpuVendor.nodes, "kfd")
    cdi_vendor: ClassVar[str | None] = "amd.com"
    apptainer_libraries: ClassVar[str | None] = "--rocm"
    tool: ClassVar[tuple[str, ...]] = ("rocm-smi",)
    vendor_id: ClassVar[str] = "1002"
    pci_vendors: ClassVar[Mapping[str, str]] = {"1002": "Advanced Micro Devices, Inc. [AMD/ATI]"}
    drivers: ClassVar[frozenset[str]] = frozenset({"amdgpu"})
    driver_log: ClassVar[type[DriverLog] | None] = AmdgpuLog

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        (gpu,) = super().describe(function)
        if function.driver not in self.drivers:
            return (gpu,)
        directory = function.directory
        return (dataclasses.replace(
            gpu,
            model=self.host.text(f"{directory}/product_name"),
            uuid=self.host.text(f"{directory}/unique_id"),
            memory=self.host.number(f"{directory}/mem_info_vram_total"),
            nodes=gpu.nodes + self._kfd,
            health=gpu.health + tuple(health.of_nodes(self.host, self._kfd))),)

    def peer_access(self) -> base.PeerAccess:
        """Return how network cards reach the memory of this vendor's GPUs.

        amdgpu exports DMA-BUF if the kernel allows transfers between devices (CONFIG_HSA_AMD_P2P, which adds the
        parameter ``pcie_p2p``); AMD's own build of it registers its memory as a peer (``amdkfd``)."""
        return base.PeerAccess(
            dma_buf=self.host.text("/sys/module/amdgpu/parameters/pcie_p2p") == "Y",
            peer_memory=self.host.is_directory("/sys/kernel/mm/memory_peers/amdkfd"),
            remedy="use a kernel with CONFIG_HSA_AMD_P2P and amdgpu.pcie_p2p=1, or AMD's own build of the driver")

    @functools.cached_property
    def _kfd(self) -> tuple[CharNode, ...]:
        """Return the node of the compute driver; None on a kernel without it, which can still do graphics."""
        number = self.host.char_number("/sys/class/kfd/kfd/dev")
        return (CharNode("/dev/kfd", *number, NodeUse.SHARED),) if number else ()
