# SPDX-License-Identifier: Apache-2.0
"""Measure the disk reads and writes of a container's processes, from its control group.

Formats: the kernel's cgroup-v1/blkio-controller and cgroup-v2 documents. With version 1 the kernel does not count
delayed writes from the page cache.
"""

import dataclasses
import re

from containerhost.linux import controlgroups
from containerhost.linux.sysfs import Host

GROUPS = "/sys/fs/cgroup"
NUMBERED = re.compile(r"[0-9]+:[0-9]+ (?P<kind>Read|Write) (?P<number>[0-9]+)")
NAMED = re.compile(r"\b(?P<kind>rbytes|wbytes|rios|wios)=(?P<number>[0-9]+)")


@dataclasses.dataclass(frozen=True)
class DiskIo:
    """Count disk bytes and requests since the container's start."""

    read: int
    written: int
    reads: int
    writes: int


def disk_io(host: Host, pid: int) -> DiskIo | None:
    """Return the disk reads and writes of a container.

    :param pid: a process of the container
    :returns: None if the host does not count them
    """
    groups = {kind: controlgroups.container_part(path) for kind, path in controlgroups.of(pid, host).items()}
    if "blkio" in groups:
        directory = f"{GROUPS}/blkio{groups['blkio']}/blkio.throttle"
        sizes, counts = (sums(host, f"{directory}.{file}_recursive", NUMBERED)
                         for file in ("io_service_bytes", "io_serviced"))
        if sizes is None or counts is None:
            return None
        return DiskIo(sizes.get("Read", 0), sizes.get("Write", 0), counts.get("Read", 0), counts.get("Write", 0))
    found = sums(host, f"{GROUPS}{groups.get('', '')}/io.stat", NAMED)
    if found is None:
        return None
    return DiskIo(*(found.get(kind, 0) for kind in ("rbytes", "wbytes", "rios", "wios")))


def sums(host: Host, path: str, pattern: re.Pattern[str]) -> dict[str, int] | None:
    """Return the sums over all disks; None if the file is missing."""
    if not host.exists(path):
        return None
    found: dict[str, int] = {}
    for match in pattern.finditer(host.text(path) or ""):
        found[match["kind"]] = found.get(match["kind"], 0) + int(match["number"])
    return found
