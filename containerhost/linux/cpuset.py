# SPDX-License-Identifier: Apache-2.0
"""Bind a running container's CPUs and memory nodes in its control group of either version. For root.

In version 1 a group has at least the CPUs and nodes of each group below it, and a container's root can make groups
below its own: so the nested groups are changed first, while the container is frozen and cannot create more.

Sources: Documentation/admin-guide/cgroup-v1/cpusets.rst; cgroup-v2.rst, ``cpuset.mems``.
"""

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux import controlgroups, freezer
from containerhost.linux.files import write_attribute
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host

ROOT = "/sys/fs/cgroup"
CPUS, NODES = "cpuset.cpus", "cpuset.mems"
MIGRATE = "cpuset.memory_migrate"  # version 2 always migrates pages
WALK_TIMEOUT = 10.0  # s; a container may have made thousands of groups


def cpus_of(pid: int, host: Host) -> frozenset[int]:
    """Return the CPUs of a process's container, or of the process outside one; empty if it is gone.

    A tenant can narrow each of its processes, the first one too.
    """
    return _of(pid, host, CPUS, "Cpus_allowed_list")


def nodes_of(pid: int, host: Host) -> frozenset[int]:
    """Return the memory nodes of a process's container, likewise."""
    return _of(pid, host, NODES, "Mems_allowed_list")


def _of(pid: int, host: Host, file: str, field: str) -> frozenset[int]:
    found = (host.text(f"{group}/{name}") for group in _groups_of(pid, host) for name in (f"{file}.effective", file))
    return id_list(next(filter(None, found), None) or host.fields(f"/proc/{pid}/status").get(field))


def bind_cpus(pid: int, cpus: Collection[int]) -> None:
    """Bind the container of a process to these CPUs. Idempotent.

    :raises HostActionFailed: the process is in no container, or the kernel refuses
    """
    group = _group(pid, Host())
    if group is None:
        raise HostActionFailed(f"process {pid} is in no container that can be bound to CPUs")
    _bind(pid, group, CPUS, _text(cpus))


def bind_memory(pid: int, nodes: Collection[int], host: Host | None = None) -> None:
    """Bind the container of a process to these memory nodes, and move its memory there. Idempotent.

    :raises HostActionFailed: the process is in no container, or the kernel refuses
    """
    group = _group(pid, host or Host())
    if group is None:
        raise HostActionFailed(f"process {pid} is in no container whose memory can be bound to NUMA nodes")
    text = _text(nodes)
    if not text and os.path.exists(f"{group}/{MIGRATE}"):
        text = _read(f"{os.path.dirname(group)}/{NODES}")
    _bind(pid, group, NODES, text)


def _bind(pid: int, group: str, file: str, text: str) -> None:
    try:
        try:
            _write(group, file, text)
        except OSError as error:
            if error.errno != errno.EBUSY:  # cgroup v1: a nested group has more
                raise
            found = freezer.of_container(pid, Host())
            with freezer.frozen(found, Host()) if found else contextlib.nullcontext():
                _narrow(group, file, id_list(text))
    except OSError as error:
        raise HostActionFailed(f"control group {group} cannot have {text or 'all'} as {file}: {error.strerror}"
                               ) from error


def _narrow(group: str, file: str, wanted: frozenset[int]) -> None:
    """Set these CPUs or nodes on a group, and on nested ones their intersection with them, or else their parent's."""
    end, targets = time.monotonic() + WALK_TIMEOUT, list[frozenset[int]]()
    for each, before in controlgroups.walk(group):
        if time.monotonic() > end:  # a container may have made thousands of groups
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        found = id_list(_read(f"{each}/{file}"))
        if before:
            targets.append((found & targets[-1] or targets[-1]) if targets else wanted)
            if found and not targets[-1] <= found:  # a group cannot have more than its parent
                _write(each, file, _text(found | targets[-1]))
            continue
        target = targets.pop()
        if found:
            _write(each, file, _text(target))


def _write(group: str, file: str, text: str) -> None:
    if file == NODES and os.path.exists(f"{group}/{MIGRATE}"):
        write_attribute(f"{group}/{MIGRATE}", "1")
    write_attribute(f"{group}/{file}", text or "\n")


def _text(numbers: Collection[int]) -> str:
    return ",".join(str(int(number)) for number in sorted(numbers))


def _group(pid: int, host: Host) -> str | None:
    """Return the directory of the container's own group."""
    return next((group for group in _groups_of(pid, host) if os.path.exists(f"{group}/{NODES}")), None)


def _groups_of(pid: int, host: Host) -> Iterator[str]:
    """Yield possible paths of the container's own group: the topmost, because the tenant names nested ones."""
    own = _hierarchies(os.getpid(), host)
    for mount, path in _hierarchies(pid, host).items():
        found = controlgroups.CONTAINER.match(path)
        # This process may itself be in a container, whose group is an ancestor.
        if found and not f"{own.get(mount)}/".startswith(f"{found[0]}/"):
            yield f"{mount}{found[0]}"


def _hierarchies(pid: int, host: Host) -> dict[str, str]:
    """Return the process's group by mount point, for hierarchies that may have memory nodes."""
    groups = controlgroups.of(pid, host)
    return {mount: groups[controller] for controller, mount in (("cpuset", f"{ROOT}/cpuset"), ("", ROOT))
            if controller in groups}


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
