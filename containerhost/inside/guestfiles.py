# SPDX-License-Identifier: Apache-2.0
"""Share files with running containers of any engine. LXD's files API is not used: its helper opens whatever the tenant
put there, waits at a FIFO without end, and keeps the container from being deleted."""

from collections.abc import Callable

from containerhost.errors import EngineConflict
from containerhost.privileged import Privileged


class GuestFiles:
    """:param pid: tells a container's first process on this host; None while it does not run
    """

    def __init__(self, pid: Callable[[str], int | None], privileged: Privileged) -> None:
        self._pid = pid
        self._privileged = privileged

    def write(self, name: str, file: str, content: bytes) -> None:
        self._privileged.write_guest_file(self._running(name), file, content)

    def read(self, name: str, file: str) -> bytes | None:
        return self._privileged.read_guest_file(self._running(name), file)

    def _running(self, name: str) -> int:
        pid = self._pid(name)
        if pid is None:
            raise EngineConflict(f"container {name} does not run, so it has no files to share")
        return pid
