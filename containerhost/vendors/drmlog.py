# SPDX-License-Identifier: Apache-2.0
"""Read messages of DRM drivers in the kernel's log about GPUs that do not recover from a hang.

Sources, in the kernel's drivers/gpu/drm: ``drm_drv.c`` (drm_dev_wedged_event, which distinguishes a device that
needs recovery from a recovered one; "Initialized" of a bound driver), ``amd/amdgpu/amdgpu_device.c``
(amdgpu_device_gpu_recover), ``xe/xe_device.c`` (xe_device_declare_wedged), ``i915/gt/intel_reset.c``
(intel_gt_reset).
"""

import re
from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices.health.kernellog import DEVICES_LIMIT, DriverLog
from containerhost.devices.health.rules import Health, Rule, Verdict, health_of

_ADDRESS = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
#: Of a driver that was bound to the device, by itself or by a function's reset.
_BOUND = re.compile(rf"(?:[a-z0-9]+ {_ADDRESS}: )?\[drm\] Initialized [a-z0-9]+ [^:]{{1,40}} for {_ADDRESS} on minor")
_SAID = re.compile(rf"[a-z0-9]+ {_ADDRESS}: (.*)$")

WEDGED = Rule(
    name="drm-wedged", verdict=Verdict.SICK, reads="messages of the GPU's driver in /dev/kmsg",
    says="its driver gave up on it: \"{message}\"; rebind the driver (unbind, bind in /sys/bus/pci/drivers) while "
         "no container has the GPU, or restart the host", well="the driver was rebound or has reset it",
    source="Documentation/gpu/drm-uapi.rst, \"Device Wedging\"; " + "; ".join((
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c", "xe/xe_device.c", "i915/gt/intel_reset.c")))


class DrmLog(DriverLog):
    """Track by kernel messages the GPUs that a DRM driver could not recover.

    :cvar failed: a message about a GPU that is lost to its driver
    :cvar recovered: a message about its recovery
    """

    failed: ClassVar[re.Pattern[str]]
    recovered: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}

    def take(self, text: str) -> None:
        if bound := _BOUND.match(text):
            self._messages.pop(bound[2], None)
            return
        said = _SAID.match(text)
        if said is None:
            return
        address, message = said[1], said[2]
        if self.recovered.search(message):
            self._messages.pop(address, None)
        elif self.failed.search(message) and len(self._messages) < DEVICES_LIMIT:
            self._messages.setdefault(address, message[:120])

    def acknowledge(self, address: str) -> None:
        self._messages.pop(address, None)

    def health(self) -> Mapping[str, Health]:
        return {address: health_of([WEDGED.finds(message=message)]) for address, message in self._messages.items()}


class AmdgpuLog(DrmLog):
    prefix: ClassVar[tuple[str, ...]] = ("amdgpu ", "[drm] Initialized amdgpu ")
    failed: ClassVar[re.Pattern[str]] = re.compile(r"GPU reset end with ret = -|device wedged, needs recovery")
    recovered: ClassVar[re.Pattern[str]] = re.compile(r"GPU reset\([0-9]+\) succeeded|wedged, but recovered")


class IntelLog(DrmLog):
    prefix: ClassVar[tuple[str, ...]] = ("xe ", "i915 ", "[drm] Initialized xe ", "[drm] Initialized i915 ")
    failed: ClassVar[re.Pattern[str]] = re.compile(
        r"has declared device \S+ as wedged|device wedged, needs recovery|Failed to reset chip")
