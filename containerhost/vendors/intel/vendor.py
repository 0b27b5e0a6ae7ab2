# SPDX-License-Identifier: Apache-2.0
"""Support Intel GPUs under i915 or xe: their DRM nodes are all a container needs."""

from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices.health.kernellog import DriverLog
from containerhost.devices.model import PciFunction
from containerhost.vendors import base
from containerhost.vendors.drmlog import IntelLog


class Intel(base.GpuVendor):
    name: ClassVar[str] = "intel"
    vendor_id: ClassVar[str] = "8086"
    pci_vendors: ClassVar[Mapping[str, str]] = {"8086": "Intel Corporation"}
    drivers: ClassVar[frozenset[str]] = frozenset({"i915", "xe"})
    driver_log: ClassVar[type[DriverLog] | None] = IntelLog

    @classmethod
    def claims(cls, function: PciFunction) -> bool:
        return function.vendor_id == cls.vendor_id and function.class_code.startswith(base.DISPLAY)
