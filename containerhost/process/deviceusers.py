# SPDX-License-Identifier: Apache-2.0
"""Find the processes of containers that use a device: it is open, mapped, or in a file that they can get.

A container that may have been given the device is frozen meanwhile (:mod:`containerhost.linux.freezer`): its processes
could otherwise fork and exit, or pass a file on, faster than they are looked at. Any other is not, because a look at
one container's device must not make the others wait, nor undo that their user freezes them at that moment.
"""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux import freezer
from containerhost.linux.freezer import Freezer, ThawedMeanwhile
from containerhost.process import namespaces, openfiles
from containerhost.process.processes import (
    ANSWER_TIMEOUT,
    NoAnswer,
    alone,
    asked,
    began,
    belongs,
    container_of,
    members,
    name,
    namespace,
    outermost,
    pids,
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


class CharUsers:
    """Search for the users of character nodes. A container is named by its PID namespace."""

    def __init__(self, nodes: Collection[Node]) -> None:
        self._wanted = set(nodes)
        self._spent: dict[str, float] = {}  # s, by container

    def everywhere(self) -> tuple[str, ...]:
        """Return the users in all containers, each frozen while it is looked at."""
        containers: dict[str, tuple[int, Freezer | None]] = {}
        for pid in pids():
            if container := outermost(pid):
                known, group = containers.get(container, (pid, None))
                containers[container] = known, group or freezer.of_container(pid, Host())
        return tuple(user for container, (first, group) in containers.items()
                     for user in frozen_users(container, first, group, self._user_in(container), False))

    def of_holders(self, holders: Collection[int]) -> tuple[str, ...]:
        """Return the users in these containers, each frozen while it is looked at, and those in all others.

        :param holders: first processes of containers
        """
        containers = {space: pid for pid in holders if (space := namespace(pid)) is not None}
        found = [user for container, pid in containers.items() for user in users_in(pid, self._user_in(container))]
        return (*found, *self._in_others(containers))

    def _user_in(self, container: str) -> Callable[[int], str | None]:
        def look(pid: int) -> str | None:
            nodes = self._nodes(pid, container, LOOK_TIMEOUT - sum(self._spent.values()))
            if nodes is None:
                raise too_many_files(self._spent)
            return in_words(pid) if nodes & self._wanted else None

        return look

    def _in_others(self, holders: Collection[str]) -> tuple[str, ...]:
        own, found, passed = namespace(os.getpid()), list[str](), dict[str, int]()
        for pid in pids():
            try:
                container = namespace(pid)
                if container in (None, own) or any(belongs(pid, holder) for holder in holders):
                    continue
                container = str(container)
                nodes = self._nodes(pid, container, min(LOOK_TIMEOUT - sum(self._spent.values()),
                                                        OTHERS_TIMEOUT - self._spent.get(container, 0.0)))
            except NoAnswer:
                container, nodes = container_of(pid), None
            if nodes is None:
                passed.setdefault(container, pid)
            elif nodes & self._wanted:
                found.append(in_words(pid))
        if passed:
            LOG.warning("Not all open files were looked at of containers that were never given the device: those of %s",
                        ", ".join(map(in_words, sorted(passed.values()))))
        return tuple(found)

    def _nodes(self, pid: int, container: str, left: float) -> set[Node] | None:
        """Return the character nodes that a process has open or mapped; None if that takes too long.

        :param left: seconds
        :raises HostActionFailed: it cannot be looked at; NoAnswer among them
        """
        start = time.monotonic()
        try:
            if left <= 0:
                return None
            # Who merely has too many files ends the look by itself, and is told so.
            return asked(pid, lambda: openfiles.nodes(pid, stat.S_IFCHR, start + left), left + ANSWER_TIMEOUT)
        except TimeoutError:
            return None
        except OSError as error:
            raise HostActionFailed(f"cannot look into {in_words(pid)}: {error.strerror}") from error
        finally:
            self._spent[container] = self._spent.get(container, 0.0) + time.monotonic() - start


def users_in(container: int, look: Callable[[int], str | None]) -> tuple[str, ...]:
    """Return the users in a container, in words; none if it has ended.

    :param container: its first process
    :param look: says how a process uses the device, if it does
    :raises HostActionFailed: it cannot be frozen, or not be looked at in time
    """
    group, home = freezer.of_container(container, Host()), namespace(container)
    if home is None or home == namespace(os.getpid()):
        return ()
    if group is None and not any(map(began, openfiles.threads(container))):
        return ()  # it has ended, and nobody has waited for it
    if group is None:
        raise HostActionFailed(f"cannot tell what the container of {in_words(container)} has open: it is in no control "
                               "group of a container that can be frozen")
    return frozen_users(home, container, group, look, True)


def frozen_users(container: str, first: int, group: Freezer | None, look: Callable[[int], str | None],
                 unlisted: bool) -> tuple[str, ...]:
    """Return the users in a container, in words.

    :param container: its PID namespace
    :param first: a process of it
    :param group: None for what belongs to no engine, as a program that isolates itself: it is not frozen
    :param unlisted: whether :func:`containerhost.process.openfiles.unlisted` counts: it may be the device's. What is
        received at once does not count
    """
    def look_at_all() -> tuple[list[str], list[str]]:
        processes = list(members(container, first))
        return ([user for user in map(look, processes) if user],
                [f"{in_words(pid)}, {how}" for pid in processes if unlisted and (how := hidden(pid, group))])

    end = time.monotonic() + RETRY_TIMEOUT
    while True:
        late = time.monotonic() > end
        try:
            with freezer.frozen(group, Host()) if group else contextlib.nullcontext():
                found, waiting = namespaces.limited(look_at_all, PROBLEM, STUCK_TIMEOUT)
            if found or not waiting or late:
                return (*found, *waiting)
        except ThawedMeanwhile:
            if late:
                raise
        time.sleep(POLL_INTERVAL)


def hidden(pid: int, group: Freezer | None) -> str | None:
    """Return by what a process of a group that is frozen may have files that no table lists, in words."""
    return openfiles.unlisted(pid) or (openfiles.receives(pid) if group and group.freezes_in_place else None)


def in_words(pid: int) -> str:
    return f"process {pid} ({name(pid)})"


def too_many_files(spent: Mapping[str, float]) -> HostActionFailed:
    """Return the error for containers whose open files take too long to read.

    :param spent: seconds by container
    """
    worst = max(spent, key=lambda container: spent[container])
    first = min(alone(worst), default=0)
    return HostActionFailed(
        f"cannot tell within {LOOK_TIMEOUT:g} s which process has a device open: {spent[worst]:.0f} s went to the "
        f"container of {in_words(first)} in control group {openfiles.lines(first, 'cgroup')[-1:]}, which has too many "
        "files open. Stop that container, then try again")
