# SPDX-License-Identifier: Apache-2.0
"""Read Xids of GPUs and SXids of NVSwitches from the kernel's log, where NVIDIA's driver writes them."""

import re
from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices.health.kernellog import DEVICES_LIMIT, DriverLog
from containerhost.devices.health.rules import Health, health_of
from containerhost.vendors.nvidia.xids import NVLINK5, RECOVERY, SWITCH, Xid, xid_findings

DRIVER = "nvidia"

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus."; for a slice with "GPU-I:05" in the
# parentheses.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})[^)]{0,40}\): ([0-9]{1,4})(?:,(.*))?$",
                  re.IGNORECASE)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+) \(([^)]{1,60})\)",
                       re.IGNORECASE)
# "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
_SXID = re.compile(r"nvidia-nvswitch[0-9]+: SXid \(PCI:([0-9a-f:.]{7,20})\): ([0-9]{1,5}), Fatal\b", re.IGNORECASE)
_LOADED = "NVRM: loading NVIDIA UNIX"  # the driver was loaded: discard earlier errors of every GPU


class XidLog(DriverLog):
    prefix: ClassVar[tuple[str, ...]] = ("NVRM: ", "nvidia-nvswitch")

    def __init__(self) -> None:
        self._xids: dict[str, dict[int, Xid]] = {}
        self._switches: dict[str, int] = {}  # first fatal SXid of each switch

    def take(self, text: str) -> None:
        if text.startswith(_LOADED):
            self._switches.clear()
            for address in list(self._xids):
                self.acknowledge(address)
            return
        fatal = _SXID.match(text)
        if fatal and len(self._switches) < DEVICES_LIMIT:
            self._switches.setdefault(fatal[1].lower(), int(fatal[2]))
        match = _XID.match(text)
        if match and len(self._xids) < DEVICES_LIMIT:
            address = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.0".lower()
            self._xid(address, int(match[4]), match[5] or "")

    def acknowledge(self, address: str) -> None:
        """Discard the messages that a reset settles: all except those for which the driver asks for another action."""
        known = self._xids.pop(address, {})
        asked = known.get(RECOVERY)
        if asked and not asked.settled_by_reset:
            self._xids[address] = {RECOVERY: asked}

    def health(self) -> Mapping[str, Health]:
        found = {address: health_of(xid_findings(self.xids(address))) for address in self._xids}
        switches = [SWITCH.finds(switch=switch, number=number) for switch, number in sorted(self._switches.items())]
        return found | ({DRIVER: health_of(switches)} if switches else {})

    def xids(self, address: str) -> tuple[Xid, ...]:
        """Return the Xids of a GPU since it was last reset, by number."""
        found = self._xids.get(address, {})
        return tuple(found[number] for number in sorted(found))

    def _xid(self, address: str, number: int, text: str) -> None:
        known = self._xids.setdefault(address, {})
        recovery = _RECOVERY.search(text) if number == RECOVERY else None
        if recovery and int(recovery[1], 16) == 0:
            known.clear()
        elif recovery or number != RECOVERY:
            before = known.get(number)
            known[number] = Xid(number, before.count + 1 if before else 1,
                                fatal=bool(before and before.fatal) or (number in NVLINK5 and " Fatal " in text),
                                action=recovery[2] if recovery else "",
                                code=int(recovery[1], 16) if recovery else 1)
        if not known:
            del self._xids[address]
