"""What only NVIDIA's management library tells: memory, how busy a GPU is, and the names of MIG slices.

The library is asked in a thread of its own with a time limit: a call for a card that has died may never come back.
Without the library, without its driver or without an answer there is nothing to add, and that is no error.
"""

import ctypes
import dataclasses
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from containerhost.devices.health import gpus
from containerhost.sysfs import Host

LOG = logging.getLogger(__name__)
TIME_LIMIT = 10.0  # seconds; the first call after boot without the persistence daemon takes 1 to 2 per GPU
MILLI = 1000  # mW of a W
_LIBRARY = "libnvidia-ml.so.1"
_BOUND = "/sys/bus/pci/drivers/nvidia"  # links to the GPUs that the driver has, by address
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0")


@dataclasses.dataclass(frozen=True, slots=True)
class MigSlice:
    """:ivar memory: bytes"""

    uuid: str
    profile: str | None
    memory: int


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Of a GPU, now. None is what it does not tell; one that is cut into slices does not tell how busy it is.

    :ivar busy, memory_busy: per cent of time
    :ivar free: bytes of its memory
    :ivar power: W
    """

    busy: int | None
    memory_busy: int | None
    free: int | None
    power: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """Of one that NVML cannot reach only ``state`` is known.

    :ivar memory: bytes
    :ivar slices: by GPU instance and compute instance
    """

    uuid: str | None
    model: str | None
    memory: int | None
    slices: Mapping[tuple[int, int], MigSlice]
    use: Use | None = None
    state: gpus.State | None = None


class _Asker:
    """Asks in the background, never twice at once: a call that hangs is not joined by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, limit: float) -> dict[str, Gpu]:
        answer: dict[str, Gpu] = {}
        with self._lock:
            if self._thread and self._thread.is_alive():
                return {}
            thread = self._thread = threading.Thread(target=_ask, args=(answer,), name="nvml", daemon=True)
            thread.start()
        thread.join(limit)
        if thread.is_alive():
            LOG.warning("NVML did not answer within %s s; going on without what it knows", limit)
            return {}
        return answer


_ASKER = _Asker()


def query(limit: float = TIME_LIMIT) -> dict[str, Gpu]:
    """What NVML knows, by PCI address as the kernel writes it; empty when it cannot be asked.

    :param limit: seconds
    """
    return _ASKER.ask(limit) if available() else {}


def available() -> bool:
    """Whether this host has the library."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _ask(answer: dict[str, Gpu]) -> None:
    import pynvml  # noqa: PLC0415  (only a host with NVIDIA's driver needs to spend the time)

    bound = tuple(name for name in Host().names(_BOUND) if _ADDRESS.fullmatch(name))
    try:
        pynvml.nvmlInit()
        try:
            answer.update(_gpus(pynvml, bound))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibRmVersionMismatch:
        answer.update({address: _unreachable(gpus.State(mismatched=True)) for address in bound})
    except pynvml.NVMLError as error:
        LOG.info("NVML has nothing to say: %s", error)


def _gpus(library: Any, bound: Collection[str] = ()) -> Iterator[tuple[str, Gpu]]:
    """:param bound: addresses of the GPUs that the driver has: what is not among those listed is asked for by name"""
    found = set()
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            address = address_of(library.nvmlDeviceGetPciInfo(handle))
            gpu = _gpu(library, handle)
        except library.NVMLError as error:
            LOG.info("NVML cannot tell about GPU %s: %s", index, error)
        else:
            found.add(address)
            yield address, gpu
    for address in sorted(set(bound) - found):
        try:
            yield address, _gpu(library, library.nvmlDeviceGetHandleByPciBusId(address.encode()))
        except library.NVMLError as error:
            if getattr(error, "value", None) != library.NVML_ERROR_NO_PERMISSION:
                yield address, _unreachable(gpus.State(lost=str(error)))


def _gpu(library: Any, handle: Any) -> Gpu:
    return Gpu(uuid=text(library.nvmlDeviceGetUUID(handle)), model=text(library.nvmlDeviceGetName(handle)),
               memory=library.nvmlDeviceGetMemoryInfo(handle).total, slices=dict(_slices(library, handle)),
               use=_use(library, handle), state=gpus.read(library, handle))


def _unreachable(state: gpus.State) -> Gpu:
    return Gpu(uuid=None, model=None, memory=None, slices={}, state=state)


def _use(library: Any, handle: Any) -> Use:
    def told(call: Callable[[Any], Any]) -> Any:
        try:
            return call(handle)
        except library.NVMLError:
            return None

    rates, memory = told(library.nvmlDeviceGetUtilizationRates), told(library.nvmlDeviceGetMemoryInfo)
    power = told(library.nvmlDeviceGetPowerUsage)
    return Use(busy=rates and rates.gpu, memory_busy=rates and rates.memory, free=memory and memory.free,
               power=None if power is None else power / MILLI)


def _slices(library: Any, handle: Any) -> Iterator[tuple[tuple[int, int], MigSlice]]:
    try:
        enabled = library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE
    except library.NVMLError:  # a GPU without MIG
        return
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0):
        try:
            part = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except library.NVMLError:  # no slice at this index
            continue
        key = library.nvmlDeviceGetGpuInstanceId(part), library.nvmlDeviceGetComputeInstanceId(part)
        # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        profile = text(library.nvmlDeviceGetName(part)).rpartition(" MIG ")[2] or None
        yield key, MigSlice(text(library.nvmlDeviceGetUUID(part)), profile,
                            library.nvmlDeviceGetMemoryInfo(part).total)


def address_of(info: Any) -> str:
    """The kernel writes at least four digits of the domain, NVML eight."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
