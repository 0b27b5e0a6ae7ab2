# SPDX-License-Identifier: Apache-2.0
"""Query NVIDIA's management library for data that only it has: memory, load, and the names of MIG slices.

The library is called in a separate thread with a time limit: a call to a failed card may never return. A missing
library is not an error and adds no data; without an answer the GPUs' state is unknown.
"""

import ctypes
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from containerhost.linux.sysfs import Host
from containerhost.vendors.base import Use
from containerhost.vendors.nvidia import nvmlhealth

LOG = logging.getLogger(__name__)
TIMEOUT = 10.0  # seconds
# Additional seconds for each GPU: one without persistence mode is initialized by each query (NVIDIA, "Driver
# Persistence").
GPU_TIMEOUT = 3.0
MILLI = 1000  # mW per W
_LIBRARY = "libnvidia-ml.so.1"
_BOUND = "/sys/bus/pci/drivers/nvidia"  # links to the driver's GPUs, by address
# NVML errors of missing functions or objects: INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND (nvml.h)
_ABSENT = (2, 3, 6, 13)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0")


@dataclasses.dataclass(frozen=True, slots=True)
class MigSlice:
    """Describe a MIG slice as NVML reports it.

    :ivar memory: bytes
    :ivar free: unused bytes of it; compute instances of one GPU instance share it
    """

    uuid: str
    profile: str | None
    memory: int
    free: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """Describe a GPU; if NVML cannot reach it, only ``state`` is known.

    :ivar memory: bytes
    :ivar peers: other end of each active NVLink: PCI addresses of GPUs and switches
    :ivar index: its NVML index, which nvidia-smi and DCGM show
    """

    uuid: str | None
    model: str | None
    memory: int | None
    slices: Mapping[tuple[int, int], MigSlice]
    use: Use | None = None
    state: nvmlhealth.State | None = None
    peers: tuple[str, ...] = ()
    index: int | None = None


Answer = dict[str, Gpu] | None


class _Asker:
    """Query in the background, one query at a time, and share each answer among all waiting callers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = self._ended = 0  # queries
        self._overdue_at = 0.0
        self._answer: Answer = None

    def ask(self, timeout: float) -> Answer:
        """Return the answer of a query that began after this call, shared among all waiting callers.

        An earlier query may have read values that the caller has changed since.

        :param timeout: seconds, for the query that runs and the one after it together
        :returns: None if there is no answer in time. While a query exceeds its limit, None is returned immediately,
            so that a hanging driver does not delay every caller
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            mine = self._begun + 1
            others = self._begun > self._ended
            if others and time.monotonic() >= self._overdue_at:
                return None
            if not self._changed.wait_for(lambda: self._ended >= mine - 1, timeout):
                return None
            if self._begun < mine:
                threading.Thread(target=self._run, name="nvml", daemon=True).start()
                self._begun, self._overdue_at = mine, time.monotonic() + timeout if others else deadline
            if not self._changed.wait_for(lambda: self._ended >= mine, deadline - time.monotonic()):
                return None
            return self._answer

    def _run(self) -> None:
        answer: Answer = None
        try:
            answer = _ask()
        finally:
            with self._changed:
                self._ended += 1
                self._answer = answer
                self._changed.notify_all()


_ASKER = _Asker()


def query(timeout: float | None = None) -> dict[str, Gpu]:
    """Return NVML's data by PCI address in the kernel's format. Thread-safe.

    :param timeout: seconds; None depends on the number of this host's GPUs
    :returns: empty on a host without the library. A GPU of NVIDIA's driver without an answer has a state for that:
        its health is unknown
    """
    if not available():
        return {}
    if timeout is None:
        timeout = TIMEOUT + GPU_TIMEOUT * len(_bound())
    answer = _ASKER.ask(timeout)
    if answer is None:
        LOG.warning("NVML has not answered within %s s: the state of the GPUs is unknown", timeout)
        return _unknown(_bound(), f"no answer within {timeout:g} s")
    return dict(answer)


def links_between(gpus: Mapping[str, Gpu]) -> dict[frozenset[str], int]:
    """Return the number of NVLinks between two GPUs, by both addresses, not counting those to switches. Pure."""
    return {frozenset((address, peer)): gpu.peers.count(peer) for address, gpu in gpus.items() for peer in gpu.peers
            if peer in gpus and peer != address}


def available() -> bool:
    """Return whether this host has the library."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _bound() -> tuple[str, ...]:
    """Return the addresses of the GPUs bound to NVIDIA's driver."""
    return tuple(name for name in Host().names(_BOUND) if _ADDRESS.fullmatch(name))


def _ask() -> dict[str, Gpu]:
    import pynvml  # noqa: PLC0415  (only a host with NVIDIA's driver needs to spend the time)

    bound = _bound()
    found: dict[str, Gpu] = {}
    try:
        pynvml.nvmlInit()
        try:
            for address, gpu in _gpus(pynvml, bound):
                found[address] = gpu
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibRmVersionMismatch:
        return {address: _unreachable(nvmlhealth.State(mismatched=True)) for address in bound}
    except pynvml.NVMLError_NoPermission as error:
        LOG.info("NVML refuses this user: %s", error)
    except pynvml.NVMLError as error:
        LOG.warning("NVML has failed, so the state of GPUs is unknown: %s", error)
        return _unknown(bound, str(error)) | found
    return found


def _unknown(addresses: Iterable[str], reason: str) -> dict[str, Gpu]:
    return {address: _unreachable(nvmlhealth.State(unknown=reason)) for address in addresses}


def _gpus(library: Any, bound: Collection[str] = ()) -> Iterator[tuple[str, Gpu]]:
    """Yield the library's GPUs by address.

    :param bound: addresses of the driver's GPUs: those missing from the library's list are queried by address
    """
    found = set()
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            address = address_of(library.nvmlDeviceGetPciInfo(handle))
            gpu = dataclasses.replace(_gpu(library, handle), index=index)
        except library.NVMLError as error:
            LOG.info("NVML cannot query GPU %s: %s", index, error)
        else:
            found.add(address)
            yield address, gpu
    for address in sorted(set(bound) - found):
        try:
            yield address, _gpu(library, library.nvmlDeviceGetHandleByPciBusId(address.encode()))
        except library.NVMLError as error:
            if getattr(error, "value", None) != library.NVML_ERROR_NO_PERMISSION:
                yield address, _unreachable(nvmlhealth.State(lost=str(error)))


def _gpu(library: Any, handle: Any) -> Gpu:
    cut = _in_mig_mode(library, handle)
    slices = dict(_slices(library, handle)) if cut else {}
    return Gpu(uuid=text(library.nvmlDeviceGetUUID(handle)), model=text(library.nvmlDeviceGetName(handle)),
               memory=_memory(library, handle), slices=slices, use=_use(library, handle),
               state=dataclasses.replace(nvmlhealth.read(library, handle), sliceless=cut and not slices),
               peers=tuple(_peers(library, handle)))


def _memory(library: Any, handle: Any) -> int | None:
    """Return the bytes of a GPU's memory; None if it has none and shares the host's (GB10)."""
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return None


def _unreachable(state: nvmlhealth.State) -> Gpu:
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


def _peers(library: Any, handle: Any) -> Iterator[str]:
    """Yield the other end of each active NVLink; a GPU without any returns an error."""
    for link in range(library.NVML_NVLINK_MAX_LINKS):
        try:
            if library.nvmlDeviceGetNvLinkState(handle, link) == library.NVML_FEATURE_ENABLED:
                yield address_of(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
        except library.NVMLError:
            return


def _in_mig_mode(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE)
    except library.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return False  # a GPU without MIG


def _slices(library: Any, handle: Any) -> Iterator[tuple[tuple[int, int], MigSlice]]:
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except library.NVMLError as error:
            if error.value not in _ABSENT:
                raise
            continue  # no slice at this index
        key = library.nvmlDeviceGetGpuInstanceId(part), library.nvmlDeviceGetComputeInstanceId(part)
        # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        profile = text(library.nvmlDeviceGetName(part)).rpartition(" MIG ")[2] or None
        memory = library.nvmlDeviceGetMemoryInfo(part)
        yield key, MigSlice(text(library.nvmlDeviceGetUUID(part)), profile, memory.total, memory.free)


def address_of(info: Any) -> str:
    """Convert a PCI address to the kernel's form, whose domain has at least four digits; NVML's has eight."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
