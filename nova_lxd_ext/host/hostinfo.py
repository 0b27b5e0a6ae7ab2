# SPDX-License-Identifier: Apache-2.0
"""Read nova's data about the host itself: uptime, CPU times, version numbers, names of architectures."""

import datetime
import re
from collections.abc import Sequence

from nova.objects.fields import Architecture, HVType, VMMode

from containerhost.inventory import topology
from containerhost.linux.sysfs import Host
from nova_lxd_ext.host.architectures import canonical


def uptime(host: Host, now: datetime.datetime | None = None) -> str:
    """Return a line in the format of uptime(1), which ``openstack hypervisor show`` parses."""
    now = now or datetime.datetime.now()
    minutes = int(topology.uptime(host)) // 60
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    since = f"{days} day{'s' if days != 1 else ''}, " if days else ""
    load = ", ".join(f"{value:.2f}" for value in topology.loadavg(host))
    return f" {now:%H:%M:%S} up {since}{hours:2}:{minutes:02},  0 users,  load average: {load}"


def cpu_stats(host: Host) -> dict[str, int]:
    """Return the nanoseconds since boot, and the clock of the first CPU in MHz (0 if unknown)."""
    times = topology.cpu_times(host)
    return {"kernel": times.kernel, "user": times.user, "idle": times.idle, "iowait": times.iowait,
            "frequency": _frequency(host)}


def _frequency(host: Host) -> int:
    kilohertz = host.number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if kilohertz:
        return kilohertz // 1000
    told = re.match(r"\d+", host.fields("/proc/cpuinfo").get("cpu MHz", ""))
    return int(told[0]) if told else 0


def version_number(version: str) -> int:
    """Convert ``5.21.1 LTS`` to 5021001: nova needs an increasing integer."""
    major, minor, patch = [*map(int, re.findall(r"\d+", version)), 0, 0, 0][:3]
    return major * 1_000_000 + minor * 1_000 + patch


def supported_instances(architectures: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the supported instance types for ImagePropertiesFilter. Incus counts as LXD."""
    names = [canonical(name) for name in architectures]
    return [(name, HVType.LXD, VMMode.EXE) for name in names if Architecture.is_valid(name)]
