# SPDX-License-Identifier: Apache-2.0
"""Ensure one process of a name: the holder listens on a socket in a directory that only its user can enter.

Root's is in /run, and that of another user in the user's home, so that no other user can take a name first; there is
one for every network namespace. The kernel closes the socket with the process. Its file may stay, without meaning:
the next holder removes it. A file with the process's pid would be enough to find the process, but not to end it: the
pid may have been reused, and only the socket shows when all its resources are closed.
"""

import contextlib
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux import lock
from containerhost.linux.files import Directory
from onedriver.errors import DriverError

RUN, HOME = Path("/run/onedriver"), ".onedriver"
NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
LONGEST = 107  # bytes; maximum length of a socket's path, see unix(7)
END = b"e"  # asks the holder to end; a process that only checks its existence sends nothing
TIMEOUT = 5.0  # s for a connecting process to send its request
LOCK_TIMEOUT = 30.0  # s; held while a process is asked to end


class AlreadyRunning(DriverError):
    """Signal that another process has the name and keeps it."""


def take(name: str) -> socket.socket:
    """Take the name for as long as the socket is open.

    :raises AlreadyRunning: another process has it
    :raises DriverError: its directory is missing
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with locked() as directory:
            if is_held(name):
                raise AlreadyRunning(f"{name} runs already")
            path = path_of(name)
            directory.unlink(path.name)
            listener.bind(str(path))
            listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def await_end(listener: socket.socket) -> socket.socket:
    """Wait until another process requests this one's end; the connection must stay open until this one has ended."""
    while True:
        connection = asked_to_end(listener)
        if connection:
            return connection


def asked_to_end(listener: socket.socket) -> socket.socket | None:
    """Return the next connection of :func:`await_end` that requests the end; None for a mere check."""
    connection, _ = listener.accept()
    try:
        connection.settimeout(TIMEOUT)
        if connection.recv(len(END)) == END:
            connection.settimeout(None)
            return connection
    except OSError:
        pass  # it closed the connection without a request
    connection.close()
    return None


def end(name: str, timeout: float) -> bool:
    """End the process that has the name, and any that takes it meanwhile, until it is free.

    :param timeout: seconds for it to end
    :returns: whether there was one
    :raises AlreadyRunning: it does not end
    """
    until, found = time.monotonic() + timeout, False
    # The kernel may close a connection of an ending process before the listening socket.
    while (connection := connected(name)) is not None:
        found = True
        with connection:
            try:
                connection.settimeout(max(0.001, until - time.monotonic()))
                connection.sendall(END)
                connection.recv(1)
            except TimeoutError as error:
                raise AlreadyRunning(f"{name} did not end within {timeout:g} s") from error
            except (BrokenPipeError, ConnectionResetError):
                pass  # it ended without accepting the connection
    if found:
        forget(name)
    return found


def forget(name: str) -> None:
    """Remove the file of a socket without a listener."""
    with locked() as directory:
        if not is_held(name):
            directory.unlink(path_of(name).name)


def connected(name: str) -> socket.socket | None:
    """Connect to the process that has the name; raise AlreadyRunning if too many processes wait for it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT)
    try:
        connection.connect(str(path_of(name)))
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    except TimeoutError as error:
        connection.close()
        raise AlreadyRunning(f"{name} does not answer") from error
    return connection


def names() -> frozenset[str]:
    """Return all names currently held by processes of this user."""
    with locked() as directory:
        found = [name.replace(":", "/") for name in directory.names()]
    return frozenset(filter(is_held, found))


def is_held(name: str) -> bool:
    connection = connected(name)
    if connection is None:
        return False
    connection.close()
    return True


@contextlib.contextmanager
def locked() -> Iterator[Directory]:
    """Open this user's directory with the lock for taking and removing names; raise DriverError if it fails."""
    place = directory()
    base = place.parents[1] if os.getuid() == 0 else place.parents[2]
    try:
        with Directory(base) as parent, parent.child(*place.relative_to(base).parts, create=True) as found, Directory(
                f"/proc/self/fd/{found.fd}", owner=os.getuid()) as checked:
            lock.acquire(checked.fd, LOCK_TIMEOUT, place)
            yield checked
    except OSError as error:
        raise DriverError(f"{place}, where processes of this user find one another, cannot be used: {error}") from error


def directory() -> Path:
    """Return the directory of this user, network namespace, and host, because hosts may share a home directory."""
    network = str(os.stat("/proc/self/ns/net").st_ino)
    if os.getuid() == 0:
        return RUN / network
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError as error:
        raise DriverError(f"user {os.getuid()} does not exist on the host (getent passwd) and has no home") from error
    return Path(home) / HOME / os.uname().nodename / network


def path_of(name: str) -> Path:
    """Return the path of the name's socket; raise DriverError if the name is too long or invalid for a socket."""
    path = directory() / name.replace("/", ":")
    if not NAME.fullmatch(name) or len(os.fsencode(path)) > LONGEST:
        raise DriverError(f"{name[:120]!r} is not a process name, or too long for the path of a socket, {path}")
    return path
