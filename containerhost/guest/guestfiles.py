# SPDX-License-Identifier: Apache-2.0
"""Share files with running containers of any engine, within a time limit for each container.

LXD's files API is not used: its helper opens anything that the tenant put there, waits forever at a FIFO, and
prevents the container's deletion.

A container can block the host at its files, for up to ten seconds each time. So each container has a leaky bucket
that limits access, also across restarts: blocked time fills it, and access is refused while it overflows.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from containerhost.errors import EngineConflict, HostActionFailed
from containerhost.linux.process.leakybucket import LeakyBuckets
from containerhost.privileged import Privileged

Result = TypeVar("Result")

USUAL = 0.5  # s; on an idle host, milliseconds
BURST = 5.0  # s of waiting; above it access is refused
LEAK_RATE = 1 / 60  # s of waiting forgotten per second


class GuestFiles:
    """Read and write small files in /run/containerhost of running containers.

    :param pid: returns a container's first process on this host; None if it is not running
    :raises EngineError, HostActionFailed: from both methods, because of what the tenant put there
    """

    def __init__(self, pid: Callable[[str], int | None], privileged: Privileged,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._privileged = privileged
        self._clock = clock
        self._buckets = LeakyBuckets(BURST, LEAK_RATE, clock)

    def write(self, name: str, file: str, content: bytes) -> None:
        """Create or replace a file, world-readable in the container, and the directory if it is missing."""
        self._rate_limited(name, lambda: self._privileged.write_guest_file(self._running(name), file, content))

    def read(self, name: str, file: str) -> bytes | None:
        """Read a file of the container; None if there is no such file."""
        return self._rate_limited(name, lambda: self._privileged.read_guest_file(self._running(name), file))

    def _rate_limited(self, name: str, act: Callable[[], Result]) -> Result:
        if overflow := self._buckets.overflow(name):
            raise HostActionFailed(f"container {name} blocked the host at its files, so it is not accessed for "
                                   f"{overflow:.0f} s")
        start = self._clock()
        try:
            return act()
        finally:
            if (waited := self._clock() - start) > USUAL:
                self._buckets.add(name, waited - USUAL)

    def _running(self, name: str) -> int:
        pid = self._pid(name)
        if pid is None:
            raise EngineConflict(f"container {name} does not run, so it has no files to share")
        return pid
