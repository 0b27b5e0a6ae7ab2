# SPDX-License-Identifier: Apache-2.0
"""Find a container's control groups, under either of Docker's cgroup drivers, and in them its first process."""

import functools

from containerhost.engines import usage
from containerhost.engines.contract import Metrics, Status
from containerhost.linux.sysfs import Host


def read(host: Host, container: str, status: Status) -> Metrics | None:
    """Read what a container uses.

    :param container: Docker's id
    :returns: None when it has ended meanwhile
    """
    return usage.read(host, functools.partial(directory, host, container=container), first_process_of(host, container),
                      status)


def directory(host: Host, controller: str, container: str) -> str | None:
    places = (f"{usage.ROOT}{controller}/docker/{container}",
              f"{usage.ROOT}{controller}/system.slice/docker-{container}.scope")
    return next((place for place in places if host.is_directory(place)), None)


def first_process_of(host: Host, container: str) -> int | None:
    """Return the container's first process; None if it does not run."""
    group = directory(host, "", container) or directory(host, "/devices", container)
    return min(usage.processes(host, group), default=None) if group else None
