# SPDX-License-Identifier: Apache-2.0
"""Determine whether the kernel has frozen a container, and serialize changes of that."""

import contextlib
from contextlib import AbstractContextManager

from containerhost.engines.docker import usage
from containerhost.errors import EngineTimeout
from containerhost.linux.freezer import V1, V2, Freezer
from containerhost.linux.sysfs import Host


def freezer(host: Host, container: str) -> Freezer | None:
    """Return the freezer of one container; None if it has none.

    :param container: Docker's id
    """
    if one := usage.directory(host, "", container):
        return Freezer(f"{one}/{V2}")
    group = usage.directory(host, "/freezer", container)
    return Freezer(f"{group}/{V1}") if group else None


def is_frozen(host: Host, container: str) -> bool:
    """Return whether the kernel has frozen the container, whatever Docker reports.

    :param container: Docker's id
    """
    found = freezer(host, container)
    return found is not None and found.is_requested(host)


def locked(host: Host, container: str, timeout: float) -> AbstractContextManager[object]:
    """Exclude other processes that freeze or thaw the container; one that is not running needs no lock.

    :param container: Docker's id
    :raises EngineTimeout: another process has the lock for longer than ``timeout`` seconds
    """
    group = freezer(host, container)
    return contextlib.nullcontext() if group is None else group.locked(host, timeout, lambda _: EngineTimeout(
        f"container {container[:12]} is frozen by another process, which copies its root, for more than {timeout:g} s"))
