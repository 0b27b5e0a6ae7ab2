# SPDX-License-Identifier: Apache-2.0
"""Determine which huge pages can be denied to a control group.

Any process may map pages of the host's pool (mmap(2), MAP_HUGETLB), which do not count against memory limits. So a
container without huge pages needs a limit of 0.

Sources: Documentation/admin-guide/cgroup-v1/hugetlb.rst; cgroup-v2.rst, HugeTLB.
"""

from containerhost.linux.sysfs import Host

POOLS = "/sys/kernel/mm/hugepages"
CGROUPS = "/sys/fs/cgroup"
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def limitable(host: Host) -> tuple[str, ...]:
    """Return the page sizes whose number control groups can limit, as the controller names them: ``2MB``, ``1GB``."""
    controllers = (host.text(f"{CGROUPS}/cgroup.controllers") or "").split()
    if "hugetlb" not in controllers and not host.is_directory(f"{CGROUPS}/hugetlb"):
        return ()
    numbers = (name.removeprefix("hugepages-").removesuffix("kB") for name in host.names(POOLS))
    return tuple(_name(int(number) << 10) for number in numbers if number.isdecimal() and int(number))


def _name(size: int) -> str:
    unit, name = next(each for each in _UNITS if size >= each[0])
    return f"{size // unit}{name}"
