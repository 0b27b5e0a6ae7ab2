# SPDX-License-Identifier: Apache-2.0
"""Share files with running containers of any engine. LXD's files API is not used: its helper opens whatever the tenant
put there, waits at a FIFO without end, and keeps the container from being deleted.

A container can make the host wait at its files, for up to ten seconds each time. So access is rate-limited by a leaky
bucket for each container, which stays over restarts: time beyond the usual fills it, and what overflows is refused.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from containerhost.errors import EngineConflict, HostActionFailed
from containerhost.privileged import Privileged

Result = TypeVar("Result")

USUAL = 0.5  # s; some milliseconds where the host is not busy
BURST = 5.0  # s of waiting, above which access is refused
LEAK_RATE = 1 / 60  # s of waiting in a second


class GuestFiles:
    """:param pid: tells a container's first process on this host; None while it does not run
    """

    def __init__(self, pid: Callable[[str], int | None], privileged: Privileged,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._privileged = privileged
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # s of waiting, and when that was; only those not empty

    def write(self, name: str, file: str, content: bytes) -> None:
        self._rate_limited(name, lambda: self._privileged.write_guest_file(self._running(name), file, content))

    def read(self, name: str, file: str) -> bytes | None:
        return self._rate_limited(name, lambda: self._privileged.read_guest_file(self._running(name), file))

    def _rate_limited(self, name: str, act: Callable[[], Result]) -> Result:
        start = self._clock()
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if level(bucket, start) > 0}
        waited = level(self._buckets.get(name, (0.0, start)), start)
        if waited > BURST:
            raise HostActionFailed(f"container {name} made the host wait at its files, so it is left alone for "
                                   f"{(waited - BURST) / LEAK_RATE:.0f} s")
        try:
            return act()
        finally:
            end = self._clock()
            if end - start > USUAL:
                self._buckets[name] = waited + end - start - USUAL, end

    def _running(self, name: str) -> int:
        pid = self._pid(name)
        if pid is None:
            raise EngineConflict(f"container {name} does not run, so it has no files to share")
        return pid


def level(bucket: tuple[float, float], now: float) -> float:
    """Return the seconds of waiting that a bucket holds."""
    waited, when = bucket
    return max(0.0, waited - (now - when) * LEAK_RATE)
