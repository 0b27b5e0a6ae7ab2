# SPDX-License-Identifier: Apache-2.0
"""Read the kernel's log with what every vendor's plug-in knows of its driver's messages."""

from containerhost import vendors
from containerhost.devices.health import kernellog
from containerhost.devices.health.kernellog import DriverLog, Follower, Log
from containerhost.linux.sysfs import Host


def drivers() -> list[DriverLog]:
    """Return a reader of each driver's messages, with nothing read so far."""
    return [vendor.driver_log() for vendor in vendors.load() if vendor.driver_log]


_FOLLOWER = Follower(Host(), drivers)


def read(host: Host) -> Log:
    """Return the log of this host, or of a captured tree; an empty one where there is none."""
    return _FOLLOWER.look() if host.live else kernellog.captured(host, drivers)
