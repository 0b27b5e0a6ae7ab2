# SPDX-License-Identifier: Apache-2.0
"""Measure what containers use, for the policy ``load``: CPU time from the engine's list, the rest from the kernel."""

import os
import re
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from containerhost.engines.memoryuse import ROOT
from containerhost.inventory.topology import uptime
from containerhost.linux import controlgroups
from containerhost.linux.controlgroups import container_part
from containerhost.linux.process.processes import ProcReadTimeout, read_with_timeout
from containerhost.linux.sysfs import Host

ROUNDS = 3  # rounds; a shrink considers their highest use
LEAST_TIME = 1.0  # s; the minimum duration of a sample
SECOND = 1_000_000_000  # ns
STARTTIME = 20  # index in /proc/PID/stat after the program's name
PRESSURE = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,2})?) ")


class _Sample(NamedTuple):
    pid: int | None
    cores: int
    cpu_time: int
    time: float


class Load:
    """Remember the busy cores of containers in the last rounds."""

    def __init__(self) -> None:
        self._last: dict[str, _Sample] = {}
        self._used: dict[str, deque[float]] = {}

    def observe(self, key: str, pid: int | None, cores: int, cpu_time: int, now: float) -> tuple[float, ...]:
        """Return the busy cores in the last rounds with the present number of cores, the newest last.

        :param cpu_time: nanoseconds since its start
        :param now: seconds, of a clock that is never set
        """
        last, sample = self._last.get(key), _Sample(pid, cores, cpu_time, now)
        if last is None or (last.pid, last.cores) != (pid, cores) or cpu_time < last.cpu_time:
            self._last[key], self._used[key] = sample, deque(maxlen=ROUNDS)
        elif now - last.time >= LEAST_TIME:
            self._used[key].append((cpu_time - last.cpu_time) / SECOND / (now - last.time))
            self._last[key] = sample
        return tuple(self._used[key])

    def keep(self, keys: Collection[str]) -> None:
        """Discard the loads of all other containers."""
        for gone in self._last.keys() - set(keys):
            del self._last[gone], self._used[gone]


def age(host: Host, pid: int) -> float | None:
    """Return the seconds since a process started (proc_pid_stat(5), starttime); None if unknown."""
    try:
        fields = (read_with_timeout(pid, lambda: host.text(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()
    except ProcReadTimeout:
        return None
    if len(fields) < STARTTIME or not fields[STARTTIME - 1].isdecimal():
        return None
    return uptime(host) - int(fields[STARTTIME - 1]) / os.sysconf("SC_CLK_TCK")


def cpu_pressure(host: Host, pid: int) -> float | None:
    """Return the percentage of the last 10 s in which a process of the container waited for a CPU; None if unknown.

    Source: Documentation/accounting/psi.rst; for groups of version 2 alone, also beside version 1."""
    path = controlgroups.of(pid, host).get("")
    if path is None:
        return None
    texts = (host.text(f"{root}{container_part(path)}/cpu.pressure") for root in (f"{ROOT}/unified", ROOT))
    found = next((match for text in texts if text and (match := PRESSURE.match(text))), None)
    return float(found[1]) if found else None
