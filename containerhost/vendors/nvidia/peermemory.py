# SPDX-License-Identifier: Apache-2.0
"""Determine how network cards reach the memory of NVIDIA GPUs.

Sources: NVIDIA GPUDirect RDMA documentation (module nvidia-peermem); NVIDIA open GPU kernel modules, README: DMA-BUF
is exported by the open modules alone, on kernels with CONFIG_DMABUF_MOVE_NOTIFY, so since 5.12.
"""

from containerhost.linux.sysfs import Host
from containerhost.vendors.base import PeerAccess

VERSION = "/proc/driver/nvidia/version"
OPEN = "Open Kernel Module"
MODULES = ("nvidia_peermem", "nv_peer_mem")
REMEDY = "load module nvidia-peermem (modprobe nvidia-peermem), or install the open kernel modules of the driver"


def read(host: Host) -> PeerAccess:
    return PeerAccess(dma_buf=OPEN in (host.text(VERSION) or ""),
                      peer_memory=any(host.is_directory(f"/sys/module/{module}") for module in MODULES), remedy=REMEDY)
