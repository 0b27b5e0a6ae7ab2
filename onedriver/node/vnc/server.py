# SPDX-License-Identifier: Apache-2.0
"""Listen at the port of a container's console, reading nothing, and start a program for each client.

It imports little, because it exists as long as its container runs.

It ends with the container's first process, to which it has a handle from the start, or when the driver ends it.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from onedriver.node import single_instance

MAX_CLIENTS = 4  # concurrent clients, authenticated or not
KILL_TIMEOUT = 1.0  # s


def main(argv: Sequence[str]) -> None:
    """Serve a console's port.

    :param argv: module of the program for a client, the container's name, and handles: the port, the socket that
        represents the console, the container's first process
    """
    module, name, *fds = argv
    port, place = (socket.socket(fileno=int(fd)) for fd in fds[:2])
    first_process = int(fds[2])
    port.setblocking(False)
    workers: list[subprocess.Popen[bytes]] = []
    while True:
        ready, _, _ = select.select([port.fileno(), place.fileno(), first_process], [], [])
        if first_process in ready:
            return
        if place.fileno() in ready and (ending := single_instance.asked_to_end(place)):
            ending.detach()  # the kernel closes it with this process
            return
        if port.fileno() in ready:
            with contextlib.suppress(OSError):  # the client has disconnected
                client, _ = port.accept()
                with client:
                    workers = with_room([worker for worker in workers if worker.poll() is None])
                    if len(workers) < MAX_CLIENTS:
                        workers.append(begun(module, name, client))


def begun(module: str, name: str, client: socket.socket) -> subprocess.Popen[bytes]:
    """Start the program for a client, which writes to its standard output when it admits the client."""
    return subprocess.Popen([sys.executable, "-m", module, name, str(client.fileno())],
                            pass_fds=[client.fileno()], stdout=subprocess.PIPE, start_new_session=True)


def with_room(workers: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """End the oldest worker with an unadmitted client if there is no room: a viewer greets immediately.

    :param workers: running ones, oldest first
    :returns: the remaining ones
    """
    oldest = next((worker for worker in workers if not is_admitted(worker)), None)
    if len(workers) < MAX_CLIENTS or oldest is None:
        return workers
    os.killpg(oldest.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the kernel
        oldest.wait(KILL_TIMEOUT)
    return [worker for worker in workers if worker is not oldest]


def is_admitted(worker: subprocess.Popen[bytes]) -> bool:
    return worker.stdout is not None and bool(select.select([worker.stdout], [], [], 0)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
