"""Find out whether the kernel has frozen a container, and let one process at a time change that.

Sources: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst, ``cgroup.freeze``.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from containerhost.engines.docker import usage
from containerhost.errors import EngineTimeout
from containerhost.sysfs import Host

POLL_INTERVAL: Final = 0.01  # s


class Attribute(NamedTuple):
    """The file of a control group that freezes it.

    :ivar frozen: what it holds while the group is frozen, or about to be
    :ivar freeze: what is written to it to freeze the group
    :ivar thaw: what is written to it to let the group run
    """

    path: str
    frozen: tuple[str, ...]
    freeze: str
    thaw: str

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


def attribute(host: Host, container: str) -> Attribute | None:
    """Return the file for one container, None where there is none.

    :param container: Docker's id
    """
    if one := usage.folder(host, "", container):
        return Attribute(f"{one}/cgroup.freeze", ("1",), "1", "0")
    group = usage.folder(host, "/freezer", container)
    return Attribute(f"{group}/freezer.state", ("FROZEN", "FREEZING"), "FROZEN", "THAWED") if group else None


def is_frozen(host: Host, container: str) -> bool:
    """Return what the kernel says, whatever Docker does.

    :param container: Docker's id
    """
    found = attribute(host, container)
    return found is not None and (host.text(found.path) or "").strip() in found.frozen


def is_still(host: Host, group: Attribute) -> bool:
    """Return whether every process of the group has stopped."""
    if group.path.endswith("/cgroup.freeze"):
        return usage.table(host, f"{group.folder}/cgroup.events").get("frozen") == 1
    return host.text(group.path) == "FROZEN"


@contextlib.contextmanager
def locked(host: Host, container: str, timeout: float) -> Iterator[None]:
    """Keep other processes from freezing and thawing the container; one that does not run needs no lock.

    The lock is on its control group, and ends with the process that has it.

    :param container: Docker's id
    :raises EngineTimeout: another process has the lock for longer than ``timeout`` seconds
    """
    group = attribute(host, container)
    fd = host.open(group.folder) if group else None
    if fd is None:
        yield
        return
    try:
        end = time.monotonic() + timeout
        while not _try_lock(fd):
            if time.monotonic() >= end:
                raise EngineTimeout(f"container {container[:12]} is frozen by another process, which copies its root, "
                                    f"for more than {timeout:g} s")
            time.sleep(POLL_INTERVAL)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
