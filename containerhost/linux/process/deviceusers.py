# SPDX-License-Identifier: Apache-2.0
"""Find the processes of containers that use a device.

Character devices are searched for messages: whether a handle is left is decided by their drivers. A block device, which
has no driver that revokes it, is searched while its container is frozen (:mod:`containerhost.linux.freezer`): its
processes could otherwise fork and exit, or pass a file on, faster than they are read.
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
    """A container whose processes are looked at while it is frozen.

    :ivar home: its PID namespace
    :ivar first: a process of it
    """

    home: str
    first: int
    group: Freezer


def char_users(nodes: Collection[tuple[int, int]], timeout: float = SCAN_TIMEOUT) -> tuple[str, ...]:
    """Return the processes in containers that are seen to have one of these character nodes open, in words.

    Best effort, for messages: what a tenant hides is not found, nor what is not read in time. Processes of the host's
    own are left out, because a monitoring daemon may watch a GPU at all times.

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
    """Return the container of a process; None if it has ended, or is the host's own.

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
    """Return the users in containers, in words; none in one that has ended.

    A process that may have the device where no look finds it is one, too. What is received at once does not count.

    :param firsts: the containers' first processes. All are frozen at once: they may pass the device to each other
    :param look: says how a process uses the device, if it does
    :raises HostActionFailed: one cannot be frozen, or not be looked at in time
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
    """Return by what a process of a group that is frozen may have a device that no table lists, in words."""
    return openfiles.unlisted(pid) or (openfiles.receives(pid) if group.freezes_in_place else None)


def in_words(pid: int) -> str:
    return f"process {pid} ({name(pid)})"
