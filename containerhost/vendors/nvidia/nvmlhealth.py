# SPDX-License-Identifier: Apache-2.0
"""Query a GPU's health from NVIDIA's management library.

Sources: the NVML API reference; NVIDIA, "GPU Memory Error Management", chapters "Error Recovery and Response Flags" and
"RMA Policy Thresholds for Row-Remapping" (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/), and "Dynamic Page
Retirement" (https://docs.nvidia.com/deploy/dynamic-page-retirement/).
"""

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from containerhost.devices.health.rules import Finding, Health, Rule, Verdict, health_of

_NVML = "https://docs.nvidia.com/deploy/nvml-api/"
_MEMORY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"
_RETIREMENT = "https://docs.nvidia.com/deploy/dynamic-page-retirement/"
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED (nvml.h)
RETIRED_LIMIT = 60  # pages; "RMA Eligibility" of the page retirement guide

LOST = Rule(
    name="nvml-lost", verdict=Verdict.SICK, reads="nvmlDeviceGetHandleByPciBusId",
    says="NVML cannot reach it ({error}): it needs a reset or a power cycle", well="NVML reaches it",
    source=f"{_NVML}: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED")
UNKNOWN = Rule(
    name="nvml-unknown", verdict=Verdict.SICK, reads="any call of NVML",
    says="its state is unknown: NVML gave no answer ({error}); see `nvidia-smi` and the kernel's log",
    well="NVML answers", source=f"{_NVML}: a call for a GPU that hangs does not return")
MISMATCH = Rule(
    name="nvml-mismatch", verdict=Verdict.SICK, reads="nvmlInit",
    says="the NVIDIA driver and its libraries are of different versions: load the new module or restart the host",
    well="both are of one version", source=f"{_NVML}: NVML_ERROR_LIB_RM_VERSION_MISMATCH")
RECOVERY = Rule(
    name="nvml-recovery-action", verdict=Verdict.SICK, reads="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    says="its driver asks for recovery: {action}", well="the driver asks for nothing", source=_MEMORY)
UNCORRECTED = Rule(
    name="nvml-ecc", verdict=Verdict.SICK, reads="nvmlDeviceGetTotalEccErrors, uncorrected, volatile",
    says="{count} uncorrected memory errors since it was last reset",
    well="the GPU was reset or its driver reloaded, which clears the counter",
    source=f"{_NVML}; of a driver too old to report a recovery action")
CONTAINED = Rule(
    name="nvml-ecc-contained", verdict=Verdict.NOTE, reads=UNCORRECTED.reads,
    says="{count} uncorrected memory errors since it was last reset, after which its driver asks for nothing",
    well=UNCORRECTED.well, source=_MEMORY)
RETIRED = Rule(
    name="nvml-retired-pages", verdict=Verdict.SICK, reads="nvmlDeviceGetRetiredPages, both causes",
    says=f"{{count}} pages of its memory are retired; from {RETIRED_LIMIT} on NVIDIA replaces the card",
    well="never: the card is replaced", source=_RETIREMENT)
RETIRING = Rule(
    name="nvml-retirement-pending", verdict=Verdict.NOTE, reads="nvmlDeviceGetRetiredPagesPendingStatus",
    says="pages of its memory are retired at its next reset", well="the GPU was reset", source=_RETIREMENT)
REMAP_FAILED = Rule(
    name="nvml-remap-failure", verdict=Verdict.SICK, reads="nvmlDeviceGetRemappedRows",
    says="a row of its memory could not be remapped: NVIDIA replaces such a card", well="never: the card is replaced",
    source=_MEMORY)
REMAPPING = Rule(
    name="nvml-remap-pending", verdict=Verdict.NOTE, reads="nvmlDeviceGetRemappedRows",
    says="rows of its memory are remapped at its next reset", well="the GPU was reset",
    source=f"{_MEMORY}: new workloads can be launched")
NO_SLICES = Rule(
    name="nvml-mig-empty", verdict=Verdict.SICK, reads="nvmlDeviceGetMigMode, nvmlDeviceGetMigDeviceHandleByIndex",
    says="MIG mode is on and it has no slices, so no program can use it: cut it with `containerhost mig apply`, also "
         "when the host was restarted, or turn the mode off", well="it has slices, or MIG mode is off",
    source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: creating GPU instances")
FABRIC = Rule(
    name="nvml-fabric", verdict=Verdict.SICK, reads="nvmlDeviceGetGpuFabricInfo",
    says="it has not joined the NVLink fabric ({state}), and CUDA does not start before: see "
         "`systemctl status nvidia-fabricmanager`", well="it has joined the fabric",
    source=f"{_NVML}: nvmlGpuFabricInfo_t, state and status")
RULES = (LOST, UNKNOWN, MISMATCH, RECOVERY, UNCORRECTED, CONTAINED, RETIRED, RETIRING, REMAP_FAILED, REMAPPING,
         NO_SLICES, FABRIC)

NO_ACTION = 0
_ACTIONS = {1: "reset", 2: "restart of the host", 3: "drain of peer-to-peer traffic", 4: "drain and reset",
            5: "recovery of the IMEX domain", 6: "reset of its bus", 7: "restart of the system"}


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """Hold the current state of a GPU; None where a value is not reported.

    :ivar lost: NVML's reason why it cannot be reached
    :ivar unknown: why NVML has reported nothing
    :ivar mismatched: the library is of another version than the driver
    :ivar action: NVML_GPU_RECOVERY_ACTION_*
    :ivar uncorrected: memory errors since its last reset
    :ivar fabric: state of joining the fabric of its NVSwitches; None if it has joined, or there is none
    """

    lost: str | None = None
    unknown: str | None = None
    mismatched: bool = False
    action: int | None = None
    uncorrected: int | None = None
    retired: int | None = None
    retiring: bool | None = None
    remapping: bool | None = None
    remap_failed: bool | None = None
    sliceless: bool = False
    fabric: str | None = None


def read(library: Any, handle: Any) -> State:
    """Read a GPU's state.

    :raises library.NVMLError: the GPU was lost meanwhile
    """
    def told(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except AttributeError:  # unknown to this version of the library
            return None
        except library.NVMLError as error:  # unsupported by this GPU
            if getattr(error, "value", None) in _LOST:
                raise
            return None

    def retired(cause: int) -> int:
        return len(library.nvmlDeviceGetRetiredPages(handle, cause))

    rows = told(lambda: library.nvmlDeviceGetRemappedRows(handle))
    return State(
        action=told(lambda: _field(library, handle, library.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
        uncorrected=told(lambda: library.nvmlDeviceGetTotalEccErrors(
            handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)),
        retired=told(lambda: retired(library.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
                     + retired(library.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)),
        retiring=told(lambda: bool(library.nvmlDeviceGetRetiredPagesPendingStatus(handle))),
        remapping=rows and bool(rows[2]), remap_failed=rows and bool(rows[3]),
        fabric=told(lambda: _fabric(library, handle)))


def _field(library: Any, handle: Any, field: int) -> int | None:
    (value,) = library.nvmlDeviceGetFieldValues(handle, [field])
    return int(value.value.uiVal) if value.nvmlReturn == library.NVML_SUCCESS else None


def _fabric(library: Any, handle: Any) -> str | None:
    info = library.c_nvmlGpuFabricInfo_t()
    library.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    if info.state == library.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != library.NVML_SUCCESS:
        return f"error {info.status}"
    return {library.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not started",
            library.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in progress"}.get(info.state)


def health(state: State | None) -> Health:
    return health_of(_findings(state)) if state else Health()


def _findings(state: State) -> Iterator[Finding]:
    if state.lost:
        yield LOST.finds(error=state.lost)
    if state.unknown:
        yield UNKNOWN.finds(error=state.unknown)
    if state.action:
        yield RECOVERY.finds(action=_ACTIONS.get(state.action, f"action {state.action}"))
    if state.uncorrected:
        yield (CONTAINED if state.action == NO_ACTION else UNCORRECTED).finds(count=state.uncorrected)
    if state.retired is not None and state.retired >= RETIRED_LIMIT:
        yield RETIRED.finds(count=state.retired)
    if state.fabric:
        yield FABRIC.finds(state=state.fabric)
    for rule, holds in ((MISMATCH, state.mismatched), (RETIRING, state.retiring), (REMAP_FAILED, state.remap_failed),
                        (REMAPPING, state.remapping), (NO_SLICES, state.sliceless)):
        if holds:
            yield rule.finds()
