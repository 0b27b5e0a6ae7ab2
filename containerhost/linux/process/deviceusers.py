# SPDX-License-Identifier: Apache-2.0
"""Find the processes of containers that use a device.

The search for character devices is for messages only: their drivers determine whether a handle is left. A block
device, whose driver cannot revoke handles, is searched while its container is frozen
(:mod:`containerhost.linux.freezer`): otherwise its processes could fork and exit, or pass a file on, during the
search.
"""

import contextlib
import functools
import os
import stat
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from containerhost.errors import HostActionFailed
from containerhost.linux import freezer
from containerhost.linux.freezer import Freezer, ThawedMeanwhile
from containerhost.linux.process import namespaces, openfiles
from containerhost.linux.process.processes import (
    ANSWER_TIMEOUT,
    ProcReadTimeout,
    began,
    group_of,
    is_hosts,
    members,
    name,
    namespace,
    pids,
    read_with_timeout,
    threads,
)
from containerhost.linux.sysfs import Host

SCAN_TIMEOUT = 2.0  # s
STUCK_TIMEOUT = 30.0  # s; the kernel may make a look wait for a process of the container
RETRY_TIMEOUT = 2.0  # s in which what is sent to a process is received, and one that is killed ends
POLL_INTERVAL = 0.05  # s
PROBLEM = "cannot look at the open files of containers"


class Container(NamedTuple):
    """Describe a container whose processes are inspected while it is frozen.

    :ivar home: its PID namespace
    :ivar first: a process of it
    """

    home: str
    first: int
    group: Freezer


def char_users(nodes: Collection[tuple[int, int]], timeout: float = SCAN_TIMEOUT) -> tuple[str, ...]:
    """Describe the container processes that have one of these character nodes open.

    Best effort, for messages: processes hidden by a tenant, or not read in time, are missed. The host's own
    processes are left out, because a monitoring daemon may have a GPU open permanently.

    :param timeout: seconds for all; a process with many open files gets a tenth of it
    """
    found, end, limit = list[str](), time.monotonic() + timeout, timeout / 10
    for pid in pids() if nodes else ():
        if (now := time.monotonic()) > end:
            break
        read = functools.partial(openfiles.nodes, pid, stat.S_IFCHR, now + limit, opened=True)
        with contextlib.suppress(OSError, ProcReadTimeout):  # TimeoutError, too
            # kcmp(2) waits for a process that starts a program; one with too many files ends by itself.
            if not is_hosts(pid) and set(nodes) & read_with_timeout(pid, read, limit + ANSWER_TIMEOUT, counted=False):
                found.append(in_words(pid))
    return tuple(found)


def container(first: int) -> Container | None:
    """Return the container of a process; None if it has ended, or belongs to the host.

    :raises HostActionFailed: it cannot be frozen
    """
    group, home = group_of(first), namespace(first)
    if home is None or home == namespace(os.getpid()):
        return None
    if group is None and not any(map(began, threads(first))):
        return None  # it has ended, and nobody has waited for it
    if group is None:
        raise HostActionFailed(f"cannot tell what the container of {in_words(first)} has open: it is in no control "
                               "group of a container that can be frozen")
    return Container(home, first, group)


def users_in(firsts: Collection[int], look: Callable[[int], str | None]) -> tuple[str, ...]:
    """Describe the users in containers; none if they have ended.

    This includes processes that may have the device hidden from a search. Files that are received immediately do not
    count.

    :param firsts: the containers' first processes. All are frozen at once: they may pass the device to each other
    :param look: describes how a process uses the device, if it does
    :raises HostActionFailed: one cannot be frozen, or inspected in time
    """
    found = tuple(filter(None, map(container, firsts)))
    if not found:
        return ()
    groups = tuple({each.group: None for each in found})

    def look_at_all() -> tuple[list[str], list[str]]:
        processes = {pid: each.group for each in found for pid in members(each.home, each.first)}
        return ([user for user in map(look, processes) if user],
                [f"{in_words(pid)}, {how}" for pid, group in processes.items() if (how := hidden(pid, group))])

    end = time.monotonic() + RETRY_TIMEOUT
    while True:
        late = time.monotonic() > end
        try:
            with freezer.frozen(groups[0], Host(), *groups[1:]):
                users, waiting = namespaces.limited(look_at_all, PROBLEM, STUCK_TIMEOUT)
            if users or not waiting or late:
                return (*users, *waiting)
        except ThawedMeanwhile:
            if late:
                raise
        time.sleep(POLL_INTERVAL)


def hidden(pid: int, group: Freezer) -> str | None:
    """Describe how a process of a frozen group may have a device that no table lists."""
    return openfiles.unlisted(pid) or (openfiles.receives(pid) if group.freezes_in_place else None)


def in_words(pid: int) -> str:
    return f"process {pid} ({name(pid)})"
