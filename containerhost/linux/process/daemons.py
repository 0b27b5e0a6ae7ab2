# SPDX-License-Identifier: Apache-2.0
"""Find the engines' daemons among the processes of a host."""

from collections.abc import Iterator

from containerhost.linux.sysfs import Host

#: The name of a daemon's process, and that of its service.
DAEMONS = {"lxd": "lxd.service, or snap.lxd.daemon.service", "incusd": "incus.service", "dockerd": "docker.service"}


def running(host: Host) -> Iterator[tuple[int, str]]:
    """Yield the process id and the name of each daemon that runs; a captured tree has none."""
    for name in host.names("/proc"):
        if name.isascii() and name.isdigit():
            program = host.text(f"/proc/{name}/comm")
            if program in DAEMONS:
                yield int(name), program
