# SPDX-License-Identifier: Apache-2.0
"""Find the control groups and the first process of a container of LXD or Incus.

LXC names them ``lxc.payload.NAME`` and, for its monitor process, ``lxc.monitor.NAME`` (lxc.container.conf(5),
``lxc.cgroup.dir``). An init may move from the former to its own group, so the latter identifies the first process."""

import functools

from containerhost.engines import usage
from containerhost.engines.contract import Metrics, Status
from containerhost.linux.sysfs import Host


def read(host: Host, name: str, status: Status) -> Metrics | None:
    """Read the resource usage of a container, except its disks.

    :param name: LXC's name, prefixed with the project unless that is the default one
    :returns: None if its groups are not found: it has ended, or its engine must be queried
    """
    return usage.read(host, functools.partial(directory, host, name=f"lxc.payload.{name}"), first_process(host, name),
                      status)


def directory(host: Host, controller: str, name: str) -> str | None:
    place = f"{usage.ROOT}{controller}/{name}"
    return place if host.is_directory(place) else None


def first_process(host: Host, name: str, home: str | None = None) -> int | None:
    """Return the child of the container's monitor; None if it is not running, or its groups are unusual.

    :param home: the directory of its daemon: another one may have a container of that name, and these groups
    """
    monitor = f"lxc.monitor.{name}"
    group = directory(host, "", monitor) or directory(host, "/memory", monitor)
    children = [int(word) for process in (usage.processes(host, group) if group else ())
                if home is None or host.text(f"/proc/{process}/cmdline") == f"[lxc monitor] {home}/containers {name}"
                for word in (host.text(f"/proc/{process}/task/{process}/children") or "").split()]
    return children[0] if len(children) == 1 else None
