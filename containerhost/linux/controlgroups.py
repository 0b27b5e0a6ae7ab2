# SPDX-License-Identifier: Apache-2.0
"""Read the control groups of a process.

Whoever may make groups below a container's own chooses their names, in which the kernel allows every byte but ``/`` and
a line feed: nothing else ends a line.
"""

import re

from containerhost.linux.sysfs import TABLE_LIMIT, Host

# Group of a container as its engine names it: LXC's, and Docker's under both cgroup drivers. The tenant names those
# below it, so the topmost one counts.
CONTAINER = re.compile(r"/(?:[^/]+/)*?(?:lxc\.payload\.[^/]+|(?:docker-)?[0-9a-f]{64}(?:\.scope)?)(?=/|$)")


def of(pid: int, host: Host) -> dict[str, str]:
    """Return the process's groups by controller, that of version 2 by an empty name; none when there is no process."""
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
    """Return the group that has the container's limits: its processes may be in one below. Another path as it is."""
    found = CONTAINER.match(path)
    return found[0] if found else path
