# SPDX-License-Identifier: Apache-2.0
"""Ensure that a running container's processes use the CPUs of its limit, and its memory the right nodes.

LXD moves processes concurrently to the request that changes the limit, and sometimes reads the previous limit
(lxc/incus#1936). Then they stay where they were until a limit is written again. With control groups of version 1,
the kernel lets it take no CPU from a group that the container created, as for nested containers. It sets memory
nodes only at a start.
"""

import logging
import os
import re
from collections.abc import Callable
from typing import Any

from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.config import core_list
from containerhost.engines.spec import ContainerSpec, Cpu
from containerhost.errors import UnsupportedOnHost
from containerhost.linux import cpuset
from containerhost.linux.idlist import id_list
from containerhost.linux.poll import wait_until
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

LOG = logging.getLogger(__name__)
LIMIT = "limits.cpu"
TIMEOUT = 1.0  # s that LXD has to move them
TRIES = 3

Change = Callable[[str, Callable[[dict[str, Any], str], None]], None]


def require_usable(host: Host, spec: ContainerSpec) -> None:
    """Refuse cores that LXD would ignore, running the container on all of them.

    It never uses cores that the kernel isolates (boot parameter isolcpus)."""
    online, isolated = (id_list(host.text(f"/sys/devices/system/cpu/{name}")) for name in ("online", "isolated"))
    missing = spec.cpu.cores - (online - isolated)
    if missing:
        raise UnsupportedOnHost(
            f"container {spec.name} must run on cores {core_list(spec.cpu.cores)}, but of these LXD cannot use "
            f"{core_list(missing)}: online are {core_list(online)}, isolated by the kernel "
            f"{core_list(isolated) or 'none'}")


def wait_applied(client: LxdClient, privileged: Privileged, change: Change, host: Host, name: str, pid: int | None,
                 limit: str | None) -> None:
    """Wait until the container runs on the CPUs of its limit; bind it if LXD does not.

    A mere number selects some of its present ones.

    :param change: reads, changes and writes back a container: :meth:`LxdEngine.change`
    :param limit: the target limit; None is no limit
    """
    if not limit or pid is None:
        return
    for _ in range(TRIES):
        if wait_until(lambda: not to_bind(host, pid, limit), TIMEOUT):
            return
        for words in (in_other_words(limit), limit):
            change(name, lambda instance, etag, words=words: client.replace_instance(  # type: ignore[misc]
                name, instance | {"config": instance["config"] | {LIMIT: words}}, etag))
    if cpus := to_bind(host, pid, limit):
        LOG.warning("LXD has not bound container %s according to %s=%s: it is bound here", name, LIMIT, limit)
        privileged.bind_cpus(pid, cpus)


def to_bind(host: Host, pid: int, limit: str) -> list[int]:
    """Return the CPUs to bind the container to; none if its limit is in force, or it no longer exists."""
    found = sorted(cpuset.cpus_of(pid, host))
    if limit.isdigit():
        count = min(int(limit), len(id_list(host.text("/sys/devices/system/cpu/online"))))
        return [] if len(found) == count else found[:count]
    wanted = sorted(id_list(limit))
    return [] if found in ([], wanted) else wanted


def bind_memory(privileged: Privileged, host: Host, pid: int | None, cpu: Cpu) -> None:
    """Bind a running container's memory to its nodes, or to all. Idempotent.

    LXD reads ``raw.lxc`` only when it starts one.

    :raises HostActionFailed: the kernel refuses
    """
    wanted = cpu.bound_memory
    everything = cpuset.nodes_of(os.getpid(), host)
    present = everything if pid is None else cpuset.nodes_of(pid, host)
    if pid is not None and present and present != (wanted or everything):
        privileged.bind_memory(pid, sorted(wanted))


def in_other_words(limit: str) -> str:
    """Return the same limit with another text, because LXD ignores an unchanged text."""
    return re.sub(r"[0-9]+", r"0\g<0>", limit)
