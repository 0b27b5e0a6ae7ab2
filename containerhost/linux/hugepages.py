# SPDX-License-Identifier: Apache-2.0
"""Tell which huge pages a control group can be kept from taking.

Anybody may map pages of the host's pool (mmap(2), MAP_HUGETLB), and they count against no limit of memory. So whoever
was promised none must have a limit of none.

Sources: Documentation/admin-guide/cgroup-v1/hugetlb.rst; cgroup-v2.rst, HugeTLB.
"""

from containerhost.linux.sysfs import Host

POOLS = "/sys/kernel/mm/hugepages"
CGROUPS = "/sys/fs/cgroup"
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def limitable(host: Host) -> tuple[str, ...]:
    """Return the pages that an engine's control groups can be limited to, by their name there: ``2MB``, ``1GB``."""
    controllers = (host.text(f"{CGROUPS}/cgroup.controllers") or "").split()
    if "hugetlb" not in controllers and not host.is_directory(f"{CGROUPS}/hugetlb"):
        return ()
    numbers = (name.removeprefix("hugepages-").removesuffix("kB") for name in host.names(POOLS))
    return tuple(_name(int(number) << 10) for number in numbers if number.isdecimal() and int(number))


def _name(size: int) -> str:
    unit, name = next(each for each in _UNITS if size >= each[0])
    return f"{size // unit}{name}"
