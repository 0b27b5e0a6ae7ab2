# SPDX-License-Identifier: Apache-2.0
"""A visitor of a console. This process has the console and knows nothing of the visitor but a socket's bytes; the
process that talks with the visitor can reach nothing but that socket.

A console has one visitor: whoever comes last, and knows the password, since a browser that was closed may be noticed
late.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable

from containerhost import consolebridge
from containerhost.engines import Console
from containerhost.errors import ContainerHostError
from onedriver.node import onlyone
from onedriver.node.vnc import session

HAND_OVER = 20  # s in which the visitor before must have let go, and the engine of him
KEPT = 8192  # bytes: more than a screen
REFUSED = b"\r\nThe console cannot be had now: the container does not run, or somebody else has its console.\r\n"


def holder(name: str) -> str:
    return f"one-console-visit/{name}"


def main(visitor: socket.socket, name: str, password: str | None, attach: Callable[[], Console],
         printed: Callable[[], bytes]) -> None:
    """:param attach: to the container's console
    :param printed: what it printed so far
    """
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            session.main(visitor, theirs, password, name, keep_place)
        finally:
            os._exit(0)  # whatever happens, it never goes on as this process does
    visitor.close()
    theirs.close()
    with ours:
        if ours.recv(len(session.ADMITTED)) == session.ADMITTED:
            try:
                serve(ours, name, attach, printed)
            except (ContainerHostError, onlyone.NotAlone):
                ours.sendall(REFUSED)
                while ours.recv(KEPT):  # it is to be read before the visitor goes
                    pass


def keep_place() -> None:
    """Tell the process that has the port."""
    os.write(sys.stdout.fileno(), session.ADMITTED)


def serve(ours: socket.socket, name: str, attach: Callable[[], Console], printed: Callable[[], bytes]) -> None:
    """:raises NotAlone, ContainerHostError: the console cannot be had"""
    onlyone.end(holder(name), HAND_OVER)
    place = onlyone.take(holder(name))  # until this process ends
    with contextlib.closing(attach()) as console:
        threading.Thread(target=give_way, args=(place, ours), daemon=True).start()
        ours.sendall(printed()[-KEPT:])
        consolebridge.bridge(ours, console)


def give_way(place: socket.socket, ours: socket.socket) -> None:
    """To the next visitor, or to the end of the VM."""
    onlyone.await_end(place).detach()  # the kernel closes it once nothing of this process is left
    consolebridge.hang_up(ours)
