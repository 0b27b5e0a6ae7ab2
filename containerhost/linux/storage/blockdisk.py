# SPDX-License-Identifier: Apache-2.0
"""Find the disk of the host that contains a directory: the kernel limits the rate of disks, not of partitions.

Sources: Documentation/admin-guide/cgroup-v1/blkio-controller.rst; Documentation/ABI/testing/sysfs-block.
"""

import os
import stat
from pathlib import Path

from containerhost.linux.sysfs import Host

BLOCK = "/sys/dev/block"


def holding(host: Host, directory: str) -> str | None:
    """Find the whole disk that contains a directory.

    :returns: the disk's node, ``/dev/sda``; None if the directory's file system is not on exactly one disk
    """
    number = os.stat(directory).st_dev
    return whole(host, number) or whole(host, device_of_source(host, number))


def whole(host: Host, number: int) -> str | None:
    target = host.target(f"{BLOCK}/{os.major(number)}:{os.minor(number)}")
    if target is None:
        return None
    place = Path(target)
    is_partition = host.exists(f"{BLOCK}/{os.major(number)}:{os.minor(number)}/partition")
    return f"/dev/{(place.parent if is_partition else place).name}"


def device_of_source(host: Host, number: int) -> int:
    """Return the source device of a file system with an anonymous device number, such as btrfs.

    /proc/self/mountinfo (proc(5)): ``id parent major:minor root place options … - type source options``.
    """
    for line in host.lines("/proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        if mount.split()[2] == f"{os.major(number)}:{os.minor(number)}":
            source = system.split()[1]
            try:
                status = os.stat(source)
            except OSError:
                continue
            if stat.S_ISBLK(status.st_mode):
                return status.st_rdev
    return 0
