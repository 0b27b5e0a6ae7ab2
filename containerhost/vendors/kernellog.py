# SPDX-License-Identifier: Apache-2.0
"""Read the kernel's log, interpreting it by every vendor's plug-in."""

from containerhost import vendors
from containerhost.devices.health import kernellog
from containerhost.devices.health.kernellog import DriverLog, Follower, Log
from containerhost.linux.sysfs import Host


def drivers() -> list[DriverLog]:
    """Return a new reader of each driver's messages."""
    return [vendor.driver_log() for vendor in vendors.load() if vendor.driver_log]


_FOLLOWER = Follower(Host(), drivers)


def read(host: Host) -> Log:
    """Return the log of this host, or of a captured tree; an empty one if there is none."""
    return _FOLLOWER.look() if host.live else kernellog.captured(host, drivers)
