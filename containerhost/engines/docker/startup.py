# SPDX-License-Identifier: Apache-2.0
"""Wait until a newly started program is up: for the kernel it waits for an event.

A program that cannot work mostly ends before that, so detecting its failure needs no fixed delay.
"""

import os
import select
import time

from containerhost.engines.docker import usage
from containerhost.engines.usage import cpu_time, processes
from containerhost.linux.files import closing
from containerhost.linux.sysfs import Host

POLL_INTERVAL = 0.005  # s between two polls
RUNTIMES = "runc:["  # prefix of the name of a container's first process until it executes the program
BUSY = frozenset("RD")  # states of proc(5): running, or waiting for a disk


def wait_started(host: Host, container: str, pid: int, timeout: float) -> bool:
    """Wait until the program has ended, or its container's processes all wait, idle between two checks.

    :param container: Docker's id
    :param pid: of its first process
    :param timeout: seconds after which it counts as started
    :returns: whether it has ended
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with closing(process):
        return _wait_started(host, container, pid, process, time.monotonic() + timeout)


def _wait_started(host: Host, container: str, pid: int, process: int, until: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    before = None
    while True:
        now = worked(host, container, pid)
        if now is not None and now == before:
            return bool(poll.poll(0))
        before = now
        left = until - time.monotonic()
        if poll.poll(max(0, min(POLL_INTERVAL, left)) * 1000):
            return True
        if left <= 0:
            return False


def worked(host: Host, container: str, pid: int) -> int | None:
    """Return the CPU time of the processes in ns; None if one is running, or if unknown."""
    name = host.text(f"/proc/{pid}/comm") or RUNTIMES
    group = usage.directory(host, "", container) or usage.directory(host, "/cpuacct", container)
    if name.startswith(RUNTIMES) or group is None:
        return None
    found = processes(host, group)
    states = {state(host, process) for process in found}
    return cpu_time(host, group) if found and not states & BUSY else None


def state(host: Host, process: int) -> str:
    """Return the state of a process, a letter of proc(5)."""
    return (host.fields(f"/proc/{process}/status").get("State") or "X")[0]
