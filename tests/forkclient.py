# SPDX-License-Identifier: Apache-2.0
"""Run a command of this project in a process of the tests' fork server (``forkserver.py``), and end as that does.

    forkclient.py SOCKET SERVER MODULE COMMAND ARGUMENT…

Started without the site's packages. COMMAND is started instead where a process of the server's would not be the same.
"""

import marshal
import os
import signal
import socket
import sys

NAMESPACES = ("mnt", "net", "pid", "user", "uts")


def is_beside(server: str) -> bool:
    """Return whether this process is in the server's namespaces."""
    try:
        return all(os.readlink(f"/proc/self/ns/{name}") == os.readlink(f"/proc/{server}/ns/{name}")
                   for name in NAMESPACES)
    except OSError:
        return False


def main(address: str, server: str, module: str, command: str, *arguments: str) -> int:
    """Return the exit status of the requested process."""
    if os.geteuid() != 0 or not is_beside(server):
        os.execv(command, [command, *arguments])
    umask = os.umask(0)
    os.umask(umask)
    request = os.memfd_create("request")
    os.write(request, marshal.dumps((module, [os.fsencode(word) for word in arguments], dict(os.environb), umask)))
    os.lseek(request, 0, os.SEEK_SET)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [b"1"], [0, 1, 2, os.open(".", os.O_RDONLY), request])
    answer = connection.recv(16)
    if not answer:
        print("the fork server ended", file=sys.stderr)
        return 125
    status = int(answer)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


sys.exit(main(*sys.argv[1:]))
