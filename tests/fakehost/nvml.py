# SPDX-License-Identifier: Apache-2.0
"""Emulate NVIDIA's management library: its report of GPUs and MIG, and changes of their partitions.

It stands where pynvml calls the C library, so that pynvml's own code runs, with its structures and errors. Numbers are
those of an A100 with 40 GB (NVIDIA MIG user guide, "A100 MIG Profiles"; memory as ``nvidia-smi mig -lgip`` shows it).

On an emulated host ``python -m tests.fakehost.nvml ARGUMENTS`` runs ``containerhost ARGUMENTS`` with it.
"""

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fixtures
import pynvml

from containerhost.operator.cli import main as containerhost
from tests.fakehost.control import FakeHostControl

MIB = 1 << 20
MEMORY = 40960  # MiB
IDLE_POWER, FULL_POWER = 50, 400  # W


@dataclasses.dataclass(frozen=True)
class Kind:
    number: int
    id: int
    name: str
    slices: int
    memory: int
    most: int
    size: int
    starts: tuple[int, ...]


A100 = (
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, "1g.5gb", 1, 4864, 7, 1, (0, 1, 2, 3, 4, 5, 6)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, "1g.5gb+me", 1, 4864, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, "1g.10gb", 1, 9984, 4, 2, (0, 2, 4, 6)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, "2g.10gb", 2, 9984, 3, 2, (0, 2, 4)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, "3g.20gb", 3, 20096, 2, 4, (0, 4)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, "4g.20gb", 4, 20096, 1, 4, (0,)),
    Kind(pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, "7g.40gb", 7, 40320, 1, 8, (0,)))
# Compute instances: number and id of those of so many compute slices.
PARTS = {pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE: (0, 1), pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE: (1, 2),
         pynvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE: (2, 3), pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE: (3, 4),
         pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE: (4, 7)}
COMPUTE_SLICES = 7


@dataclasses.dataclass
class Part:
    """A compute instance."""

    id: int
    slices: int
    used: bool = False


@dataclasses.dataclass
class Instance:
    id: int
    kind: Kind
    start: int
    parts: list[Part] = dataclasses.field(default_factory=list)

    def overlaps(self, start: int, size: int) -> bool:
        return self.start < start + size and start < self.start + self.kind.size


@dataclasses.dataclass
class Gpu:
    """:ivar needs_reset: a change of MIG mode waits for a reset, as while a monitor uses the GPU
    :ivar load: per cent of its time, memory and power that are used
    """

    address: str
    enabled: bool = False
    pending: bool | None = None
    instances: list[Instance] = dataclasses.field(default_factory=list)
    needs_reset: bool = False
    can_mig: bool = True
    load: int = 0

    def kind(self, profile: int) -> Kind:
        return next(kind for kind in A100 if kind.id == profile)

    def pairs(self) -> list[tuple[int, int]]:
        return [(instance.id, part.id) for instance in self.instances for part in instance.parts]


class Nvml(fixtures.Fixture):
    """:param gpus: how each is cut, by address: number, start, profile and compute slices of the parts of each GPU
        instance; None is no MIG mode
    :param changed: gets a GPU's address and pairs of instances when they change
    :ivar failing: names of C functions -> how many calls of each go well before one fails
    :ivar before: is called with the name of each C function before it does anything
    """

    def __init__(self, gpus: Mapping[str, Sequence[tuple[int, int, str, Sequence[int]]] | None],
                 changed: Callable[[str, Sequence[tuple[int, int]]], None] = lambda address, pairs: None) -> None:
        self._changed = changed
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda name: None
        self._objects: list[Any] = [None]
        self.gpus = [self._gpu(address, cut) for address, cut in gpus.items()]

    def _setUp(self) -> None:
        for name, value in (("_LoadNvmlLibrary", lambda: None), ("_nvmlGetFunctionPointer", self._function)):
            self.useFixture(fixtures.MonkeyPatch(f"pynvml.{name}", value))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml.available", lambda: True))

    def gpu(self, address: str) -> Gpu:
        return next(gpu for gpu in self.gpus if gpu.address == address)

    def cut(self, address: str) -> list[tuple[int, str, tuple[int, ...]]]:
        """Return the partitions of a GPU: start, profile and compute slices of each instance."""
        return sorted((one.start, one.kind.name, tuple(part.slices for part in one.parts))
                      for one in self.gpu(address).instances)

    @staticmethod
    def _gpu(address: str, cut: Sequence[tuple[int, int, str, Sequence[int]]] | None) -> Gpu:
        instances = [Instance(number, next(kind for kind in A100 if kind.name == name), start,
                              [Part(index, slices) for index, slices in enumerate(parts)])
                     for number, start, name, parts in cut or ()]
        return Gpu(address, cut is not None, None, instances)

    # Handles are the places of objects in a list.

    def _function(self, name: str) -> Callable[..., int]:
        call = getattr(self, f"_{name.removesuffix('_v2')}", None)
        if call is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        def answer(*arguments: Any) -> int:
            self.calls.append(name)
            self.before(name)
            if name in self.failing:
                self.failing[name] -= 1
                if self.failing[name] < 0:
                    del self.failing[name]
                    return pynvml.NVML_ERROR_UNKNOWN
            return call(*arguments) or pynvml.NVML_SUCCESS

        return answer

    def _give(self, reference: Any, value: Any) -> None:
        """Fill in the pointer that was passed by reference."""
        self._point(ctypes.addressof(reference._obj), value)

    def _point(self, place: int, value: Any) -> None:
        if not any(one is value for one in self._objects):
            self._objects.append(value)
        number = next(index for index, one in enumerate(self._objects) if one is value)
        ctypes.c_void_p.from_address(place).value = number

    def _taken(self, handle: Any) -> Any:
        return self._objects[ctypes.cast(handle, ctypes.c_void_p).value or 0]

    # The library.

    def _nvmlInitWithFlags(self, flags: int) -> None:
        pass

    def _nvmlInit(self) -> None:
        pass

    def _nvmlShutdown(self) -> None:
        pass

    def _nvmlErrorString(self, code: int) -> bytes:
        return {pynvml.NVML_ERROR_IN_USE: b"In use by another client"}.get(code, f"error {code}".encode())

    def _nvmlDeviceGetCount(self, count: Any) -> None:
        count._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex(self, index: Any, device: Any) -> None:
        self._give(device, self.gpus[index.value])

    def _nvmlDeviceGetPciInfo(self, device: Any, info: Any) -> None:
        domain, bus, rest = self._taken(device).address.split(":")
        info._obj.domain, info._obj.bus, info._obj.device = int(domain, 16), int(bus, 16), int(rest[:2], 16)

    _nvmlDeviceGetPciInfo_v3 = _nvmlDeviceGetPciInfo

    def _nvmlDeviceGetName(self, device: Any, text: Any, size: Any) -> None:
        found = self._taken(device)
        name = b"NVIDIA A100-SXM4-40GB"
        if isinstance(found, tuple):
            _, instance, part = found
            own = f"{part.slices}c." if part.slices != instance.kind.slices else ""
            name += f" MIG {own}{instance.kind.name}".encode()
        text.value = name

    def _nvmlDeviceGetUUID(self, device: Any, text: Any, size: Any) -> None:
        found = self._taken(device)
        text.value = (f"MIG-{found[0].address}-{found[1].id}-{found[2].id}" if isinstance(found, tuple)
                      else f"GPU-{found.address}").encode()

    def _nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        found = self._taken(device)
        gpu, memory = (found[0], found[1].kind.memory) if isinstance(found, tuple) else (found, MEMORY)
        info._obj.total = memory * MIB
        info._obj.used = info._obj.total * gpu.load // 100
        info._obj.free = info._obj.total - info._obj.used

    def _nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int | None:
        gpu = self._taken(device)
        if gpu.enabled:  # in MIG mode
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        rates._obj.gpu, rates._obj.memory = gpu.load, gpu.load // 2
        return None

    def _nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> None:
        load = self._taken(device).load
        milliwatts._obj.value = 10 * (IDLE_POWER * (100 - load) + FULL_POWER * load)

    # MIG, to look at.

    def _nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> int | None:
        gpu = self._taken(device)
        if not gpu.can_mig:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        current._obj.value = int(gpu.enabled)
        pending._obj.value = int(gpu.enabled if gpu.pending is None else gpu.pending)
        return None

    def _nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = COMPUTE_SLICES

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, mig: Any) -> int | None:
        gpu = self._taken(device)
        found = [(gpu, instance, part) for instance in gpu.instances for part in instance.parts]
        if index.value >= len(found):
            return pynvml.NVML_ERROR_NOT_FOUND
        self._give(mig, found[index.value])
        return None

    def _nvmlDeviceGetGpuInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._taken(device)[1].id

    def _nvmlDeviceGetComputeInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._taken(device)[2].id

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, number: int, info: Any) -> int | None:
        kind = next((kind for kind in A100 if kind.number == number), None)
        if kind is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        info._obj.id, info._obj.sliceCount, info._obj.instanceCount = kind.id, kind.slices, kind.most
        info._obj.memorySizeMB, info._obj.name = kind.memory, f"MIG {kind.name}".encode()
        return None

    def _nvmlDeviceGetGpuInstanceRemainingCapacity(self, device: Any, profile: int, count: Any) -> int | None:
        gpu = self._taken(device)
        if not gpu.enabled:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        count._obj.value = len(self._free(gpu, gpu.kind(profile)))
        return None

    def _nvmlDeviceGetGpuInstancePossiblePlacements(self, device: Any, profile: int, places: Any, count: Any
                                                    ) -> int | None:
        gpu = self._taken(device)
        if not gpu.enabled:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        kind = gpu.kind(profile)
        for index, start in enumerate(kind.starts):
            places[index].start, places[index].size = start, kind.size
        count._obj.value = len(kind.starts)
        return None

    def _nvmlDeviceGetGpuInstances(self, device: Any, profile: int, found: Any, count: Any) -> None:
        mine = [one for one in self._taken(device).instances if one.kind.id == profile]
        for index, one in enumerate(mine):
            self._point(ctypes.addressof(found) + index * ctypes.sizeof(ctypes.c_void_p), one)
        count._obj.value = len(mine)

    def _nvmlDeviceGetGpuInstanceById(self, device: Any, number: int, found: Any) -> int | None:
        one = next((one for one in self._taken(device).instances if one.id == number), None)
        if one is None:
            return pynvml.NVML_ERROR_NOT_FOUND
        self._give(found, one)
        return None

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> None:
        one = self._taken(instance)
        info._obj.id, info._obj.profileId = one.id, one.kind.id
        info._obj.placement.start, info._obj.placement.size = one.start, one.kind.size

    def _nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, instance: Any, number: int, engine: int, info: Any
                                                       ) -> int | None:
        if number not in PARTS or PARTS[number][1] > self._taken(instance).kind.slices:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        info._obj.id, info._obj.sliceCount = PARTS[number]
        return None

    def _nvmlGpuInstanceGetComputeInstances(self, instance: Any, profile: int, found: Any, count: Any) -> None:
        slices = dict(PARTS.values())[profile]
        mine = [part for part in self._taken(instance).parts if part.slices == slices]
        for index, part in enumerate(mine):
            self._point(ctypes.addressof(found) + index * ctypes.sizeof(ctypes.c_void_p), part)
        count._obj.value = len(mine)

    def _nvmlGpuInstanceGetComputeInstanceById(self, instance: Any, number: int, found: Any) -> int | None:
        part = next((part for part in self._taken(instance).parts if part.id == number), None)
        if part is None:
            return pynvml.NVML_ERROR_NOT_FOUND
        self._give(found, part)
        return None

    def _nvmlComputeInstanceGetInfo(self, part: Any, info: Any) -> None:
        info._obj.id = self._taken(part).id

    # MIG, to change.

    @staticmethod
    def _free(gpu: Gpu, kind: Kind) -> list[int]:
        """Return where an instance could be: no overlap, seven compute slices, and so many of a profile."""
        if sum(one.kind.slices for one in gpu.instances) + kind.slices > COMPUTE_SLICES:
            return []
        if sum(one.kind.id == kind.id for one in gpu.instances) >= kind.most:
            return []
        return [start for start in kind.starts if not any(one.overlaps(start, kind.size) for one in gpu.instances)]

    def _nvmlDeviceSetMigMode(self, device: Any, mode: int, status: Any) -> int | None:
        gpu = self._taken(device)
        if gpu.instances and not mode:
            return pynvml.NVML_ERROR_IN_USE
        status._obj.value = pynvml.NVML_SUCCESS
        if gpu.needs_reset and bool(mode) != gpu.enabled:
            gpu.pending, status._obj.value = bool(mode), pynvml.NVML_ERROR_IN_USE
        else:
            gpu.enabled, gpu.pending = bool(mode), None
        return None

    def _nvmlDeviceCreateGpuInstance(self, device: Any, profile: int, made: Any) -> int | None:
        gpu = self._taken(device)
        free = self._free(gpu, gpu.kind(profile))
        return self._created(gpu, profile, free[0], made) if free else pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, profile: int, place: Any, made: Any
                                                  ) -> int | None:
        gpu = self._taken(device)
        start = place._obj.start
        if not gpu.enabled or start not in self._free(gpu, gpu.kind(profile)):
            return pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        return self._created(gpu, profile, start, made)

    def _created(self, gpu: Gpu, profile: int, start: int, made: Any) -> None:
        used = {one.id for one in gpu.instances}
        one = Instance(next(number for number in range(1, 15) if number not in used), gpu.kind(profile), start)
        gpu.instances.append(one)
        self._give(made, one)

    def _nvmlGpuInstanceDestroy(self, instance: Any) -> int | None:
        one = self._taken(instance)
        if one.parts:
            return pynvml.NVML_ERROR_IN_USE
        self._of(one).instances.remove(one)
        return None

    def _nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile: int, made: Any) -> int | None:
        one, slices = self._taken(instance), dict(PARTS.values())[profile]
        if sum(part.slices for part in one.parts) + slices > one.kind.slices:
            return pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        used = {part.id for part in one.parts}
        part = Part(next(number for number in range(8) if number not in used), slices)
        one.parts.append(part)
        self._give(made, part)
        self._tell(self._of(one))
        return None

    def _nvmlComputeInstanceDestroy(self, part: Any) -> int | None:
        gone = self._taken(part)
        if gone.used:
            return pynvml.NVML_ERROR_IN_USE
        one = next(one for gpu in self.gpus for one in gpu.instances if any(part is gone for part in one.parts))
        one.parts = [part for part in one.parts if part is not gone]
        self._tell(self._of(one))
        return None

    def _of(self, instance: Instance) -> Gpu:
        return next(gpu for gpu in self.gpus if any(one is instance for one in gpu.instances))

    def _tell(self, gpu: Gpu) -> None:
        self._changed(gpu.address, gpu.pairs())


class HostNvml(Nvml):
    """Report the GPUs that the driver of the emulated host reaches now, uncut, with the loads that its control sets."""

    def __init__(self, control: FakeHostControl) -> None:
        super().__init__({})
        self._control = control

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self._objects = [None]
        self.gpus = [Gpu(address, can_mig=False, load=load) for address, load in sorted(self._control.loads().items())]

    def _nvmlDeviceGetHandleByPciBusId(self, address: Any, device: Any) -> int:
        return pynvml.NVML_ERROR_GPU_IS_LOST  # it was not listed


if __name__ == "__main__":
    with HostNvml(FakeHostControl.from_environment()):
        containerhost()
