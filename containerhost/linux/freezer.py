# SPDX-License-Identifier: Apache-2.0
"""Freeze the control group of a container while the host reads its processes' open files, or changes the group.

A walk of /proc misses a process that forks and exits faster, or passes its files on by a socket; a frozen one is
found.

There is one search at a time, for a limited time. A separate process thaws the group when its standard input ends,
also because the searching process was killed. The lock file names the frozen group: if both were killed, the next
search thaws it, or :func:`thaw_left`. A group that its user has frozen stays frozen.

Sources: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst, ``cgroup.freeze``.
"""

import contextlib
import functools
import hashlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from containerhost.errors import HostActionFailed
from containerhost.linux import controlgroups
from containerhost.linux.controlgroups import CONTAINER
from containerhost.linux.files import closing, write_attribute
from containerhost.linux.lock import Failure, FileLock, byte_held
from containerhost.linux.poll import is_readable, wait_until
from containerhost.linux.run import holding, release
from containerhost.linux.sysfs import Host

ROOT = "/sys/fs/cgroup"
V1, V2 = "freezer.state", "cgroup.freeze"
LOCK = Path("/run/containerhost/frozen")
GROUPS = Path("/run/containerhost/groups")  # a process locks a group's byte while it freezes or thaws it

FREEZE_TIMEOUT = 5.0  # s; a process in state D never freezes
FROZEN_TIMEOUT = 60  # s after which a group is thawed, even if its freezer was killed or blocks
LOCK_TIMEOUT = 60.0  # s; another holder finishes within that time
THAW_TIMEOUT = 10.0  # s
KILL_TIMEOUT = 10.0  # s; processes then still in state D are left to the engine
POLL_INTERVAL = 0.005  # s
KILL_INTERVAL = 0.05  # s

# Arguments: seconds, the file with the groups' names, which is emptied once all are thawed, the value, and the files.
THAW = """
trap "" HUP INT TERM; echo frozen; timeout -s KILL "$1" cat
names=$2 value=$3 thawed=yes; shift 3
for file; do echo "$value" > "$file" || thawed=; done
[ -z "$thawed" ] || : > "$names"
"""


class ThawedMeanwhile(HostActionFailed):
    """Signal that the group was thawed during the search, as when its engine kills it."""


class Freezer(NamedTuple):
    """Freeze and thaw one control group.

    :ivar path: the file that freezes it; its name implies the version of control groups
    """

    path: str

    @property
    def freezes_in_place(self) -> bool:
        """Return whether a waiting system call continues after a thaw, instead of being restarted.

        Then it keeps the files that it was called with, even if they were closed since (``TASK_FREEZABLE``)."""
        return self.path.endswith(V1)

    @property
    def thawing(self) -> str:
        """Return the value that thaws the group when it is written to its file."""
        return "THAWED" if self.path.endswith(V1) else "0"

    def is_requested(self, host: Host) -> bool:
        """Return whether the group is frozen, or is being frozen."""
        return host.text(self.path) in ("FROZEN", "FREEZING", "1")

    def is_frozen(self, host: Host) -> bool:
        """Return whether no process of the group can run; true for a group that is gone."""
        if self.path.endswith(V1):
            state = host.text(self.path)
        else:
            state = "FROZEN" if "frozen 1" in host.lines(f"{os.path.dirname(self.path)}/cgroup.events") else "THAWED"
        return state == "FROZEN" or host.text(self.path) is None

    @contextlib.contextmanager
    def locked(self, host: Host, timeout: float, failure: Failure = TimeoutError) -> Iterator[int | None]:
        """Exclude other processes that freeze or thaw the group.

        The lock is on a file of the host, which, unlike the group's directory, the tenant cannot lock. It ends with
        the last process that inherited it.

        :returns: the open file; None if the group is gone
        :raises Exception: ``failure``: another process has the lock for longer than ``timeout`` seconds
        """
        if not host.is_directory(os.path.dirname(self.path)):
            yield None
            return
        name = hashlib.blake2b(self.path.encode("utf-8", "surrogateescape"), digest_size=7).digest()
        with byte_held(GROUPS, int.from_bytes(name, "big"), timeout, lambda told: failure(
                f"control group {os.path.dirname(self.path)}: {told}")) as fd:
            yield fd

    def freeze(self) -> None:
        """Start freezing the group."""
        self._write("FROZEN" if self.path.endswith(V1) else "1")

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        self._write(self.thawing)

    def _write(self, text: str) -> None:
        try:
            write_attribute(self.path, text)
        except OSError as error:
            if os.path.exists(self.path):  # else the container has ended
                raise HostActionFailed(f"writing {text} to {self.path} failed: {error.strerror}") from error


def of_container(pid: int, host: Host) -> Freezer | None:
    """Return the control group of the container that a process belongs to; None if it belongs to none.

    If both versions are mounted, that of version 1 if the engine created a group in it, whichever of them names it:
    version 1 names no group of a process whose first thread has ended.
    """
    known = list(hierarchies(pid, host))
    names = dict.fromkeys(group[0] for _, _, path in known if (group := CONTAINER.match(path)))
    return next((Freezer(f"{mount}{name}/{file}") for mount, file, _ in known for name in names
                 if not is_own(name, mount, host) and os.path.exists(f"{mount}{name}/{file}")), None)


def is_own(group: str, mount: str, host: Host) -> bool:
    """Return whether this process is in a group itself, as in a container."""
    return any(f"{path}/".startswith(f"{group}/") for found, _, path in hierarchies(os.getpid(), host)
               if found == mount)


def hierarchies(pid: int, host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield mount point, file and the process's group of each hierarchy that can freeze."""
    groups = controlgroups.of(pid, host)
    if "freezer" in groups:
        yield f"{ROOT}/freezer", V1, groups["freezer"]
    if "" in groups:
        yield ROOT, V2, groups[""]
        yield f"{ROOT}/unified", V2, groups[""]


@contextlib.contextmanager
def frozen(group: Freezer, host: Host, *others: Freezer) -> Iterator[None]:
    """Keep containers frozen within the block. The block must have a time limit below FROZEN_TIMEOUT.

    :raises HostActionFailed: one cannot be frozen in time
    :raises ThawedMeanwhile: one ran while the block did
    """
    groups = (group, *others)
    with locked() as fd, contextlib.ExitStack() as stack:
        locks = {each: _taken(each, host, stack) for each in groups}
        running = {each: lock for each, lock in locks.items() if lock is not None and not each.is_requested(host)}
        if running:
            stack.enter_context(requested(running, fd))
        for each in groups:
            if not wait_until(functools.partial(each.is_frozen, host), FREEZE_TIMEOUT, POLL_INTERVAL):
                raise HostActionFailed(f"control group {each.path} cannot be frozen within {FREEZE_TIMEOUT:g} s: a "
                                       "process of that container waits in the kernel. Stop the container, then try "
                                       "again")
        yield
        for each in groups:
            if not each.is_frozen(host):
                raise ThawedMeanwhile(f"control group {each.path} was thawed while its processes were inspected; try "
                                      "again")


def _taken(group: Freezer, host: Host, stack: contextlib.ExitStack) -> int | None:
    """Lock a group unless it is frozen by its user, or by a process that copies its root.

    :returns: the open file of its lock; None if it was not locked, or is gone
    :raises HostActionFailed: another process is working on it
    """
    try:
        return stack.enter_context(group.locked(host, 0 if group.is_requested(host) else FREEZE_TIMEOUT))
    except TimeoutError as error:
        if group.is_requested(host):
            return None
        raise HostActionFailed(f"{error}; try again") from error


@contextlib.contextmanager
def requested(groups: Mapping[Freezer, int], fd: int) -> Iterator[None]:
    """Freeze groups of one version, and thaw them when the block ends or this process does.

    :param groups: each with the open file of its lock
    :param fd: of the locked file
    """
    paths, value = [group.path for group in groups], next(iter(groups)).thawing
    command = ["sh", "-c", THAW, "thaw", str(FROZEN_TIMEOUT), str(LOCK), value, *paths]
    # The child inherits all locks: until it ends, no other process can freeze anything.
    with holding(command, paths[0], THAW_TIMEOUT, "the thaw helper does not start",
                 pass_fds=[fd, *groups.values()]) as process:
        try:
            os.pwrite(fd, "\n".join(paths).encode(), 0)
            for group in groups:
                group.freeze()
            yield
        finally:
            release(process, THAW_TIMEOUT)
            thaw_recorded(fd)


@contextlib.contextmanager
def locked() -> Iterator[int]:
    """Hold the lock of all searches, after thawing a group that a killed one left frozen.

    :raises HostActionFailed: another search does not end
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(FileLock(LOCK, LOCK_TIMEOUT).held())
        except OSError as error:
            raise HostActionFailed(f"cannot freeze a container: {error}") from error
        thaw_recorded(fd)
        yield fd


def thaw_recorded(fd: int) -> None:
    """Thaw the groups that the locked file names, and clear its entries of running ones.

    :raises HostActionFailed: one cannot be thawed
    """
    failed = dict[str, HostActionFailed]()
    for path in (paths := os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines()):
        try:
            Freezer(path).thaw()
        except HostActionFailed as error:
            failed[path] = error
    if paths:
        os.ftruncate(fd, 0)
        os.pwrite(fd, "\n".join(failed).encode(), 0)
    for failure in failed.values():
        raise failure


def kill(pid: int) -> None:
    """Kill a container that created control groups in which it may have frozen processes itself.

    With version 1 a frozen process does not end when it is killed, and nothing else thaws it. Other containers are
    left to their engine.

    Killed processes cannot freeze groups again, so the groups are thawed afterwards.

    :param pid: the container's first process
    """
    host = Host()
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(closing(os.pidfd_open(pid)))
        except (OSError, ValueError):
            return  # it has ended
        group = of_container(pid, host)
        top = os.path.dirname(group.path) if group else ""
        if group is None or not group.freezes_in_place or not next(os.walk(top), ("", [], []))[1]:
            return
        signal.pidfd_send_signal(process, signal.SIGKILL)

        def has_ended() -> bool:
            for directory, before in controlgroups.walk(top):
                if before:
                    with contextlib.suppress(OSError):  # the group was removed
                        write_attribute(f"{directory}/{V1}", group.thawing)
            return is_readable(process, 0)

        wait_until(has_ended, KILL_TIMEOUT, KILL_INTERVAL)


def thaw_left() -> None:
    """Thaw the containers that a killed search left frozen."""
    with locked():
        pass
