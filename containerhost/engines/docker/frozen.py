"""Find out whether the kernel has frozen a container.

Sources: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst, ``cgroup.freeze``.
"""

from typing import NamedTuple

from containerhost.engines.docker import usage
from containerhost.sysfs import Host


class Attribute(NamedTuple):
    """The file of a control group that freezes it.

    :ivar frozen: what it holds while the group is frozen, or about to be
    :ivar thaw: what is written to it to let the group run
    """

    path: str
    frozen: tuple[str, ...]
    thaw: str


def attribute(host: Host, container: str) -> Attribute | None:
    """Return the file for one container, None where there is none.

    :param container: Docker's id
    """
    if one := usage.folder(host, "", container):
        return Attribute(f"{one}/cgroup.freeze", ("1",), "0")
    group = usage.folder(host, "/freezer", container)
    return Attribute(f"{group}/freezer.state", ("FROZEN", "FREEZING"), "THAWED") if group else None


def is_frozen(host: Host, container: str) -> bool:
    """Return what the kernel says, whatever Docker does.

    :param container: Docker's id
    """
    found = attribute(host, container)
    return found is not None and (host.text(found.path) or "").strip() in found.frozen
