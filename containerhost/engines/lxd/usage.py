# SPDX-License-Identifier: Apache-2.0
"""Find the control groups of a container of LXD or Incus, and its first process.

LXC names them ``lxc.payload.NAME`` and, of the process that watches over it, ``lxc.monitor.NAME``
(lxc.container.conf(5), ``lxc.cgroup.dir``). An init may leave the former for a group of its own, so the latter tells
which is the first process."""

import functools

from containerhost.engines import usage
from containerhost.engines.contract import Metrics, Status
from containerhost.linux.sysfs import Host


def read(host: Host, name: str, status: Status) -> Metrics | None:
    """Read what a container uses; its disks are not told.

    :param name: LXC's, which has the project before it unless that is the default one
    :returns: None where its groups are not found: it has ended, or its engine has to be asked
    """
    return usage.read(host, functools.partial(directory, host, name=f"lxc.payload.{name}"), first_process(host, name),
                      status)


def directory(host: Host, controller: str, name: str) -> str | None:
    place = f"{usage.ROOT}{controller}/{name}"
    return place if host.is_directory(place) else None


def first_process(host: Host, name: str) -> int | None:
    """Return the child of the container's monitor; None if it does not run, or has not the usual groups."""
    monitor = f"lxc.monitor.{name}"
    group = directory(host, "", monitor) or directory(host, "/memory", monitor)
    children = [int(word) for process in (usage.processes(host, group) if group else ())
                for word in (host.text(f"/proc/{process}/task/{process}/children") or "").split()]
    return children[0] if len(children) == 1 else None
