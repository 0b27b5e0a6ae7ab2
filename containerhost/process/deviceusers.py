# SPDX-License-Identifier: Apache-2.0
"""Find the processes of containers that use a device: it is open, mapped, or in a file that they can get.

A container that may have been given the device is frozen meanwhile (:mod:`containerhost.linux.freezer`): its processes
could otherwise fork and exit, or pass a file on, faster than they are looked at. Any other is not, because a look at
one container's device must not make the others wait, nor undo that their user freezes them at that moment.
"""

import contextlib
import functools
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from containerhost.errors import HostActionFailed
from containerhost.linux import freezer
from containerhost.linux.freezer import Freezer, ThawedMeanwhile
from containerhost.process import namespaces, openfiles
from containerhost.process.processes import (
    ANSWER_TIMEOUT,
    NoAnswer,
    asked,
    began,
    container_of,
    group_of,
    is_hosts,
    members,
    name,
    namespace,
    outermost,
    pids,
    threads,
)
from containerhost.sysfs import Host

LOG = logging.getLogger(__name__)

LOOK_TIMEOUT = 20.0  # s to look at the open files of containers: some ten million
OTHERS_TIMEOUT = 2.0  # s of these for each container that never had the device
STUCK_TIMEOUT = 30.0  # s; the kernel may make a look wait for a process of the container
RETRY_TIMEOUT = 2.0  # s in which what is sent to a process is received, and one that is killed ends
POLL_INTERVAL = 0.05  # s
PROBLEM = "cannot look at the open files of containers"

Node = tuple[int, int]
Hides = Callable[[int, Freezer | None], str | None]  # process and its group; by what, in words


class Container(NamedTuple):
    """A container whose processes are looked at while it is frozen.

    :ivar home: its PID namespace
    :ivar first: a process of it
    :ivar group: None for what belongs to no engine, as a program that isolates itself: it is not frozen
    """

    home: str
    first: int
    group: Freezer | None


class CharUsers:
    """Search for the users of character nodes."""

    def __init__(self, nodes: Collection[Node]) -> None:
        self._wanted = set(nodes)
        self._spent: dict[str, tuple[float, int]] = {}  # by container, s and a process of it

    def everywhere(self) -> tuple[str, ...]:
        """Return the users in all containers, each frozen while it is looked at."""
        containers: dict[str, Container] = {}
        for pid in pids():
            if home := outermost(pid):
                known = containers.get(home, Container(home, pid, None))
                containers[home] = known._replace(group=known.group or freezer.of_container(pid, Host()))
        return tuple(user for container in containers.values() for user in frozen_users([container], self._user, None))

    def of_holders(self, holders: Collection[int], *, others: bool = True, buffers: bool = True) -> tuple[str, ...]:
        """Return the users in these containers, all frozen while they are looked at, and those in all others.

        :param holders: first processes of containers
        :param others: False for those in these containers alone
        :param buffers: whether the nodes' devices export DMA-BUFs
        """
        containers = [found for pid in holders if (found := container(pid))]
        users = frozen_users(containers, self._user, functools.partial(hidden, buffers=buffers))
        if others:
            # Who is in no control group of a container, but in its namespaces, is found in both ways.
            users = tuple(dict.fromkeys((*users, *self._in_others({found.group for found in containers}))))
        return users

    def _user(self, pid: int) -> str | None:
        nodes = self._nodes(pid, container_of(pid), LOOK_TIMEOUT - self._total(), opened=False)
        if nodes is None:
            raise too_many_files(self._spent)
        return in_words(pid) if nodes & self._wanted else None

    def _in_others(self, holders: Collection[Freezer | None]) -> tuple[str, ...]:
        found, passed = list[str](), dict[str, int]()
        for pid in pids():
            if is_hosts(pid) or group_of(pid) in holders:
                continue
            name = container_of(pid)
            spent, _ = self._spent.get(name, (0.0, pid))
            try:
                nodes = self._nodes(pid, name, min(LOOK_TIMEOUT - self._total(), OTHERS_TIMEOUT - spent), opened=True)
            except NoAnswer:
                nodes = None
            if nodes is None:
                passed.setdefault(name, pid)
            elif nodes & self._wanted:
                found.append(in_words(pid))
        if passed:
            LOG.warning("Not all open files were looked at of containers that were never given the device: those of %s",
                        ", ".join(map(in_words, sorted(passed.values()))))
        return tuple(found)

    def _total(self) -> float:
        return sum(spent for spent, _ in self._spent.values())

    def _nodes(self, pid: int, name: str, left: float, *, opened: bool) -> set[Node] | None:
        """Return the character nodes that a process has open or mapped; None if that takes too long.

        :param name: of its container
        :param left: seconds
        :param opened: of :func:`containerhost.process.openfiles.nodes`
        :raises HostActionFailed: it cannot be looked at; NoAnswer among them
        """
        start = time.monotonic()
        try:
            if left <= 0:
                return None
            # Who merely has too many files ends the look by itself, and is told so.
            return asked(pid, lambda: openfiles.nodes(pid, stat.S_IFCHR, start + left, opened=opened),
                         left + ANSWER_TIMEOUT, counted=False)
        except TimeoutError:
            return None
        except OSError as error:
            raise HostActionFailed(f"cannot look into {in_words(pid)}: {error.strerror}") from error
        finally:
            spent, first = self._spent.get(name, (0.0, pid))
            self._spent[name] = spent + time.monotonic() - start, first


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


def users_in(first: int, look: Callable[[int], str | None]) -> tuple[str, ...]:
    """Return the users in a container, in words; none if it has ended.

    :param first: its first process
    :param look: says how a process uses the device, if it does
    :raises HostActionFailed: it cannot be frozen, or not be looked at in time
    """
    found = container(first)
    return frozen_users([found], look, functools.partial(hidden, buffers=False)) if found else ()


def frozen_users(containers: Sequence[Container], look: Callable[[int], str | None], hides: Hides | None
                 ) -> tuple[str, ...]:
    """Return the users in containers, in words. They are frozen together, so that none passes to another what it has.

    :param hides: whether a process may have the device where no look finds it. What is received at once does not count
    """
    groups = {found.group for found in containers if found.group}

    def look_at_all() -> tuple[list[str], list[str]]:
        processes = {pid: found.group for found in containers for pid in members(found.home, found.first)}
        return ([user for user in map(look, processes) if user],
                [f"{in_words(pid)}, {how}" for pid, group in processes.items()
                 if hides and (how := hides(pid, group))])

    end = time.monotonic() + RETRY_TIMEOUT
    while True:
        late = time.monotonic() > end
        try:
            with freezer.frozen(groups, Host()) if groups else contextlib.nullcontext():
                found, waiting = namespaces.limited(look_at_all, PROBLEM, STUCK_TIMEOUT)
            if found or not waiting or late:
                return (*found, *waiting)
        except ThawedMeanwhile:
            if late:
                raise
        time.sleep(POLL_INTERVAL)


def hidden(pid: int, group: Freezer | None, *, buffers: bool) -> str | None:
    """Return by what a process of a group that is frozen may have a device that no table lists, in words.

    :param buffers: of :func:`containerhost.process.openfiles.unlisted`
    """
    return (openfiles.unlisted(pid, buffers=buffers)
            or (openfiles.receives(pid) if group and group.freezes_in_place else None))


def in_words(pid: int) -> str:
    return f"process {pid} ({name(pid)})"


def too_many_files(spent: Mapping[str, tuple[float, int]]) -> HostActionFailed:
    """Return the error for containers whose open files take too long to read.

    :param spent: by container, seconds and a process of it
    """
    seconds, first = max(spent.values())
    return HostActionFailed(
        f"cannot tell within {LOOK_TIMEOUT:g} s which process has a device open: {seconds:.0f} s went to the "
        f"container of {in_words(first)} in control group {openfiles.lines(first, 'cgroup')[-1:]}, which has too many "
        "files open. Stop that container, then try again")
