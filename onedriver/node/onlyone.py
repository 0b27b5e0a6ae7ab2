"""One process of a name: the holder listens on an abstract socket, which the kernel takes away with the process.

No file is left behind or lost, whatever copies or deletes folders meanwhile. Only the holder's own user, and root, can
end it.
"""

import os
import socket
import struct
import time

from onedriver.errors import DriverError

CREDENTIALS = struct.Struct("3i")  # process, user, group


class NotAlone(DriverError):
    """Another process has the name and keeps it."""


def take(name: str) -> socket.socket:
    """The name, for as long as the socket is open.

    :raises NotAlone: another process has it
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
    except OSError as error:
        listener.close()
        raise NotAlone(f"{name} runs already") from error
    listener.listen()
    return listener


def await_end(listener: socket.socket) -> socket.socket:
    """Until a process of the same user, or of root, wants this one to end.

    :returns: what it waits at: it is to stay open until this process has ended
    """
    while True:
        connection = asked_to_end(listener)
        if connection:
            return connection


def asked_to_end(listener: socket.socket) -> socket.socket | None:
    """Of :func:`await_end`, the next that comes; None when he has no right to it."""
    connection, _ = listener.accept()
    if user(connection) in (os.getuid(), 0):
        return connection
    connection.close()
    return None


def end(name: str, limit: float) -> bool:
    """End the process that has the name, and whoever takes it meanwhile, until nobody has it.

    :param limit: seconds for it to end
    :returns: whether there was one
    :raises NotAlone: it belongs to another user, or goes on
    """
    until, found = time.monotonic() + limit, False
    # The kernel may close a connection of a process that ends before it closes what that listens at.
    while (connection := connected(name)) is not None:
        found = True
        with connection:
            if user(connection) != os.getuid() and os.getuid() != 0:
                raise NotAlone(f"{name} was started by user {user(connection)}, who alone can end it")
            try:
                connection.settimeout(max(0.001, until - time.monotonic()))
                connection.recv(1)
            except TimeoutError as error:
                raise NotAlone(f"{name} did not end within {limit:g} s") from error
            except ConnectionResetError:
                pass  # it ended without a look at who waits
    return found


def connected(name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{name}")
    except ConnectionRefusedError:
        connection.close()
        return None
    return connection


def user(connection: socket.socket) -> int:
    found: int = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[1]
    return found


def names() -> frozenset[str]:
    """All that are held now, by whomever. To connect would be to end the holder."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        return frozenset(line.rstrip("\n").partition(" @")[2] for line in table)
