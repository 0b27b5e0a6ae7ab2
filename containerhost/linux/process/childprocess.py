# SPDX-License-Identifier: Apache-2.0
"""Act in a child process, which can be abandoned, where the kernel may wait forever.

This concerns a container's files, and devices whose driver or firmware hangs.

A tenant can block the kernel: an unanswered read of a FUSE file holds the lock of the directory into which it is
copied, and every lookup or creation there then waits uninterruptibly (D). A thread in that state keeps its process,
with all its locks and sockets, beyond SIGKILL. A child holds no resource of its parent, and neither the container
nor the device is accessed again while one waits.
"""

import contextlib
import functools
import gc
import os
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NoReturn, TypeVar

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.linux.poll import is_readable
from containerhost.linux.process.processes import began, name, namespace, pids, real_user

Result = TypeVar("Result")

TIMEOUT = 10.0  # s; what is done to a container's files takes some milliseconds
KILLED = 1.0  # s in which a killed child ends, if it can
KNOWN = 4096  # containers; more are forgotten, which costs a look at the host's processes for each
NAME = "guest-{}"  # of a child, by the container's first process; ps(1) shows it
COMM_LENGTH = 15  # letters of a process's name

_left: set[int] = set()  # children that did not end
_known: set[tuple[int, int | None]] = set()  # first processes of containers, with their start times


def run_for_device(device: str, act: Callable[[], Result], problem: str, timeout: float,
                   keep: Collection[int] = ()) -> Result:
    """Run ``act`` in a child process and return its result, for actions on which a driver may hang.

    :param device: its address
    :param act, problem, keep: of :func:`run`
    :param timeout: seconds
    :raises HostActionFailed: as :func:`run`
    """
    own = f"d-{device}"[:COMM_LENGTH]
    waiting = next(_waiting_named(own, pids, 0, timeout), None)
    if waiting:
        raise HostActionFailed(f"{problem}: the host's process {waiting} waits for the device's driver since an "
                               "earlier try. Reset the card or restart the host if it does not continue")
    return _run(own, act, problem, keep, timeout)


def run(container: int, act: Callable[[], Result], problem: str, keep: Collection[int] = ()) -> Result:
    """Run ``act`` in a child process and return its result; its changes in memory are lost.

    :param container: first process of the container
    :param act: returns and raises what can be pickled, and does not log
    :param problem: message if the kernel refuses
    :param keep: fds that ``act`` uses; the others are closed in the child
    :raises HostActionFailed: as ``act`` does, or the kernel refuses, the time is over, or a child waits for the
        container since an earlier time
    """
    _require_none_waits(container, problem)
    return _run(NAME.format(container), act, problem, keep, TIMEOUT)


def _run(own: str, act: Callable[[], Result], problem: str, keep: Collection[int], timeout: float) -> Result:
    """Run ``act`` in a child process of this name, and return its result or raise its error.

    :param own: the child's name
    """
    try:
        answer = _answer_of_child(own, act, keep, time.monotonic() + timeout)
    except OSError as error:
        raise HostActionFailed(f"{problem}: the host cannot create a process: {error.strerror}") from error
    if answer is None:
        raise HostActionFailed(f"{problem}: not done within {timeout:g} s")
    if not answer:
        raise HostActionFailed(f"{problem}: the process that does it was ended")
    result, failure = pickle.loads(answer)  # noqa: S301  (a copy of this process has written it)
    if isinstance(failure, OSError):
        raise HostActionFailed(f"{problem}: {failure.strerror or failure}") from failure
    if failure is not None:
        raise failure
    return result


def _require_none_waits(container: int, problem: str) -> None:
    """Refuse a container for which a child waits: of this process, or, at its first check, of any process."""
    _left.difference_update([child for child in list(_left) if _has_ended(child)])
    key = container, began(container)
    waiting = next((child for child in list(_left) if name(child) == NAME.format(container)), None)
    if key not in _known:
        if len(_known) >= KNOWN:
            _known.clear()
        _known.add(key)
        others = functools.partial(_children, int(time.monotonic()))
        waiting = waiting or next(_waiting_named(NAME.format(container), others, key[1] or 0, TIMEOUT), None)
    if waiting:
        raise HostActionFailed(f"{problem}: the host's process {waiting} waits for the container since an earlier try. "
                               "It continues when the container's processes release it, or end")


@functools.lru_cache(maxsize=1)
def _children(second: int) -> tuple[int, ...]:
    """Return the children of any process that act on containers' files, read once in a second of the clock.

    A host may have thousands of processes, and hundreds of containers to notify at once."""
    return tuple(pid for pid in pids() if name(pid).startswith(NAME.format("")))


def _waiting_named(own: str, among: Callable[[], Iterable[int]], start: int, timeout: float) -> Iterator[int]:
    """Yield children of any process that have exceeded their time.

    :param own: their name
    :param among: returns the pids to look at
    :param start: clock ticks since boot; an older child waits for another container with that pid
    :param timeout: seconds that they may run
    """
    hosts, late = namespace(os.getpid()), time.clock_gettime(time.CLOCK_BOOTTIME) - timeout
    latest = late * os.sysconf("SC_CLK_TCK")
    for pid in among() if start < latest else ():
        # Its name, any process may choose.
        if name(pid) == own and namespace(pid) == hosts and real_user(pid) == 0:
            when = began(pid)
            if when is not None and start <= when < latest:
                yield pid


def _answer_of_child(own: str, act: Callable[[], object], keep: Collection[int], end: float) -> bytes | None:
    """Return the pickled outcome; None if it does not come in time, empty if the child ended without one."""
    reader, writer = os.pipe()
    with closing(reader):
        with closing(writer):
            child = os.fork()
            if child == 0:
                _act(own, act, writer, keep)
        try:
            return _read(reader, end)
        finally:
            _end(child)


def _act(own: str, act: Callable[[], object], writer: int, keep: Collection[int]) -> NoReturn:
    """Act, write the outcome, and exit this process in any case."""
    try:
        gc.disable()  # what the parent has is not this process's to end
        _close_all_but({writer, *keep})
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(own)
        result, error = None, None
        try:
            result = act()
        except Exception as failure:
            error = failure
        with open(writer, "wb") as pipe:
            pipe.write(pickle.dumps((result, error)))
    finally:
        os._exit(0)


def _close_all_but(kept: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # of the list itself, which is closed already
                os.close(fd)


def _read(pipe: int, end: float) -> bytes | None:
    """Read to the end; None if that does not come in time."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:  # where nova's threads are eventlet's, select has no poll
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, end - time.monotonic())):
            part = os.read(pipe, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _end(child: int) -> None:
    """End a child, or abandon it if it cannot be ended."""
    os.kill(child, signal.SIGKILL)
    with contextlib.suppress(OSError), closing(os.pidfd_open(child)) as end:
        is_readable(end, KILLED)
    if not _has_ended(child):
        _left.add(child)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:  # somebody else has waited for it
        return True
