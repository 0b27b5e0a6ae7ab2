"""One visitor of a console: the proxy's greeting with its ticket, then bytes both ways until either end is gone.

Nova's proxies greet with ``CONNECT <path> HTTP/1.1`` where a console has a path, and wait for a 200
(nova.console.websocketproxy).
"""

import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable

from containerhost import errors
from containerhost.engines import Console

LOG = logging.getLogger(__name__)

GREETING = re.compile(rb"CONNECT /([A-Za-z0-9_-]+) HTTP/1\.1\r\n\r\n")
LONGEST_GREETING = 256  # bytes
GREETING_LIMIT = 10  # s
CHUNK = 4096  # bytes
WELCOME = b"HTTP/1.1 200 OK\r\n\r\n"
FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


def serve(visitor: socket.socket, container: Callable[[str], str | None], attach: Callable[[str], Console]) -> None:
    """Serve one connection to its end; nothing is raised for what a visitor does.

    :param container: the container of a ticket
    :param attach: the console of a container
    """
    with contextlib.suppress(OSError):  # a visitor who has gone
        visitor.settimeout(GREETING_LIMIT)
        ticket = greeting(visitor)
        name = container(ticket) if ticket else None
        if name is None:
            LOG.warning("A console was asked for without a valid ticket, from %s", visitor.getpeername())
            visitor.sendall(FORBIDDEN)
            return
        try:
            console = attach(name)
        except errors.ContainerHostError as error:
            LOG.warning("The console of container %s cannot be had: %s", name, error)
            visitor.sendall(UNAVAILABLE)
            return
        with contextlib.closing(console):
            visitor.sendall(WELCOME)
            bridge(visitor, console)


def greeting(visitor: socket.socket) -> str | None:
    """The ticket; None when what came is no greeting. Not a byte more is read: what follows is typed."""
    text = b""
    while len(text) < LONGEST_GREETING and not text.endswith(b"\r\n\r\n"):
        byte = visitor.recv(1)
        if not byte:
            break
        text += byte
    found = GREETING.fullmatch(text)
    return found[1].decode() if found else None


def bridge(visitor: socket.socket, console: Console) -> None:
    """Carry bytes both ways until the visitor or the console ends; then both have."""
    visitor.settimeout(None)
    # A proxy that died without a word is noticed by the kernel.
    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    printing = threading.Thread(target=_print, args=(visitor, console), name="console-out", daemon=True)
    printing.start()
    try:
        while data := visitor.recv(CHUNK):
            console.send(data)
    except (OSError, errors.EngineError) as error:
        LOG.debug("A console's visitor has gone: %s", error)
    finally:
        console.close()
        printing.join()


def _print(visitor: socket.socket, console: Console) -> None:
    try:
        while (data := console.receive()) is not None:
            visitor.sendall(data)
    except OSError as error:
        LOG.debug("A console's visitor has gone: %s", error)
    finally:
        hang_up(visitor)


def hang_up(visitor: socket.socket) -> None:
    """Wake whoever waits for the visitor; the socket stays open for its owner to close."""
    with contextlib.suppress(OSError):  # it has hung up itself
        visitor.shutdown(socket.SHUT_RDWR)
