# SPDX-License-Identifier: Apache-2.0
"""Check the control groups that limit containers (Documentation/admin-guide/cgroup-v{1,2}).

In version 2 devices are controlled by programs (BPF) and freezing is part of every group; in version 1 both are
controllers."""

from collections.abc import Iterator

from containerhost.devices.findings import Finding, note, wrong
from containerhost.linux.sysfs import Host
from containerhost.operator.doctor.hostdata import HostData

NAME = "cgroups"
_ROOT = "/sys/fs/cgroup"
_CONTROLLERS = (f"{_ROOT}/cgroup.controllers", f"{_ROOT}/unified/cgroup.controllers")
_NEEDED = {"cpu": "CONFIG_CGROUP_SCHED", "cpuset": "CONFIG_CPUSETS", "memory": "CONFIG_MEMCG",
           "pids": "CONFIG_CGROUP_PIDS"}
_LIMITS = {"cpu": "how much processor time a container takes", "cpuset": "which cores a container runs on",
           "memory": "how much memory a container takes", "pids": "how many processes a container has"}


def check(data: HostData) -> Iterator[Finding]:
    """Yield findings; none for a captured tree without control groups."""
    if not data.host.live and not data.host.is_directory(_ROOT):
        return
    there = controllers(data.host)
    for name, option in _NEEDED.items():
        if name not in there:
            yield wrong(NAME, name, f"nothing limits {_LIMITS[name]}, because the kernel has no control group "
                        f"controller {name}", f"use one with {option}, booted without cgroup_disable={name}")
    if not data.host.exists(_CONTROLLERS[0]):
        yield note(NAME, "version", "the host has control groups of version 1, which LXD and Docker are about to drop",
                   "boot with systemd.unified_cgroup_hierarchy=1")


def controllers(host: Host) -> frozenset[str]:
    """Return the controllers of both versions."""
    second = {name for file in _CONTROLLERS for name in (host.text(file) or "").split()}
    first = {name for name in _NEEDED if host.is_directory(f"{_ROOT}/{name}")}
    return frozenset(second | first)
