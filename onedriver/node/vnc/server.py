# SPDX-License-Identifier: Apache-2.0
"""The port of a container's console. Small, because it waits as long as its container runs: it reads nothing, and
starts a program for each visitor.

It ends with the container's first process, of which it has a handle from the start, or when the driver ends it.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from onedriver.node import onlyone

MOST_VISITORS = 4  # at a time, admitted or not


def main(argv: Sequence[str]) -> None:
    """:param argv: module of the program for a visitor, the container's name, and handles: the port, the socket that
        holds the console's place, the container's first process
    """
    module, name, *handles = argv
    port, place = (socket.socket(fileno=int(handle)) for handle in handles[:2])
    first_process = int(handles[2])
    port.setblocking(False)
    visits: list[subprocess.Popen[bytes]] = []
    while True:
        ready, _, _ = select.select([port.fileno(), place.fileno(), first_process], [], [])
        if first_process in ready:
            return
        if place.fileno() in ready and (ending := onlyone.asked_to_end(place)):
            ending.detach()  # the kernel closes it once nothing of this process is left
            return
        if port.fileno() in ready:
            with contextlib.suppress(OSError):  # who came is gone already
                visitor, _ = port.accept()
                with visitor:
                    visits = with_room([visit for visit in visits if visit.poll() is None])
                    if len(visits) < MOST_VISITORS:
                        visits.append(begun(module, name, visitor))


def begun(module: str, name: str, visitor: socket.socket) -> subprocess.Popen[bytes]:
    """Start the program for a visitor, which writes to its standard output once the visitor is admitted."""
    return subprocess.Popen([sys.executable, "-m", module, name, str(visitor.fileno())],
                            pass_fds=[visitor.fileno()], stdout=subprocess.PIPE, start_new_session=True)


def with_room(visits: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """End the oldest visit that is not admitted, if all places are taken: a viewer greets at once.

    :param visits: those that go on, the oldest first
    :returns: those that are left
    """
    oldest = next((visit for visit in visits if not is_admitted(visit)), None)
    if len(visits) < MOST_VISITORS or oldest is None:
        return visits
    os.killpg(oldest.pid, signal.SIGKILL)
    oldest.wait()
    return [visit for visit in visits if visit is not oldest]


def is_admitted(visit: subprocess.Popen[bytes]) -> bool:
    return visit.stdout is not None and bool(select.select([visit.stdout], [], [], 0)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
