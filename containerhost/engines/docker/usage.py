# SPDX-License-Identifier: Apache-2.0
"""Read what a running container uses from a few files of the kernel: many need no request to Docker.

Control groups of version 1 and 2, under either of Docker's cgroup drivers."""

from collections.abc import Mapping

from containerhost.engines.contract import InterfaceMetrics, Metrics, Status
from containerhost.linux.sysfs import Host

ROOT = "/sys/fs/cgroup"
MICROSECOND = 1000  # ns
COLUMNS = 16  # of /proc/<pid>/net/dev, after the name
NOTHING = Metrics(Status.STOPPED, None, 0, 0, 0, 0, 0, {}, ())


def read(host: Host, container: str, status: Status) -> Metrics | None:
    """Read what a container uses.

    :param container: Docker's id
    :returns: None when it has ended meanwhile
    """
    one = directory(host, "", container)
    cpu, memory = (one, one) if one else (directory(host, "/cpuacct", container), directory(host, "/memory", container))
    pids = one or directory(host, "/pids", container)
    pid = first_process(host, memory) if memory else None
    if not cpu or not memory or pid is None:
        return None
    return Metrics(
        status=status, pid=pid, processes=(host.number(f"{pids}/pids.current") or 0) if pids else 0,
        cpu_time=cpu_time(host, cpu), memory=used(host, memory),
        memory_peak=host.number(f"{memory}/memory.max_usage_in_bytes") or host.number(f"{memory}/memory.peak") or 0,
        swap=table(host, f"{memory}/memory.stat").get("swap", 0) or host.number(f"{memory}/memory.swap.current") or 0,
        disks={}, interfaces=interfaces(host, pid))


def directory(host: Host, controller: str, container: str) -> str | None:
    places = (f"{ROOT}{controller}/docker/{container}", f"{ROOT}{controller}/system.slice/docker-{container}.scope")
    return next((place for place in places if host.is_directory(place)), None)


def first_process_of(host: Host, container: str) -> int | None:
    """Return the container's first process; None if it does not run."""
    group = directory(host, "", container) or directory(host, "/devices", container)
    return first_process(host, group) if group else None


def first_process(host: Host, group: str) -> int | None:
    numbers = [int(word) for word in (host.text(f"{group}/cgroup.procs") or "").split()]
    return min(numbers, default=None)


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
    """Parse lines of a name and a number."""
    rows = (line.split() for line in (host.text(path) or "").splitlines())
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
