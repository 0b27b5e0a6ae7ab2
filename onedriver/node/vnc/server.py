"""The port of a container's console. Small, because it waits as long as its container runs: it reads nothing, and
starts a program for each visitor.

It ends with the container's first process, of which it has a handle from the start, or when the driver ends it.
"""

import contextlib
import select
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
                visits = [visit for visit in visits if visit.poll() is None]
                visitor, _ = port.accept()
                with visitor:
                    if len(visits) < MOST_VISITORS:
                        visits.append(begun(module, name, visitor))


def begun(module: str, name: str, visitor: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, name, str(visitor.fileno())],
                            pass_fds=[visitor.fileno()], start_new_session=True)


if __name__ == "__main__":
    main(sys.argv[1:])
