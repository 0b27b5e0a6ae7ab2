# SPDX-License-Identifier: Apache-2.0
"""Catalogue NVIDIA's Xid errors in the kernel's log, and define which of them make a GPU sick.

Source of the table, number by number: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", columns Description and
Resolution Bucket (Immediate Action), https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Where the
catalog has a workflow in place of an action, the table has the workflow's action for the error alone: 48 a reset, 45
nothing, 74 a check of the NVLink.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from containerhost.devices.health.rules import Finding, Rule, Verdict

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


class Kind(enum.StrEnum):
    """Classify an Xid by its meaning for the next consumer of the GPU.

    ``fatal``: the GPU is unusable until it is repaired. ``application``: it concerns the process, not the GPU.
    ``recovered``: the GPU has recovered.
    """

    FATAL = "fatal"
    APPLICATION = "application"
    RECOVERED = "recovered"


# Consequences of the catalog's actions for the next container on the GPU.
KINDS = {
    "RESET_GPU": Kind.FATAL, "RESTART_BM": Kind.FATAL, "RESTART_VM": Kind.FATAL, "CHECK_MECHANICALS": Kind.FATAL,
    "WORKFLOW_NVLINK_ERR": Kind.FATAL, "RESTART_APP": Kind.APPLICATION, "IGNORE": Kind.RECOVERED,
}

XIDS: dict[int, tuple[str, str]] = {
    8: ("GPU stopped processing", "RESTART_APP"),
    11: ("invalid or corrupted push buffer stream", "RESTART_APP"),
    13: ("graphics engine exception", "RESTART_APP"),
    25: ("invalid or illegal push buffer stream", "RESTART_APP"),
    31: ("GPU memory page fault", "RESTART_APP"),
    32: ("invalid or corrupted push buffer stream", "RESTART_APP"),
    43: ("GPU stopped processing", "IGNORE"),
    45: ("preemptive cleanup, due to previous errors", "IGNORE"),
    46: ("GPU stopped processing", "RESET_GPU"),
    48: ("double bit ECC error", "RESET_GPU"),
    62: ("internal micro-controller halt", "RESET_GPU"),
    63: ("GPU memory remapping event", "IGNORE"),
    64: ("GPU memory remapping failure", "RESET_GPU"),
    74: ("NVLink error", "WORKFLOW_NVLINK_ERR"),
    79: ("GPU has fallen off the bus", "RESTART_BM"),
    92: ("high single-bit ECC error rate", "IGNORE"),
    94: ("contained memory error", "RESTART_APP"),
    95: ("uncontained memory error", "RESET_GPU"),
    109: ("context switch timeout", "RESET_GPU"),
    110: ("security fault", "RESET_GPU"),
    119: ("GSP RPC timeout", "RESET_GPU"),
    120: ("GSP error", "RESET_GPU"),
    136: ("link training failed", "RESET_GPU"),
    137: ("NVLink privilege error", "IGNORE"),
    139: ("OFA1 error", "RESTART_APP"),
    140: ("ECC unrecovered error", "RESET_GPU"),
    141: ("CUDA fast path error", "IGNORE"),
    143: ("GPU initialization error", "RESET_GPU"),
    151: ("key rotation error", "RESTART_VM"),
    155: ("NVLink: software defined error", "RESET_GPU"),
    156: ("resource retirement event", "RESET_GPU"),
    157: ("resource retirement failure", "IGNORE"),
    158: ("GPU fatal timeout", "RESET_GPU"),
}
NVLINK5 = range(144, 151)  # their text says whether they are fatal
RESET_CODES = frozenset({0, 1, 4})  # NVML_GPU_RECOVERY_ACTION_: NONE, GPU_RESET, DRAIN_AND_RESET (nvml.h)
RECOVERY = 154  # its text has the recovery action, and later that none is needed

FATAL = Rule(
    name="xid-fatal", verdict=Verdict.SICK, reads="NVRM: Xid in /dev/kmsg",
    says="{what}: NVIDIA's catalog requires {action}; a hard reboot of the server or VM "
         "that holds it resets it, or `containerhost scrub` while no container does",
    well="it was reset by `containerhost scrub`, at a hard reboot or on its return, its driver was reloaded, or Xid "
         "154 reports that no action is needed",
    source=CATALOG)
ACTION = Rule(
    name="xid-recovery-action", verdict=Verdict.SICK, reads="NVRM: Xid 154 in /dev/kmsg",
    says="Xid 154: its driver asks for \"{action}\"", well=FATAL.well, source=CATALOG)
# A reset does not clear these: a boot of the host does, and the driver reports when no action is needed.
OTHER_ACTION = Rule(
    name="xid-other-action", verdict=Verdict.SICK, reads="NVRM: Xid 154 in /dev/kmsg",
    says="Xid 154: only \"{action}\" helps, which a reset of the GPU does not do",
    well="the host was restarted, or Xid 154 reports that no action is needed", source=CATALOG)
SWITCH = Rule(
    name="nvswitch-sxid-fatal", verdict=Verdict.SICK, reads="nvidia-nvswitch: SXid in /dev/kmsg",
    says="NVSwitch {switch} had a fatal error (SXid {number}), which ends traffic between GPUs: restart the host, or "
         "end what uses GPUs, reload the driver and start Fabric Manager",
    well="the host was restarted, or the driver was reloaded",
    source="NVIDIA Fabric Manager User Guide, \"NVSwitch SXid Error Codes\"")
PASSING = Rule(
    name="xid-passing", verdict=Verdict.NOTE, reads="NVRM: Xid in /dev/kmsg",
    says="{what}: {kind}", well=FATAL.well, source=CATALOG)
UNKNOWN = Rule(
    name="xid-unknown", verdict=Verdict.NOTE, reads="NVRM: Xid in /dev/kmsg",
    says="{what}: see NVIDIA's Xid catalog", well=FATAL.well, source=CATALOG)
RULES = (FATAL, ACTION, OTHER_ACTION, SWITCH, PASSING, UNKNOWN)

_TEXTS = {Kind.APPLICATION: "an error of the application that used it", Kind.RECOVERED: "the GPU dealt with it"}


@dataclasses.dataclass(frozen=True, slots=True)
class Xid:
    """Hold the Xids of one number on one GPU since its last reset.

    :ivar fatal: the message itself calls it fatal
    :ivar action: the action of Xid 154, as text of the driver
    """

    number: int
    count: int = 1
    fatal: bool = False
    action: str = ""
    code: int = 1

    @property
    def settled_by_reset(self) -> bool:
        """Return whether an unallocated GPU needs only a reset."""
        return self.code in RESET_CODES


def xid_findings(xids: Iterable[Xid]) -> Iterator[Finding]:
    return (_finding(xid) for xid in xids)


def _finding(xid: Xid) -> Finding:
    if xid.number == RECOVERY:
        return (ACTION if xid.settled_by_reset else OTHER_ACTION).finds(action=xid.action)
    meaning, action = XIDS.get(xid.number, ("", ""))
    if xid.number in NVLINK5:
        meaning, action = "NVLink 5 error", "WORKFLOW_NVLINK_ERR" if xid.fatal else "IGNORE"
    times = f", {xid.count} times" if xid.count > 1 else ""
    if not action:
        return UNKNOWN.finds(what=f"Xid {xid.number}{times}")
    what, kind = f"Xid {xid.number} ({meaning}){times}", KINDS[action]
    if kind is Kind.FATAL:
        return FATAL.finds(what=what, action=action)
    return PASSING.finds(what=what, kind=_TEXTS[kind])
