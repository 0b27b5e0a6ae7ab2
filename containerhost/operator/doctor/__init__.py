# SPDX-License-Identifier: Apache-2.0
"""Check a host: one module for each group of checks, each a function from the data read to findings."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from containerhost.devices.findings import Finding
from containerhost.inventory import topology
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.operator.doctor import (
    cgroups,
    daemons,
    devices,
    drivers,
    gpudirect,
    idmaps,
    iommu,
    kernel,
    limits,
    memlock,
    numa,
    vfs,
)
from containerhost.operator.doctor.hostdata import HostData

Check = Callable[[HostData], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "kernel": kernel.check, "cgroups": cgroups.check, "devices": devices.check, "drivers": drivers.check,
    "vfs": vfs.check, "numa": numa.check, "iommu": iommu.check, "gpudirect": gpudirect.check,
    "daemons": daemons.check, "limits": limits.check,
    "memlock": memlock.check, "idmaps": idmaps.check}


def collect(host: Host, owners: Path, untainted: Collection[str] = ()) -> HostData:
    """Read a host once for all checks.

    :param untainted: devices whose own taint is ignored
    """
    return HostData(host, HostView(host, untainted=untainted).inventory, topology.read(host), owners)


def findings(data: HostData) -> tuple[Finding, ...]:
    """Return the findings of all checks, in order."""
    return tuple(finding for check in CHECKS.values() for finding in check(data))
