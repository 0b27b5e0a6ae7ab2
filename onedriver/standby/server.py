"""The process that stands by. It holds nothing and decides nothing: it may be killed at any time.

    python -m onedriver.standby.server DRIVER

It ends by itself when nobody has called for a while, and when its code or the node's options have changed.
"""

import contextlib
import functools
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from containerhost.filelock import FileLock
from onedriver.standby import client

OPEN_FILES = 1 << 16  # of each call
IDLE = 600  # s without a call; monitoring calls more often
LOOK = 5  # s between two looks at its files
LARGEST = 1 << 20  # bytes of a message
PATIENCE = 1.0  # s within which a caller says what it wants
STANDARD = (0, 1, 2)  # input, output and error
CREDENTIALS = struct.Struct("3i")  # of a peer, see unix(7), SO_PEERCRED: process, user, group


class Call(NamedTuple):
    """:ivar origin: the file of the caller's code that sent it"""

    origin: str
    words: Sequence[str]
    environment: Mapping[str, str]


def main() -> int:
    driver = sys.argv[1]
    place = Path(client.place(driver))
    place.parent.mkdir(mode=0o700, exist_ok=True)
    os.umask(0o022)
    lift_limits()
    lock = FileLock(place.with_name(f"{place.name}.lock"), 0)
    with contextlib.suppress(TimeoutError), lock.held():
        stand_by(driver, place)
        lock.path.unlink()  # who found it held has gone
    return 0


def lift_limits() -> None:
    """Do without the resource limits of the call that left this process: every later call would have them."""
    for which in (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_DATA,
                  resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        _, hard = resource.getrlimit(which)
        most = OPEN_FILES if which == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
        try:
            resource.setrlimit(which, (most, most))
        except (ValueError, OSError):  # without CAP_SYS_RESOURCE no limit is raised
            resource.setrlimit(which, (hard, hard))


def stand_by(driver: str, place: Path) -> None:
    cli = importlib.import_module(f"{driver}.cli")
    for name in cli.LOADED:
        importlib.import_module(name)
    code = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    files = Files([*filter(None, code), str(importlib.import_module(f"{driver}.conf").place())])
    gc.freeze()  # a fork would copy what the collector only looks at
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        listener.listen()
        try:
            Standby(listener, cli.main, files).serve()
        finally:
            place.unlink(missing_ok=True)


class Files:
    """Whether files are what they were."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._before = self._now()

    def changed(self) -> bool:
        return self._now() != self._before

    def _now(self) -> list[tuple[int, int, int] | None]:
        return [marks(path) for path in self._paths]


def marks(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Standby:
    """:param act: does a call with the process's own environment and standard input, output and error"""

    def __init__(self, listener: socket.socket, act: Callable[[Sequence[str]], int], files: Files) -> None:
        self._listener = listener
        self._act = act
        self._files = files
        self._callers: dict[int, socket.socket] = {}  # by the process that works for them
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._take)
        last = time.monotonic()
        while True:
            for key, _ in self._selector.select(LOOK):
                key.data()
                last = time.monotonic()
            if not self._callers and (time.monotonic() - last > IDLE or self._files.changed()):
                return

    def _take(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE)
        handles: list[int] = []
        try:
            connection.send(client.READY)
            content, handles, _, _ = socket.recv_fds(connection, LARGEST, len(STANDARD))
            call = parsed(content)
            if len(handles) == len(STANDARD) and is_root(connection) and call.origin == client.__file__ and (
                    not self._files.changed()):
                self._begin(call, handles, connection)
                return
        except (OSError, ValueError):
            pass  # the caller does it itself
        finally:
            for handle in handles:
                os.close(handle)
        connection.close()

    def _begin(self, call: Call, handles: Sequence[int], connection: socket.socket) -> None:
        process = os.fork()
        if process == 0:
            self._work(call, handles, connection)
        os.setpgid(process, process)
        ended = os.pidfd_open(process)
        self._callers[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._abandon, process))
        self._selector.register(ended, selectors.EVENT_READ, functools.partial(self._end, process, ended))

    def _work(self, call: Call, handles: Sequence[int], connection: socket.socket) -> None:
        """Never returns. The caller is told also when the process that stands by is killed meanwhile."""
        try:
            connection.send(client.TAKEN)
            os.setpgid(0, 0)
            for number, handle in enumerate(handles):
                os.dup2(handle, number)
            close_all_but({*STANDARD, connection.fileno()})
            os.environ.clear()
            os.environ.update(call.environment)
            status = self._act(call.words)
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(str(status).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _abandon(self, process: int) -> None:
        """The caller was killed, so what it began is."""
        connection = self._callers.get(process)
        if connection and connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
            os.killpg(process, signal.SIGKILL)

    def _end(self, process: int, ended: int) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        os.waitpid(process, 0)
        with self._callers.pop(process) as connection:
            if connection.fileno() in self._selector.get_map():
                self._selector.unregister(connection)


def close_all_but(kept: Collection[int]) -> None:
    """Of this process's open files, which may be other callers' connections."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)


def parsed(content: bytes) -> Call:
    """:raises ValueError: it is none"""
    origin, count, *rest = os.fsdecode(content).split("\0")
    words, environment = rest[:int(count)], rest[int(count):]
    return Call(origin, words, dict(pair.split("=", 1) for pair in environment))


def is_root(connection: socket.socket) -> bool:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(peer)[1] == 0


if __name__ == "__main__":
    sys.exit(main())
