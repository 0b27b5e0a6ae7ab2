# SPDX-License-Identifier: Apache-2.0
"""Find a container's control groups, under either of Docker's cgroup drivers, and in them its first process."""

import functools

from containerhost.engines import usage
from containerhost.engines.contract import Metrics, Status
from containerhost.linux.sysfs import Host


def read(host: Host, container: str, status: Status) -> Metrics | None:
    """Read the resource usage of a container.

    :param container: Docker's id
    :returns: None if it has ended meanwhile
    """
    return usage.read(host, functools.partial(directory, host, container=container), first_process_of(host, container),
                      status)


def directory(host: Host, controller: str, container: str) -> str | None:
    places = (f"{usage.ROOT}{controller}/docker/{container}",
              f"{usage.ROOT}{controller}/system.slice/docker-{container}.scope")
    return next((place for place in places if host.is_directory(place)), None)


def first_process_of(host: Host, container: str) -> int | None:
    """Return the container's first process; None if it does not run.

    It is pid 1 in the container. On the host another process may have a lower pid, because pids wrap around."""
    group = directory(host, "", container) or directory(host, "/devices", container)
    found = sorted(usage.processes(host, group)) if group else []
    return next((pid for pid in found if host.fields(f"/proc/{pid}/status").get("NSpid", "").split()[1:] == ["1"]),
                found[0] if found else None)
