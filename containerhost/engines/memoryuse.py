# SPDX-License-Identifier: Apache-2.0
"""Measure how much memory a container needs, which limits how far it can shrink while it runs.

What its control group uses (cgroup v1, Documentation/admin-guide/cgroup-v1/memory.rst; v2, cgroup-v2.rst) includes
the page cache, which the kernel drops when the limit shrinks. The rest cannot be freed, because containers are not
swapped out.
"""

from containerhost.engines.usage import ROOT, table
from containerhost.linux import controlgroups
from containerhost.linux.controlgroups import container_part
from containerhost.linux.sysfs import Host


def needed(host: Host, pid: int) -> int | None:
    """Return the bytes of memory that a container needs; None if the host does not report it.

    :param pid: the container's first process
    """
    groups = controlgroups.of(pid, host)
    if "memory" in groups:
        return _needed(host, f"{ROOT}/memory{container_part(groups['memory'])}", "memory.usage_in_bytes", "total_")
    part = container_part(groups.get("", ""))
    if "" in groups and host.number(f"{ROOT}{part}/memory.current") is not None:
        return _needed(host, f"{ROOT}{part}", "memory.current", "")
    return None


def _needed(host: Host, directory: str, file: str, prefix: str) -> int | None:
    used = host.number(f"{directory}/{file}")
    told = table(host, f"{directory}/memory.stat")
    names = [f"{prefix}{name}" for name in ("active_file", "inactive_file")]
    if used is None or not all(name in told for name in names):
        return None
    return max(0, used - sum(told[name] for name in names))
