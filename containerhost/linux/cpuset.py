# SPDX-License-Identifier: Apache-2.0
"""Bind the memory of a running container to nodes, in its control group of either version. For root.

Sources: Documentation/admin-guide/cgroup-v1/cpusets.rst; cgroup-v2.rst, ``cpuset.mems``.
"""

import os
from collections.abc import Collection

from containerhost.errors import HostActionFailed
from containerhost.linux import controlgroups
from containerhost.linux.files import write_attribute
from containerhost.linux.sysfs import Host

ROOT = "/sys/fs/cgroup"
NODES = "cpuset.mems"
MIGRATE = "cpuset.memory_migrate"  # version 2 always migrates pages


def bind_memory(pid: int, nodes: Collection[int], host: Host | None = None) -> None:
    """Let the container of a process have memory of these nodes only, and move what it has elsewhere. Idempotent.

    :param nodes: empty for every node
    :raises HostActionFailed: the process is in no container, or the kernel refuses
    """
    group = _group(pid, host or Host())
    if group is None:
        raise HostActionFailed(f"process {pid} is in no container whose memory can be bound to nodes")
    text = ",".join(str(int(node)) for node in sorted(nodes))
    try:
        if os.path.exists(f"{group}/{MIGRATE}"):
            write_attribute(f"{group}/{MIGRATE}", "1")
            text = text or _read(f"{os.path.dirname(group)}/{NODES}")
        write_attribute(f"{group}/{NODES}", text or "\n")
    except OSError as error:
        raise HostActionFailed(f"memory of control group {group} cannot be bound to nodes {text or 'of the host'}: "
                               f"{error.strerror}") from error


def _group(pid: int, host: Host) -> str | None:
    """Return the directory of the container's own group: the topmost, because the tenant names those below it."""
    own = _hierarchies(os.getpid(), host)
    for mount, path in _hierarchies(pid, host).items():
        found = controlgroups.CONTAINER.match(path)
        # This process may be in a container itself, whose group is above.
        if found and not f"{own.get(mount)}/".startswith(f"{found[0]}/") and os.path.exists(
                f"{mount}{found[0]}/{NODES}"):
            return f"{mount}{found[0]}"
    return None


def _hierarchies(pid: int, host: Host) -> dict[str, str]:
    """Return the process's group by mount point, of those hierarchies that may have memory nodes."""
    groups = controlgroups.of(pid, host)
    return {mount: groups[controller] for controller, mount in (("cpuset", f"{ROOT}/cpuset"), ("", ROOT))
            if controller in groups}


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
