# SPDX-License-Identifier: Apache-2.0
"""Query the vendors' plug-ins for problems of drivers, their libraries and tools."""

from collections.abc import Iterator

from containerhost import vendors
from containerhost.devices.findings import Finding
from containerhost.operator.doctor.seen import Seen


def check(seen: Seen) -> Iterator[Finding]:
    """Yield the findings of every vendor with a device on this host."""
    present = {device.plugin for device in seen.inventory.devices}
    for vendor in vendors.load():
        if vendor.name in present:
            yield from vendor(seen.host).check()
