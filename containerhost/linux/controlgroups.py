# SPDX-License-Identifier: Apache-2.0
"""Read the control groups of a process.

A tenant chooses the names of nested groups, in which the kernel allows every byte except ``/`` and a line feed: so
only a line feed ends a line.
"""

import contextlib
import os
import re
from collections.abc import Iterator

from containerhost.linux.sysfs import TABLE_LIMIT, Host

# Group of a container by its engine's naming: LXC's, and Docker's with either cgroup driver. The tenant names nested
# groups, so the topmost match counts.
CONTAINER = re.compile(r"/(?:[^/]+/)*?(?:lxc\.payload\.[^/]+|(?:docker-)?[0-9a-f]{64}(?:\.scope)?)(?=/|$)")


def of(pid: int, host: Host) -> dict[str, str]:
    """Return the process's groups by controller, with an empty name for version 2; none if the process is gone."""
    return parse(host.data(f"/proc/{pid}/cgroup", TABLE_LIMIT) or b"")


def parse(table: bytes) -> dict[str, str]:
    """Parse /proc/<pid>/cgroup (cgroups(7)): ``6:freezer,devices:/lxc.payload.c1`` and ``0::/lxc.payload.c1``.

    Of two lines of one controller, which the kernel does not write, the first counts."""
    found: dict[str, str] = {}
    for line in table.decode("utf-8", "surrogateescape").split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        for controller in controllers.split(",") if colon else ():
            found.setdefault(controller, path)
    return found


def container_part(path: str) -> str:
    """Return the group that has the container's limits, above nested groups. Other paths are returned unchanged."""
    found = CONTAINER.match(path)
    return found[0] if found else path


DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(top: str) -> Iterator[tuple[str, bool]]:
    """Yield a group and its nested groups, each before and again after its nested ones; none if it is gone.

    A tenant can nest groups deeper than a path or a table of open files reaches, so one descriptor goes from group to
    group.

    :returns: a path that is valid until the next step; whether its nested groups follow
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(top, DIRECTORY)
        except FileNotFoundError:
            return
        stack.callback(lambda: os.close(fd))
        left = [_below(fd)]
        yield f"/proc/self/fd/{fd}", True
        while left:
            if left[-1]:
                try:
                    there = os.open(left[-1].pop(), DIRECTORY, dir_fd=fd)
                except FileNotFoundError:
                    continue
                os.close(fd)
                fd = there
                left.append(_below(fd))
                yield f"/proc/self/fd/{fd}", True
            else:
                yield f"/proc/self/fd/{fd}", False
                left.pop()
                there = os.open("..", DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = there


def _below(fd: int) -> list[str]:
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
