# SPDX-License-Identifier: Apache-2.0
"""Act on a container's files in a child process, which can be left behind.

A tenant can make the kernel wait: a read of a FUSE file that is never answered holds the lock of a directory into which
it was to be copied, and whoever looks up or makes a name there then waits in a state that no signal ends (D). A thread
in that state keeps its process, with every lock and socket that it has, beyond SIGKILL. A child keeps nothing of its
parent's. The time of the host is shared out: a container that took long is not looked into again for many times as
long.
"""

import contextlib
import gc
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn, TypeVar

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.process.processes import began, name, namespace, pids, real_user

Result = TypeVar("Result")

TIMEOUT = 10.0  # s; what is done to a container's files takes some milliseconds
LONG = 1.0  # s, from which on a look counts as long
PAUSE = 60  # times the length of a long look, until the next
KILLED = 1.0  # s in which a killed child ends, if it can
KNOWN = 4096  # containers; more are forgotten, which costs a look at the host's processes for each
NAME = "guest-{}"  # of a child, by the container's first process; ps(1) shows it

_left: set[int] = set()  # children that did not end
_next_look: dict[tuple[int, int | None], float] = {}  # by first process and its start time: on the monotonic clock


def run(container: int, act: Callable[[], Result], problem: str, keep: Collection[int] = ()) -> Result:
    """Return what ``act`` returns, run in a child process: what it changes in memory is lost.

    :param container: first process of the container
    :param act: returns and raises what can be pickled, and does not log
    :param problem: what to say where the kernel refuses
    :param keep: fds that ``act`` uses; the others are closed in the child
    :raises HostActionFailed: as ``act`` does, or the kernel refuses, the time is over, or the container has made the
        host wait before
    """
    key = (container, began(container))
    _require_turn(key, problem)
    start = time.monotonic()
    try:
        answer = _answer_of_child(container, act, keep, start + TIMEOUT)
    except OSError as error:
        raise HostActionFailed(f"{problem}: the host makes no process: {error.strerror}") from error
    end = time.monotonic()
    _next_look[key] = end + PAUSE * (end - start) if end - start > LONG else end
    if answer is None:
        raise HostActionFailed(f"{problem}: not done within {TIMEOUT:g} s")
    if not answer:
        raise HostActionFailed(f"{problem}: the process that does it was ended")
    result, failure = pickle.loads(answer)  # noqa: S301  (a copy of this process has written it)
    if isinstance(failure, OSError):
        raise HostActionFailed(f"{problem}: {failure.strerror or failure}") from failure
    if failure is not None:
        raise failure
    return result


def _require_turn(key: tuple[int, int | None], problem: str) -> None:
    """Refuse a container that has taken too much of the host's time: of this process's, or, at this one's first look,
    of any other's."""
    _left.difference_update([child for child in list(_left) if _has_ended(child)])
    waiting = next((child for child in list(_left) if name(child) == NAME.format(key[0])), None)
    if key not in _next_look:
        if len(_next_look) >= KNOWN:
            _next_look.clear()
        waiting = waiting or next(_waiting_in(key[0]), None)
    if waiting:
        raise HostActionFailed(f"{problem}: the host's process {waiting} waits for the container since an earlier try. "
                               "It goes on when the container's processes let go, or end")
    if (pause := _next_look.get(key, 0.0) - time.monotonic()) > 0:
        raise HostActionFailed(f"{problem}: the container made the host wait; it is tried again in {pause:.0f} s")


def _waiting_in(container: int) -> Iterator[int]:
    """Yield children of any process that act on the container's files for longer than they may."""
    now, own = time.clock_gettime(time.CLOCK_BOOTTIME), namespace(os.getpid())
    for pid in pids():
        # Its name, any process may choose.
        if name(pid) == NAME.format(container) and namespace(pid) == own and real_user(pid) == 0:
            start = began(pid)
            if start is not None and now - start / os.sysconf("SC_CLK_TCK") > TIMEOUT:
                yield pid


def _answer_of_child(container: int, act: Callable[[], object], keep: Collection[int], end: float) -> bytes | None:
    """Return the pickled outcome; None if there is none in time, nothing if the child has ended without."""
    reader, writer = os.pipe()
    with closing(reader):
        with closing(writer):
            child = os.fork()
            if child == 0:
                _act(container, act, writer, keep)
        try:
            return _read(reader, end)
        finally:
            _end(child)


def _act(container: int, act: Callable[[], object], writer: int, keep: Collection[int]) -> NoReturn:
    """Act, write the outcome, and end this process, whatever happens."""
    try:
        gc.disable()  # what the parent has is not this process's to end
        _close_all_but({writer, *keep})
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(NAME.format(container))
        result, error = None, None
        try:
            result = act()
        except Exception as failure:
            error = failure
        with os.fdopen(writer, "wb") as pipe:
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
    """Return all that comes; None if it has not come to its end in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    parts: list[bytes] = []
    while poll.poll(max(0.0, end - time.monotonic()) * 1000):
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def _end(child: int) -> None:
    """End a child, or leave it where it cannot be ended."""
    os.kill(child, signal.SIGKILL)
    end = time.monotonic() + KILLED
    while not _has_ended(child):
        if time.monotonic() > end:
            _left.add(child)
            return
        time.sleep(0.001)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:  # somebody else has waited for it
        return True
