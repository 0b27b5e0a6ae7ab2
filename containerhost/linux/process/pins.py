# SPDX-License-Identifier: Apache-2.0
"""Find the cores that containers are pinned to from their control groups, without any daemon.

LXD and Incus name a group ``lxc.payload.NAME`` at the top; Docker names it by the container's id, below ``docker`` or
``system.slice``.
"""

import re
from collections.abc import Iterator

from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpuset")  # version 2, version 1
_LXC = re.compile(r"lxc\.payload\.(.+)")
_DOCKER = re.compile(r"(?:docker-)?([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?")
_PLACES = (("", _LXC), ("/lxc", re.compile(r"(.+)")), ("/docker", _DOCKER), ("/system.slice", _DOCKER))


def pins(host: Host) -> dict[str, frozenset[int]]:
    """Return the CPUs of each pinned container; Docker's by twelve digits of their ids."""
    online = id_list(host.text("/sys/devices/system/cpu/online"))
    return {name: cpus for name, cpus in _groups(host) if cpus and (not online or cpus < online)}


def _groups(host: Host) -> Iterator[tuple[str, frozenset[int]]]:
    for root in _ROOTS:
        for place, pattern in _PLACES:
            for entry in host.names(f"{root}{place}"):
                match = pattern.fullmatch(entry)
                if match and host.is_directory(f"{root}{place}/{entry}"):
                    yield match[1], id_list(host.text(f"{root}{place}/{entry}/cpuset.cpus"))
