# SPDX-License-Identifier: Apache-2.0
"""Share files with running containers of any engine. LXD's files API is not used: its helper opens whatever the tenant
put there, waits at a FIFO without end, and keeps the container from being deleted.

A container can make the host wait at its files, for up to ten seconds each time. What takes longer than usual is put to
its account, whether it restarts or not, and it is left alone until its share of the host's time has settled that.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from containerhost.errors import EngineConflict, HostActionFailed
from containerhost.privileged import Privileged

Result = TypeVar("Result")

USUAL = 0.5  # s; some milliseconds where the host is not busy
CREDIT = 5.0  # s of waiting that every container has at first, and that an account is settled to
SHARE = 1 / 60  # of the host's time


class GuestFiles:
    """:param pid: tells a container's first process on this host; None while it does not run
    """

    def __init__(self, pid: Callable[[str], int | None], privileged: Privileged,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._privileged = privileged
        self._clock = clock
        self._accounts: dict[str, tuple[float, float]] = {}  # seconds, and when that was; nothing of most containers

    def write(self, name: str, file: str, content: bytes) -> None:
        self._charged(name, lambda: self._privileged.write_guest_file(self._running(name), file, content))

    def read(self, name: str, file: str) -> bytes | None:
        return self._charged(name, lambda: self._privileged.read_guest_file(self._running(name), file))

    def _charged(self, name: str, act: Callable[[], Result]) -> Result:
        start = self._clock()
        self._accounts = {key: each for key, each in self._accounts.items() if settled(each, start) > 0}
        owed = settled(self._accounts.get(name, (0.0, start)), start)
        if owed > CREDIT:
            raise HostActionFailed(f"container {name} made the host wait at its files, so it is left alone for "
                                   f"{(owed - CREDIT) / SHARE:.0f} s")
        try:
            return act()
        finally:
            end = self._clock()
            if end - start > USUAL:
                self._accounts[name] = owed + end - start - USUAL, end

    def _running(self, name: str) -> int:
        pid = self._pid(name)
        if pid is None:
            raise EngineConflict(f"container {name} does not run, so it has no files to share")
        return pid


def settled(account: tuple[float, float], now: float) -> float:
    """Return what is left of an account, in seconds."""
    owed, when = account
    return max(0.0, owed - (now - when) * SHARE)
