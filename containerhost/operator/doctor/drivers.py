# SPDX-License-Identifier: Apache-2.0
"""Query the vendors' plug-ins for problems of drivers, their libraries and tools."""

from collections.abc import Iterator

from containerhost import vendors
from containerhost.devices.findings import Finding
from containerhost.operator.doctor.hostdata import HostData


def check(data: HostData) -> Iterator[Finding]:
    """Yield the findings of every vendor with a device on this host."""
    present = {device.plugin for device in data.inventory.devices}
    for vendor in vendors.load():
        if vendor.name in present:
            yield from vendor(data.host).check()
