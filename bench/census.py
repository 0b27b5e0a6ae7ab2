# SPDX-License-Identifier: Apache-2.0
"""List all that attaching and detaching a device must not leak: on the host, in one container, and in this process."""

import os
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from containerhost.privileged import Privileged

Census = dict[str, list[str]]


class Registrar:
    """:param directories: of state, in which files may be left
    :param engine: of LXD
    """

    def __init__(self, engine: Any, owners: Path, directories: tuple[Path, ...]) -> None:
        self._engine = engine
        self._store = AllocationStore(owners)
        self._directories = directories

    def take(self, container: str) -> Census:
        """By kind: what there is, in words that stay the same for the same thing."""
        pid = self._engine.metrics(container).pid
        inside = Privileged().inside(pid)
        instance, _ = self._engine.client.instance(container)
        return {
            "allocation records": sorted(self._store.records()),
            "devices of the host": [repr(device) for device in scan().devices],
            "interfaces of the host": sorted(name for _, name in socket.if_nameindex()),
            "LXD's devices": sorted(instance["devices"]),
            "LXD's keys of devices": sorted(key for key in instance["config"] if key.startswith("volatile.")),
            "nodes in the container": sorted(inside.nodes),
            "interfaces in the container": sorted(inside.netdevs),
            "mounts of the host": mounts("self"),
            "mounts in the container": mounts(str(pid)),
            "files of state": sorted(str(path) for directory in self._directories for path in directory.rglob("*")),
            "open files": open_files(),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "child processes": children(),
        }


def changes(before: Census, after: Census) -> dict[str, dict[str, list[str]]]:
    """Return, by kind, what was added and what was removed; unchanged kinds are left out."""
    found = {}
    for kind, there in before.items():
        more, less = Counter(after[kind]) - Counter(there), Counter(there) - Counter(after[kind])
        if more or less:
            found[kind] = {"more": sorted(more.elements()), "less": sorted(less.elements())}
    return found


def mounts(process: str) -> list[str]:
    """Where, and what. Without the numbers of /proc/<pid>/mountinfo, which are handed out anew."""
    lines = Path(f"/proc/{process}/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    return sorted(" ".join(line.split()[:3]) for line in lines)


def open_files() -> list[str]:
    """Describe each open file; sockets and pipes without their numbers."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{handle}").partition("[")[0])
        except FileNotFoundError:  # that of the listing itself
            continue
    return sorted(found)


def children() -> list[str]:
    """Commands of this process's children, those that have ended and were not waited for too."""
    own = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            except OSError:
                continue  # it ended
            if int(rest.split()[1]) == own:
                found.append(name.partition("(")[2])
    return sorted(found)


def resident(process: int | str = "self") -> int:
    """KiB of memory that the process has in RAM (VmRSS, proc(5))."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))
