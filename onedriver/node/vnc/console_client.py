# SPDX-License-Identifier: Apache-2.0
"""Serve a client of a console, copying bytes only; an unprivileged process handles the protocol.

A console has one client, the last one with the password, because a closed browser may be detected late.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable

from containerhost.engines import consolebridge
from containerhost.engines.contract import Console
from containerhost.errors import ContainerHostError
from onedriver.node import single_instance
from onedriver.node.vnc import session

HANDOVER_TIMEOUT = 20  # s for the previous client, and the engine, to disconnect
KEPT = 8192  # bytes; more than a screen
REFUSED = b"\r\nThe console is unavailable: the container does not run, or another client uses its console.\r\n"


def holder(name: str) -> str:
    return f"one-console-client/{name}"


def main(client: socket.socket, name: str, password: str | None, attach: Callable[[], Console],
         printed: Callable[[], bytes]) -> None:
    """Serve one client of a console."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            session.main(client, theirs, password, name, hold_console)
        finally:
            os._exit(0)  # in any case: the child must not continue as this process
    client.close()
    theirs.close()
    with ours:
        if ours.recv(len(session.ADMITTED)) == session.ADMITTED:
            try:
                serve(ours, name, attach, printed)
            except (ContainerHostError, single_instance.AlreadyRunning):
                ours.sendall(REFUSED)
                while ours.recv(KEPT):  # wait until the client has read it
                    pass


def hold_console() -> None:
    """Notify the process that owns the port."""
    os.write(sys.stdout.fileno(), session.ADMITTED)


def serve(ours: socket.socket, name: str, attach: Callable[[], Console], printed: Callable[[], bytes]) -> None:
    """Serve the console to one client; raise AlreadyRunning or ContainerHostError if it is unavailable."""
    single_instance.end(holder(name), HANDOVER_TIMEOUT)
    place = single_instance.take(holder(name))  # held until this process ends
    attached = threading.Event()
    threading.Thread(target=give_way, args=(place, ours, attached), daemon=True).start()
    with contextlib.closing(attach()) as console:
        ours.sendall(printed()[-KEPT:])
        attached.set()
        consolebridge.bridge(ours, console)


def give_way(place: socket.socket, ours: socket.socket, attached: threading.Event) -> None:
    """End the session for the next client, or at the end of the VM, even while the engine does not respond."""
    single_instance.await_end(place).detach()  # the kernel closes it with this process
    if not attached.is_set():
        os._exit(0)
    consolebridge.hang_up(ours)
