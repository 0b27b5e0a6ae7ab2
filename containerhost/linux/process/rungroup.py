# SPDX-License-Identifier: Apache-2.0
"""Keep a command with devices (``containerhost run``), and all its descendants, in a control group.

Each run has its own group at the top of each hierarchy it needs, ``/containerhost-run/NAME``; container tools create
theirs below. So a device is in use while the supervisor of the run, or any process of the group, lives.
"""

import contextlib
import functools
import os
import re
import signal
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux import controlgroups
from containerhost.linux.files import write_attribute
from containerhost.linux.poll import wait_until, wait_while
from containerhost.linux.process.processes import Process, began, namespace, pids, runs, threads
from containerhost.linux.sysfs import Host

DRIVER = "run"  # of the consumers in the records whose lives are those of runs
TOP = "/containerhost-run"
ROOT = Path("/sys/fs/cgroup")
# Own processes are in a group without others below it (cgroup-v2.rst, "No Internal Process Constraint").
LEAF = "command"
TERM_TIMEOUT = 10.0  # s for what a command left running to end by itself
KILL_TIMEOUT = 10.0  # s
POLL_INTERVAL = 0.1  # s
_SUPERVISOR = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+-[0-9]+)")


def supervisor() -> str:
    """Return this process as recorded: its pid, start time, and the namespaces in which these are valid."""
    return f"{os.getpid()}-{began(os.getpid())}-{_namespaces()}"


def has_ended(supervisor: str, name: str) -> bool:
    """Return whether a run's supervisor and all processes of its group have ended; False if unknown.

    :param supervisor: of :func:`supervisor`, in this boot
    :param name: of its group
    """
    found = _SUPERVISOR.fullmatch(supervisor)
    return (found is not None and found[3] == _namespaces() and not Process(int(found[1]), int(found[2])).lives
            and not members(name))


def members(name: str) -> tuple[int, ...]:
    """Return the processes of a run's group and of those below it, without this process and zombies."""
    group, host = f"{TOP}/{name}", Host()
    return tuple(pid for pid in pids() if pid != os.getpid() and any(
        f"{path}/".startswith(f"{group}/") for path in controlgroups.of(pid, host).values())
        and any(map(runs, threads(pid))))  # of a process whose first thread has ended, another may run


def cores() -> frozenset[int]:
    """Return the cores that runs use exclusively: those of processes bound to fewer cores than this one."""
    own, host, found = os.sched_getaffinity(0), Host(), set[int]()
    for pid in pids():
        if any(path.startswith(f"{TOP}/") for path in controlgroups.of(pid, host).values()):
            with contextlib.suppress(ProcessLookupError):
                bound = os.sched_getaffinity(pid)
                found |= bound if bound < own else set()
    return frozenset(found)


class RunGroup:
    """Manage a control group of this process and its children.

    :param name: unique among runs
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._hierarchy, self._former = _hierarchy()

    @property
    def path(self) -> str:
        """Return the parent of the container tools' groups, relative to the mount point."""
        return f"{TOP}/{self._name}"

    def enter(self) -> None:
        """Move this process into the group; its children inherit it.

        :raises HostActionFailed: the kernel refuses
        """
        leaf = Path(f"{self._hierarchy}{self.path}/{LEAF}")
        try:
            leaf.mkdir(parents=True)
            write_attribute(f"{leaf}/cgroup.procs", str(os.getpid()))
        except OSError as error:
            raise HostActionFailed(f"control group {leaf} cannot be used: {error.strerror}") from error

    def end(self) -> None:
        """Kill all processes that the command left running, and remove the group. This process leaves it before.

        :raises HostActionFailed: a process does not end
        """
        for number, timeout in ((signal.SIGTERM, TERM_TIMEOUT), (signal.SIGKILL, KILL_TIMEOUT)):
            wait_while(functools.partial(_signalled, self._name, number), timeout, POLL_INTERVAL)
        if left := members(self._name):
            raise HostActionFailed(f"processes {', '.join(map(str, left))} of {self.path} do not end")
        with contextlib.suppress(OSError):  # where the former group is gone, this one stays, empty
            write_attribute(f"{self._hierarchy}{self._former}/cgroup.procs", str(os.getpid()))
            wait_until(functools.partial(remove, self._name), KILL_TIMEOUT, POLL_INTERVAL)


def remove(name: str) -> bool:
    """Remove the groups of a run that has no processes. Idempotent.

    :returns: whether all are gone; another process may be removing some, or lack the rights
    """
    directories = [directory for top in (ROOT, *sorted(ROOT.iterdir()))
                   for directory, _, _ in os.walk(f"{top}{TOP}/{name}", topdown=False)]
    for directory in directories:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not any(map(os.path.exists, directories))


def _signalled(name: str, number: int) -> tuple[int, ...]:
    """Send a signal to all processes of a run's group, and return them."""
    found = members(name)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, number)
    return found


def _namespaces() -> str:
    """Return the ids of this process's PID and control group namespaces."""
    return "-".join(re.sub(r"\D", "", namespace(os.getpid(), kind) or "") for kind in ("pid", "cgroup"))


def _hierarchy() -> tuple[Path, str]:
    """Return a hierarchy's mount point and this process's group in it: version 2, or systemd's, or any.

    :raises HostActionFailed: no hierarchy is mounted
    """
    own = controlgroups.of(os.getpid(), Host())
    for mount, controller in ((ROOT, ""), (ROOT / "unified", ""), (ROOT / "systemd", "name=systemd"),
                              (ROOT / "pids", "pids")):
        if controller in own and (mount / "cgroup.procs").exists():
            return mount, own[controller].rstrip("/")
    raise HostActionFailed(f"no hierarchy of control groups is mounted at {ROOT}")
