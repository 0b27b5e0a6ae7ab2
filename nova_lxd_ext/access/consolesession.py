# SPDX-License-Identifier: Apache-2.0
"""Serve one client of a console: the proxy's greeting with its token, then bytes both ways until either end closes.

Nova's proxies greet with ``CONNECT <path> HTTP/1.1`` where a console has a path, and wait for a 200
(nova.console.websocketproxy).
"""

import contextlib
import re
import socket
import time
from collections.abc import Callable

from oslo_log import log as logging

from containerhost import errors
from containerhost.engines import consolebridge
from containerhost.engines.contract import Console

LOG = logging.getLogger(__name__)

GREETING = re.compile(rb"CONNECT /([A-Za-z0-9_-]+) HTTP/1\.1\r\n\r\n")
LONGEST_GREETING = 256  # bytes
GREETING_TIMEOUT = 10  # s
WELCOME = b"HTTP/1.1 200 OK\r\n\r\n"
FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


def serve(client: socket.socket, container: Callable[[str], str | None], attach: Callable[[str], Console]) -> None:
    """Serve one connection to its end; a client's errors are not raised.

    :param container: returns the container of a token
    :param attach: returns the console of a container
    """
    with contextlib.suppress(OSError):  # the client has disconnected
        client.settimeout(GREETING_TIMEOUT)
        token = greeting(client)
        name = container(token) if token else None
        if name is None:
            LOG.warning("A console was requested without a valid token, from %s", client.getpeername())
            client.sendall(FORBIDDEN)
            return
        try:
            console = attach(name)
        except errors.ContainerHostError as error:
            LOG.warning("The console of container %s cannot be opened: %s", name, error)
            client.sendall(UNAVAILABLE)
            return
        with contextlib.closing(console):
            client.sendall(WELCOME)
            # Keepalive detects a proxy that ended without closing the connection.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            consolebridge.bridge(client, console)


def greeting(client: socket.socket) -> str | None:
    """Read the token; None if the greeting is invalid. Read no further, because input follows.

    :raises TimeoutError: it was not complete within GREETING_TIMEOUT
    """
    text, end = b"", time.monotonic() + GREETING_TIMEOUT
    while len(text) < LONGEST_GREETING and not text.endswith(b"\r\n\r\n"):
        client.settimeout(max(0.001, end - time.monotonic()))
        byte = client.recv(1)
        if not byte:
            break
        text += byte
    found = GREETING.fullmatch(text)
    return found[1].decode() if found else None
