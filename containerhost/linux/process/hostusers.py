# SPDX-License-Identifier: Apache-2.0
"""Find programs of the host that have device nodes open, for messages: a monitoring daemon may keep a GPU open."""

import os
from collections.abc import Collection

from containerhost.linux.process.processes import is_hosts, name, pids


def of_nodes(paths: Collection[str]) -> tuple[str, ...]:
    """Describe the processes, ``nv-hostengine (812)``; one that ends or is not visible is left out."""
    wanted = set(paths)
    return tuple(f"{name(pid)} ({pid})" for pid in sorted(pids()) if wanted and is_hosts(pid) and _has(pid, wanted))


def _has(pid: int, paths: Collection[str]) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        for fd in os.listdir(directory):
            if os.readlink(f"{directory}/{fd}") in paths:
                return True
    except OSError:
        return False
    return False
