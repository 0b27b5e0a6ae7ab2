# SPDX-License-Identifier: Apache-2.0
"""Find the engines' daemons among the processes of a host."""

from collections.abc import Iterator

from containerhost.linux.sysfs import Host

#: The name of a daemon's process, and that of its service.
DAEMONS = {"lxd": "lxd.service, or snap.lxd.daemon.service", "incusd": "incus.service", "dockerd": "docker.service"}
HELPED = frozenset({"lxd", "incusd"})  # their helpers have the same name


def running(host: Host) -> Iterator[tuple[int, str]]:
    """Yield the pid and the name of each running daemon, without its helpers."""
    for name in host.names("/proc"):
        if name.isascii() and name.isdigit():
            program = host.text(f"/proc/{name}/comm")
            if program in DAEMONS and not (program in HELPED and _is_helper(host.text(f"/proc/{name}/cmdline") or "")):
                yield int(name), program


def _is_helper(command: str) -> bool:
    """Return whether a command line is that of a container's monitor, or has a subcommand (``forkproxy``)."""
    program, _, arguments = command.partition("\0")
    return program.startswith("[") or (bool(arguments) and not arguments.startswith("-"))
