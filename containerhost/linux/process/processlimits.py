# SPDX-License-Identifier: Apache-2.0
"""Set kernel resource limits (setrlimit(2)) of a container's processes while they run."""

import os
import resource
from collections.abc import Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux.process.processes import alone, namespace

LOOKS = 10


def at_least(first: int, limits: Mapping[str, str]) -> None:
    """Raise the soft and hard limits of every process of a container to at least these; new processes inherit them.

    :param first: the container's first process; nested containers are excluded
    :param limits: by the names of setrlimit(2) without ``RLIMIT_``, in small letters; ``unlimited`` or a number
    :raises HostActionFailed: the kernel does not permit this process to raise them
    """
    home = namespace(first)
    if home in (None, namespace(os.getpid())):
        raise HostActionFailed(f"process {first} is not that of a running container")
    wanted = {number_of(name): value(size) for name, size in limits.items()}
    # Who was started meanwhile by one whose limit was still low is found by the next look. A tenant's process may lower
    # its own again and again, so the looks are counted.
    for _ in range(LOOKS):
        if not any([_raise(pid, wanted) for pid in alone(home, first)]):
            return


def number_of(name: str) -> int:
    number = getattr(resource, f"RLIMIT_{name.upper()}", None)
    if number is None:
        raise HostActionFailed(f"the kernel has no limit named {name!r}")
    return int(number)


def value(size: str) -> int:
    return resource.RLIM_INFINITY if size == "unlimited" else int(size)


def _raise(pid: int, wanted: Mapping[int, int]) -> bool:
    """Raise a process's limits, and return whether any was changed."""
    try:
        return any([_raise_one(pid, number, size) for number, size in wanted.items()])
    except ProcessLookupError:
        return False  # it ended
    except OSError as error:
        raise HostActionFailed(f"cannot raise limits of process {pid}: {error.strerror}") from error


def _raise_one(pid: int, number: int, size: int) -> bool:
    present = resource.prlimit(pid, number)
    raised = _larger(present[0], size), _larger(present[1], size)
    if raised == present:
        return False
    resource.prlimit(pid, number, raised)
    return True


def _larger(one: int, other: int) -> int:
    return resource.RLIM_INFINITY if resource.RLIM_INFINITY in (one, other) else max(one, other)
