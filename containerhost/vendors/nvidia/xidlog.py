# SPDX-License-Identifier: Apache-2.0
"""Read Xids from the kernel's log, where NVIDIA's driver writes them."""

import re
from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices.health.kernellog import DEVICES_LIMIT, DriverLog
from containerhost.devices.health.rules import Health, health_of
from containerhost.vendors.nvidia.xids import NVLINK5, RECOVERY, Xid, xid_findings

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus."; a slice's has "GPU-I:05" in the parentheses.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})[^)]{0,40}\): ([0-9]{1,4})(?:,(.*))?$",
                  re.IGNORECASE)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+) \(([^)]{1,60})\)",
                       re.IGNORECASE)
_LOADED = "NVRM: loading NVIDIA UNIX"  # the driver was loaded: every GPU begins anew


class XidLog(DriverLog):
    prefix: ClassVar[str] = "NVRM: "

    def __init__(self) -> None:
        self._xids: dict[str, dict[int, Xid]] = {}

    def take(self, text: str) -> None:
        if text.startswith(_LOADED):
            self._xids.clear()
            return
        match = _XID.match(text)
        if match and len(self._xids) < DEVICES_LIMIT:
            address = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.0".lower()
            self._xid(address, int(match[4]), match[5] or "")

    def acknowledge(self, address: str) -> None:
        self._xids.pop(address, None)

    def health(self) -> Mapping[str, Health]:
        return {address: health_of(xid_findings(self.xids(address))) for address in self._xids}

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
                                action=recovery[2] if recovery else "")
        if not known:
            del self._xids[address]
