# SPDX-License-Identifier: Apache-2.0
"""Emulate GPUs: DRM minors, and per vendor /proc/driver/nvidia, /dev/kfd and amdgpu's own attributes.

Formats: kernel Documentation/gpu (drm, amdgpu) and ABI/testing/sysfs-amdkfd; for NVIDIA the driver's README ("The /proc
interface") and the MIG user guide ("Device nodes and capabilities").
"""

from collections.abc import Iterator, Sequence

from tests.fakehost import pci
from tests.fakehost.entries import Entry, File, Link, Node
from tests.fakehost.functions import GpuFunction

DRM_MAJOR = 226
NVIDIA_MAJOR = 195
UVM_MAJOR = 511
KFD_MAJOR = 510
CAPS_MAJOR = 508
EXAMPLE_MAJOR = 509

_NVIDIA = "proc/driver/nvidia"
_KFD = "sys/devices/virtual/kfd/kfd"


def function_entries(gpu: GpuFunction) -> Iterator[Entry]:
    """Yield what exists because the driver has bound this GPU and the GPU answers."""
    if not gpu.bound:
        return
    if gpu.gpu.vendor == "example":
        yield from _example_entries(gpu)
        return
    yield from _drm_entries(gpu)
    if gpu.gpu.vendor == "nvidia":
        yield from _nvidia_entries(gpu)
    elif gpu.gpu.vendor == "amd":
        yield from _amd_entries(gpu)


def shared_entries(gpus: Sequence[GpuFunction]) -> Iterator[Entry]:
    """Yield what all GPUs of a vendor share; it exists as long as the driver is loaded."""
    nvidia = [gpu for gpu in gpus if gpu.gpu.driver == "nvidia"]
    if nvidia:
        yield from _nvidia_shared_entries(nvidia)
    if any(gpu.gpu.vendor == "amd" for gpu in gpus):
        yield File(f"{_KFD}/dev", f"{KFD_MAJOR}:0\n")
        yield File(f"{_KFD}/uevent", f"MAJOR={KFD_MAJOR}\nMINOR=0\nDEVNAME=kfd\n")
        yield Link(f"{_KFD}/subsystem", "sys/class/kfd")
        yield Link("sys/class/kfd/kfd", _KFD)
        yield Node("dev/kfd", KFD_MAJOR, 0)
    if any(gpu.gpu.vendor == "example" for gpu in gpus):
        yield Node("dev/exampleaccel/control", EXAMPLE_MAJOR, 255)


def majors(gpus: Sequence[GpuFunction]) -> dict[str, int]:
    """Names of drivers in /proc/devices -> major numbers."""
    found = {"drm": DRM_MAJOR} if gpus else {}
    if any(gpu.gpu.driver == "nvidia" for gpu in gpus):
        found |= {"nvidia": NVIDIA_MAJOR, "nvidia-modeset": NVIDIA_MAJOR, "nvidiactl": NVIDIA_MAJOR}
        found |= {"nvidia-uvm": UVM_MAJOR, "nvidia-caps": CAPS_MAJOR}
    if any(gpu.gpu.vendor == "amd" for gpu in gpus):
        found["kfd"] = KFD_MAJOR
    if any(gpu.gpu.vendor == "example" for gpu in gpus):
        found["exampleaccel"] = EXAMPLE_MAJOR
    return found


def _drm_entries(gpu: GpuFunction) -> Iterator[Entry]:
    path = pci.of(gpu)
    render = 128 + gpu.drm
    for kind, name, minor in (("card", f"card{gpu.drm}", gpu.drm), ("render", f"renderD{render}", render)):
        directory = f"{path}/drm/{name}"
        yield File(f"{directory}/dev", f"{DRM_MAJOR}:{minor}\n")
        yield File(f"{directory}/uevent", f"MAJOR={DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n")
        yield Link(f"{directory}/device", path)
        yield Link(f"{directory}/subsystem", "sys/class/drm")
        yield Link(f"sys/class/drm/{name}", directory)
        if gpu.nodes:
            yield Node(f"dev/dri/{name}", DRM_MAJOR, minor)
            yield Link(f"dev/dri/by-path/pci-{gpu.address}-{kind}", f"dev/dri/{name}")


def _example_entries(gpu: GpuFunction) -> Iterator[Entry]:
    """The accelerator of examples/vendor, which no plug-in of the project's own knows."""
    path, name = pci.of(gpu), f"accel{gpu.minor}"
    yield File(f"{path}/exampleaccel/{name}/dev", f"{EXAMPLE_MAJOR}:{gpu.minor}\n")
    yield File(f"{path}/serial", f"{gpu.gpu.uuid}\n")
    yield File(f"{path}/status", "ok\n")
    if gpu.nodes:
        yield Node(f"dev/exampleaccel/{name}", EXAMPLE_MAJOR, gpu.minor)


def _amd_entries(gpu: GpuFunction) -> Iterator[Entry]:
    path = pci.of(gpu)
    yield File(f"{path}/mem_info_vram_total", f"{gpu.gpu.memory}\n")
    yield File(f"{path}/unique_id", f"{gpu.gpu.uuid}\n")
    yield File(f"{path}/product_name", f"{gpu.gpu.model}\n")
    node = f"{_KFD}/topology/nodes/{gpu.minor + 1}"
    yield File(f"{node}/gpu_id", f"{1000 + gpu.minor}\n")
    yield File(
        f"{node}/properties", f"drm_render_minor {128 + gpu.drm}\nunique_id {int(gpu.gpu.uuid, 16)}\nsimd_count 480\n"
    )


def _nvidia_entries(gpu: GpuFunction) -> Iterator[Entry]:
    if gpu.nodes:
        yield Node(f"dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor)
    if gpu.fallen:
        return
    yield File(
        f"{_NVIDIA}/gpus/{gpu.address}/information",
        f"Model: \t\t {gpu.gpu.model}\nIRQ:   \t\t {90 + gpu.minor}\nGPU UUID: \t {gpu.gpu.uuid}\n"
        f"Video BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.minor}\nGPU Excluded:\t No\n",
    )
    instances = f"{_NVIDIA}/capabilities/gpu{gpu.minor}/mig"
    for gi, ci in gpu.gpu.mig:
        capability = _capability(gpu.minor, gi, ci)
        yield from _capability_entries(f"{instances}/gi{gi}/ci{ci}/access", capability, gpu.nodes)
    for gi in sorted({gi for gi, _ in gpu.gpu.mig}):
        yield from _capability_entries(f"{instances}/gi{gi}/access", _capability(gpu.minor, gi), gpu.nodes)


def _nvidia_shared_entries(gpus: Sequence[GpuFunction]) -> Iterator[Entry]:
    version = gpus[0].gpu.driver_version
    yield File(f"{_NVIDIA}/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build\n")
    yield File(f"{_NVIDIA}/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
    for name, major, minor in (
        ("nvidiactl", NVIDIA_MAJOR, 255),
        ("nvidia-modeset", NVIDIA_MAJOR, 254),
        ("nvidia-uvm", UVM_MAJOR, 0),
        ("nvidia-uvm-tools", UVM_MAJOR, 1),
    ):
        yield Node(f"dev/{name}", major, minor)
    for name, minor in (("config", 1), ("monitor", 2)):
        yield from _capability_entries(f"{_NVIDIA}/capabilities/mig/{name}", minor, True)
    lines = ["config 1\n", "monitor 2\n"]
    for gpu in gpus:
        for gi in range(15):
            lines.append(f"gpu{gpu.minor}/gi{gi}/access {_capability(gpu.minor, gi)}\n")
            lines += [f"gpu{gpu.minor}/gi{gi}/ci{ci}/access {_capability(gpu.minor, gi, ci)}\n" for ci in range(8)]
    yield File("proc/driver/nvidia-caps/mig-minors", "".join(lines))


def _capability(gpu: int, gi: int, ci: int | None = None) -> int:
    """The minor of /dev/nvidia-caps/nvidia-cap<N>: per GPU 15 instances, each with itself and 8 compute instances."""
    return 3 + gpu * 135 + gi * 9 + (0 if ci is None else 1 + ci)


def _capability_entries(path: str, minor: int, node: bool) -> Iterator[Entry]:
    yield File(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    if node:
        yield Node(f"dev/nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor, 0o444)
