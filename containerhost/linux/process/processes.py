# SPDX-License-Identifier: Apache-2.0
"""Read the host's processes, and enter the root directory of a tenant's process safely.

A process that starts a program (execve(2)) and waits for a FUSE file meanwhile also blocks readers of its ``stat``,
``maps`` or ``ns`` in /proc; its ``status``, ``comm``, ``cgroup``, ``cmdline`` and ``fd`` can be read. The former are
read in a worker thread with a timeout, and nothing of the container while such a thread waits, or after its reads
took too long.
"""

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from containerhost.errors import HostActionFailed
from containerhost.linux import freezer
from containerhost.linux.files import closing
from containerhost.linux.freezer import Freezer
from containerhost.linux.process import timelimit
from containerhost.linux.process.leakybucket import LeakyBuckets
from containerhost.linux.sysfs import Host

Result = TypeVar("Result")

ANSWER_TIMEOUT = 1.0  # s; the kernel answers within some microseconds
USUAL = 0.05  # s, on a busy host
BURST = 5.0  # s of waiting for a container, above which it is not asked
LEAK_RATE = 1 / 60  # s of waiting that are forgotten in a second
STRANGERS_TIMEOUT = 2.0  # s
NS_GET_PARENT = 0xB702  # linux/nsfs.h

_waiting: dict[str, Future[Any]] = {}  # by container
_buckets = LeakyBuckets(BURST, LEAK_RATE)

GONE = (FileNotFoundError, ProcessLookupError)

# Processes come and go while they are looked at: one that is gone has nothing open.


class ProcReadTimeout(HostActionFailed):
    """Signal that the process cannot be inspected now."""


def read_with_timeout(pid: int, act: Callable[[], Result], timeout: float = ANSWER_TIMEOUT, *, counted: bool = True
                      ) -> Result:
    """Return the result of ``act``, which reads a container's process, within a timeout.

    :param timeout: seconds
    :param counted: whether its time counts as waiting; not for large reads that have their own limit
    :raises ProcReadTimeout: it has expired, an earlier read of the container still waits, or its reads took too long
    """
    if is_hosts(pid):
        return act()
    for container in [key for key, call in list(_waiting.items()) if call.done()]:
        _waiting.pop(container, None)
    if (_waiting or _buckets) and ((container := container_of(pid)) in _waiting or _buckets.overflow(container)):
        raise read_timeout(pid)
    start = time.monotonic()
    try:
        return timelimit.within(timeout, f"look at process {pid}", act)
    except timelimit.StillRunning as error:
        _waiting[container_of(pid)] = error.call
        raise read_timeout(pid) from error
    finally:
        if counted and (waited := time.monotonic() - start) > USUAL:
            _buckets.add(container_of(pid), waited - USUAL)


def read_timeout(pid: int) -> ProcReadTimeout:
    return ProcReadTimeout(f"process {pid} ({name(pid)}) of {container_of(pid)} does not let the host look at it: it "
                           "waits in the kernel, mostly for a FUSE file system. Stop that container, then try again")


def is_hosts(pid: int) -> bool:
    """Return whether a process is in the PID namespace of the host's /proc, or is gone.

    Its ``status`` shows it, too, but lists all its groups: a tenant's process can have 65536 (setgroups(2)).
    """
    try:
        with closing(os.pidfd_open(pid)) as fd:
            numbers = _words(f"/proc/self/fdinfo/{fd}", b"NSpid:")
    except ProcessLookupError:
        return True
    except OSError:  # a thread
        numbers = []
    return len(numbers or _words(f"/proc/{pid}/status", b"NSpid:")) <= 1


def group_of(pid: int) -> Freezer | None:
    """Return the control group of the container that a process belongs to; None if it belongs to none.

    For an ended thread, version 1 reports none."""
    found = freezer.of_container(pid, Host())
    if found or is_hosts(pid):
        return found
    return next((group for thread in threads(pid) if (group := freezer.of_container(thread, Host()))), None)


def container_of(pid: int) -> str:
    """Return what identifies a container for all its processes: the control group that its engine created, if any."""
    group = group_of(pid)
    return f"the container of {os.path.dirname(group.path)}" if group else f"process {pid}"


def threads(pid: int) -> list[int]:
    """Return the ids of the threads of a process; none if it is gone."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except GONE:
        return []


def pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def namespace(pid: int, kind: str = "pid") -> str | None:
    """Return a namespace of a process; None if there is no such process.

    :param kind: as in /proc/PID/ns
    :raises ProcReadTimeout:
    """
    def read() -> str | None:
        try:
            return os.readlink(f"/proc/{pid}/ns/{kind}")
        except OSError:
            return None

    return read_with_timeout(pid, read)


def began(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is gone or a zombie.

    With its pid it identifies a process uniquely.

    :raises ProcReadTimeout:
    """
    fields = stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else None


def is_still(pid: int, start: int) -> bool:
    """Return whether a process is the one with this start time; true if it cannot be inspected."""
    try:
        return began(pid) == start
    except ProcReadTimeout:
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """Identify a process uniquely until the next boot.

    :ivar began: its start, in clock ticks since boot: another process may get the same number later
    """

    pid: int
    began: int | None

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, began(pid))

    @property
    def lives(self) -> bool:
        return self.began is not None and is_still(self.pid, self.began)


def runs(pid: int) -> bool:
    """Return whether the process exists, and is not a zombie."""
    try:
        return began(pid) is not None
    except ProcReadTimeout:
        return True


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat (proc(5)) from the third on; none if it is gone.

    :raises ProcReadTimeout:
    """
    def read() -> list[str]:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # The second field is the program's name in parentheses, which may hold anything.
                return file.read().rpartition(")")[2].split()
        except OSError:
            return []

    return read_with_timeout(pid, read)


def members(home: str, first: int) -> Iterator[int]:
    """Yield the processes of a container: of its control group, and in its PID namespace or below it.

    The latter may have been started by an administrator (nsenter(1)), also from another container (``docker run
    --pid container:…``). Processes in other containers' groups are read for at most STRANGERS_TIMEOUT.

    :param home: the PID namespace
    :param first: one of them
    :raises ProcReadTimeout: a process of it cannot be inspected
    """
    group, patience = group_of(first), STRANGERS_TIMEOUT
    for process in pids():
        other = group_of(process)
        if group and other == group:
            found = not is_hosts(process)
        elif group and other and patience <= 0:
            continue
        else:
            start = time.monotonic()
            try:
                found = belongs(process, home)
            except ProcReadTimeout:
                if container_of(process) == container_of(first):
                    raise
                continue
            finally:
                patience -= time.monotonic() - start if other else 0
        if found:
            yield process


def alone(home: str, first: int) -> Iterator[int]:
    """Yield the processes of a container with this PID namespace, without those that cannot be inspected.

    :param first: one of them
    """
    group = group_of(first)
    for process in pids():
        if group in (None, group_of(process)):
            with contextlib.suppress(ProcReadTimeout):
                if namespace(process) == home:
                    yield process


def belongs(pid: int, home: str) -> bool:
    """Return whether a process is in a PID namespace, or in a nested one."""
    return home in spaces(pid)


def spaces(pid: int) -> list[str]:
    """Return the PID namespace of a process and its ancestors, innermost first; none if it is gone.

    Source: ioctl_ns(2).

    :raises ProcReadTimeout:
    """
    def read() -> list[str]:
        found = list[str]()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # above its reader's own, none is shown
            fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            while True:
                stack.callback(os.close, fd)
                found.append(f"pid:[{os.fstat(fd).st_ino}]")
                fd = fcntl.ioctl(fd, NS_GET_PARENT)
        return found

    return read_with_timeout(pid, read)


def table(pid: int, file: str) -> list[str]:
    """Return the lines of a table of a process in /proc, split at line feeds only: a tenant chooses names.

    :raises OSError: it cannot be read
    """
    with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="replace", newline="\n") as lines:
        return [line.removesuffix("\n") for line in lines]


def real_user(pid: int) -> int | None:
    """Return the user id of a process; None if it is gone.

    The owner of its directory in /proc is root for any process that made itself undumpable (proc(5))."""
    return next(map(int, _words(f"/proc/{pid}/status", b"Uid:")), None)


def _words(file: str, key: bytes) -> list[bytes]:
    """Return the fields of a line of a file in /proc (proc(5)); none if the process is gone."""
    try:
        with open(file, "rb", buffering=0) as lines:
            _, _, rest = lines.read().partition(b"\n" + key)
    except OSError:
        return []
    return rest.partition(b"\n")[0].split()


def name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone meanwhile"


# A container's root belongs to its tenant: each step below it is opened by itself and no link is ever followed,
# because an absolute link would lead into the host's own root.

STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(pid: int, steps: tuple[str, ...]) -> int | None:
    """Open a directory below the root of a process; None if it is missing or not a directory."""
    try:
        fd = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostActionFailed(f"cannot inspect process {pid}: {error.strerror}") from error
    for step in steps:
        try:
            with closing(fd):
                fd = os.open(step, STEP, dir_fd=fd)
        except OSError:
            return None
    return fd
