# SPDX-License-Identifier: Apache-2.0
"""Read and change MIG by NVIDIA's management library. Changes need root.

Every call runs in a separate thread with a time limit, because one to a dead card may never return. Sources: the
NVML reference, chapter "Multi Instance GPU Management".
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from containerhost.errors import DeviceNotFound, HostActionFailed
from containerhost.linux.process.timelimit import StillRunning, within
from containerhost.vendors.nvidia.mig.geometry import ComputeInstance, Geometry, GpuInstance, Placement, Profile
from containerhost.vendors.nvidia.nvml import address_of, text

READ_TIMEOUT = 30.0  # seconds
CHANGE_TIMEOUT = 120.0  # seconds; turning MIG mode on resets the GPU
MOST = 64  # instances or placements per query; no GPU has as many
ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class Library:
    """Load the library within the block, as a context manager.

    :raises HostActionFailed: from every method, with the library's message
    """

    def __enter__(self) -> "Library":
        self._handles: dict[str, Any] = {}
        _call(READ_TIMEOUT, "be asked", pynvml.nvmlInit)
        return self

    def __exit__(self, *_: object) -> None:
        _call(READ_TIMEOUT, "end", pynvml.nvmlShutdown)

    # Reading

    def read(self) -> tuple[Geometry, ...]:
        """Return every GPU that the driver knows, including those without MIG."""
        return _call(READ_TIMEOUT, "read how the GPUs are partitioned", lambda: tuple(self._geometries()))

    def geometry(self, address: str) -> Geometry:
        return _call(READ_TIMEOUT, f"read the slices of GPU {address}", self._geometry, address, self._handle(address))

    def _geometries(self) -> Iterator[Geometry]:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            address = address_of(pynvml.nvmlDeviceGetPciInfo(handle))
            self._handles[address] = handle
            yield self._geometry(address, handle)

    def _geometry(self, address: str, handle: Any) -> Geometry:
        model = text(pynvml.nvmlDeviceGetName(handle))
        mode = _unless_absent(pynvml.nvmlDeviceGetMigMode, handle)
        if mode is None:
            return Geometry(address, model, False, False, ())
        enabled, pending = (value == pynvml.NVML_DEVICE_MIG_ENABLE for value in mode)
        profiles = tuple(_profiles(handle))
        return Geometry(address, model, enabled, pending, profiles,
                        tuple(_instances(handle, profiles)) if enabled else ())

    # Changing

    def set_mode(self, address: str, enabled: bool) -> None:
        """Turn a GPU's MIG mode on or off.

        :raises HostActionFailed: also if it would require a reset that the driver cannot perform now; then nothing
            is changed
        """
        what = f"turn MIG mode of GPU {address} {'on' if enabled else 'off'}"
        handle, mode = self._handle(address), int(enabled)
        _call(CHANGE_TIMEOUT, what, pynvml.nvmlDeviceSetMigMode, handle, mode)
        now, _ = _call(READ_TIMEOUT, what, pynvml.nvmlDeviceGetMigMode, handle)
        if now != mode:
            _call(CHANGE_TIMEOUT, what, pynvml.nvmlDeviceSetMigMode, handle, now)
            raise HostActionFailed(
                f"NVML cannot {what} now, only at the GPU's next reset: a program uses it. End that (monitoring, "
                f"the persistence daemon) and try again, or run `nvidia-smi -i {address} -mig {mode}` and restart the "
                "host")

    def create(self, address: str, profile: Profile, placement: Placement | None) -> int:
        """Create a GPU instance."""
        what = f"make a GPU instance {profile.name} on GPU {address}"
        handle = self._handle(address)
        if placement is None:
            made = _call(CHANGE_TIMEOUT, what, pynvml.nvmlDeviceCreateGpuInstance, handle, profile.id)
        else:
            place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
            made = _call(CHANGE_TIMEOUT, what, pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, handle, profile.id,
                         ctypes.byref(place))
        return int(_call(READ_TIMEOUT, what, pynvml.nvmlGpuInstanceGetInfo, made).id)

    def destroy(self, address: str, gi: int) -> None:
        _call(CHANGE_TIMEOUT, f"remove GPU instance {gi} of GPU {address}", pynvml.nvmlGpuInstanceDestroy,
              self._instance(address, gi))

    def create_part(self, address: str, gi: int, slices: int) -> int:
        """Create a compute instance."""
        what = f"make a slice of {slices} compute slices in GPU instance {gi} of GPU {address}"
        instance = self._instance(address, gi)
        kind = next((kind for kind in _call(READ_TIMEOUT, what, lambda: list(_kinds(instance)))
                     if kind.sliceCount == slices), None)
        if kind is None:
            raise HostActionFailed(f"NVML cannot {what}: it has no profile of that size")
        made = _call(CHANGE_TIMEOUT, what, pynvml.nvmlGpuInstanceCreateComputeInstance, instance, kind.id)
        return int(_call(READ_TIMEOUT, what, pynvml.nvmlComputeInstanceGetInfo_v2, made).id)

    def destroy_part(self, address: str, gi: int, ci: int) -> None:
        what = f"remove slice gi{gi}/ci{ci} of GPU {address}"
        part = _call(READ_TIMEOUT, what, pynvml.nvmlGpuInstanceGetComputeInstanceById, self._instance(address, gi), ci)
        _call(CHANGE_TIMEOUT, what, pynvml.nvmlComputeInstanceDestroy, part)

    def _handle(self, address: str) -> Any:
        if address not in self._handles:
            self.read()
        if address not in self._handles:
            raise DeviceNotFound(f"NVIDIA's driver does not know GPU {address}: it knows "
                                 f"{', '.join(self._handles) or 'none'}")
        return self._handles[address]

    def _instance(self, address: str, gi: int) -> Any:
        return _call(READ_TIMEOUT, f"find GPU instance {gi} of GPU {address}", pynvml.nvmlDeviceGetGpuInstanceById,
                     self._handle(address), gi)


def _profiles(handle: Any) -> Iterator[Profile]:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _unless_absent(pynvml.nvmlDeviceGetGpuInstanceProfileInfoV, handle, number)
        if info is not None:
            yield Profile(info.id, text(info.name).removeprefix("MIG "), info.sliceCount, info.memorySizeMB,
                          info.instanceCount,
                          _unless_absent(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info.id),
                          _placements(handle, info.id))


def _placements(handle: Any, profile: int) -> tuple[Placement, ...]:
    count, places = ctypes.c_uint(MOST), (pynvml.c_nvmlGpuInstancePlacement_t * MOST)()
    if _unless_absent(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, places,
                      ctypes.byref(count)) is None:
        return ()
    return tuple(sorted(Placement(place.start, place.size) for place in places[:count.value]))


def _instances(handle: Any, profiles: tuple[Profile, ...]) -> Iterator[GpuInstance]:
    for profile in profiles:
        count, found = ctypes.c_uint(MOST), (pynvml.c_nvmlGpuInstance_t * MOST)()
        if _unless_absent(pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, found, ctypes.byref(count)) is None:
            continue
        for instance in found[:count.value]:
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            yield GpuInstance(info.id, profile.name, Placement(info.placement.start, info.placement.size),
                              tuple(sorted(_parts(instance), key=lambda part: part.id)))


def _parts(instance: Any) -> Iterator[ComputeInstance]:
    for kind in _kinds(instance):
        count, found = ctypes.c_uint(MOST), (pynvml.c_nvmlComputeInstance_t * MOST)()
        if _unless_absent(pynvml.nvmlGpuInstanceGetComputeInstances, instance, kind.id, found,
                          ctypes.byref(count)) is not None:
            for part in found[:count.value]:
                yield ComputeInstance(pynvml.nvmlComputeInstanceGetInfo_v2(part).id, kind.sliceCount)


def _kinds(instance: Any) -> Iterator[Any]:
    """Yield the profiles of compute instances that a GPU instance can have."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        kind = _unless_absent(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number,
                              pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
        if kind is not None:
            yield kind


def _unless_absent(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the library; return None if the GPU, or this version of the driver, does not support the call."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in ABSENT:
            return None
        raise


def _call(timeout: float, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the library in a separate thread.

    :param timeout: seconds
    """
    try:
        return within(timeout, f"NVML: {what}", functools.partial(call, *arguments))
    except StillRunning as error:
        raise HostActionFailed(f"NVML did not {what} within {timeout:g} s: the GPU may have died; see the kernel's log"
                               ) from error
    except pynvml.NVMLError as error:
        raise HostActionFailed(f"NVML cannot {what}: {error}") from error
