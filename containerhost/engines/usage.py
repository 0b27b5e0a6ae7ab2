# SPDX-License-Identifier: Apache-2.0
"""Read the resource usage of running containers from the kernel: for many this needs no request to the engine.

Control groups of version 1 and 2."""

from collections.abc import Callable, Mapping

from containerhost.engines.contract import InterfaceMetrics, Metrics, Status
from containerhost.linux.sysfs import Host

ROOT = "/sys/fs/cgroup"
MICROSECOND = 1000  # ns
COLUMNS = 16  # of /proc/<pid>/net/dev, after the name
NOTHING = Metrics(Status.STOPPED, None, 0, 0, 0, 0, 0, {}, ())

#: Returns a container's control group of a controller, "/memory" say; of version 2 for ""; None where it has none
Directory = Callable[[str], str | None]


def read(host: Host, directory: Directory, pid: int | None, status: Status) -> Metrics | None:
    """Read the resource usage of a container, except its disks.

    :param pid: its first process
    :returns: None if it has ended meanwhile
    """
    one = directory("")
    cpu, memory, pids = (one, one, one) if one else (directory("/cpuacct"), directory("/memory"), directory("/pids"))
    if not cpu or not memory or pid is None:
        return None
    return Metrics(
        status=status, pid=pid, processes=(host.number(f"{pids}/pids.current") or 0) if pids else 0,
        cpu_time=cpu_time(host, cpu), memory=used(host, memory),
        memory_peak=host.number(f"{memory}/memory.max_usage_in_bytes") or host.number(f"{memory}/memory.peak") or 0,
        swap=table(host, f"{memory}/memory.stat").get("swap", 0) or host.number(f"{memory}/memory.swap.current") or 0,
        disks={}, interfaces=interfaces(host, pid))


def processes(host: Host, group: str) -> tuple[int, ...]:
    """Return the processes in a control group, without its children."""
    return tuple(int(word) for word in (host.text(f"{group}/cgroup.procs") or "").split())


def cpu_time(host: Host, group: str) -> int:
    """Return the CPU time in nanoseconds."""
    usage = host.number(f"{group}/cpuacct.usage")
    return usage if usage is not None else table(host, f"{group}/cpu.stat").get("usage_usec", 0) * MICROSECOND


def used(host: Host, group: str) -> int:
    """Return the memory in use without the page cache that can be dropped, as `docker stats` counts."""
    usage = host.number(f"{group}/memory.usage_in_bytes")
    usage = host.number(f"{group}/memory.current") or 0 if usage is None else usage
    stat = table(host, f"{group}/memory.stat")
    return max(0, usage - stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def table(host: Host, path: str) -> Mapping[str, int]:
    """Parse lines with a name and a number."""
    rows = (line.split() for line in host.lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def interfaces(host: Host, pid: int) -> tuple[InterfaceMetrics, ...]:
    """Return the interfaces' counters from /proc/<pid>/net/dev (proc(5)): two headings, then ``name: counters``."""
    found = []
    for line in host.lines(f"/proc/{pid}/net/dev")[2:]:
        name, _, counters = line.partition(":")
        numbers = [int(word) for word in counters.split() if word.isdecimal()]
        if name.strip() != "lo" and len(numbers) == COLUMNS:
            found.append(InterfaceMetrics(name.strip(), "", None, *numbers[:4], *numbers[8:12]))
    return tuple(found)
