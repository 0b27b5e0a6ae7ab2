# SPDX-License-Identifier: Apache-2.0
"""Run LXCFS, which makes a container's /proc report its own processors, memory and uptime.

The container daemon mounts what it shows into every container, if it runs before the container starts; packages of LXD
and Incus recommend it."""

import signal
from pathlib import Path

from tools.cloud.daemons import Daemon

DIRECTORY = Path("/var/lib/lxcfs")


def needed(run: Path) -> list[Daemon]:
    """None where the machine, or an earlier cloud in the same namespace, runs it already.

    :param run: directory for its note of its process
    """
    if _shows():
        return []
    DIRECTORY.mkdir(exist_ok=True)
    # Ended by force it would leave a mount that answers to nobody.
    return [Daemon("lxcfs", ("lxcfs", "--foreground", f"--pidfile={run}/lxcfs.pid", str(DIRECTORY)), ready=_shows,
                   end=signal.SIGTERM)]


def _shows() -> bool:
    return (DIRECTORY / "proc" / "uptime").exists()
