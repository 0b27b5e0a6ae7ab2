# SPDX-License-Identifier: Apache-2.0
"""Carry bytes between a client's socket and a container's console."""

import contextlib
import logging
import socket
import threading

from containerhost import errors
from containerhost.engines.contract import Console

LOG = logging.getLogger(__name__)

CHUNK = 4096  # bytes


def bridge(client: socket.socket, console: Console) -> None:
    """Carry bytes both ways until the client or the console ends; then both are closed."""
    client.settimeout(None)
    printing = threading.Thread(target=_print, args=(client, console), name="console-out", daemon=True)
    printing.start()
    try:
        while data := client.recv(CHUNK):
            console.send(data)
    except (OSError, errors.EngineError) as error:
        LOG.debug("A console's client disconnected: %s", error)
    finally:
        console.close()
        printing.join()


def _print(client: socket.socket, console: Console) -> None:
    try:
        while (data := console.receive()) is not None:
            client.sendall(data)
    except OSError as error:
        LOG.debug("A console's client disconnected: %s", error)
    finally:
        hang_up(client)


def hang_up(client: socket.socket) -> None:
    """Wake the thread that waits for the client; the socket stays open for its owner to close."""
    with contextlib.suppress(OSError):  # the client has already closed
        client.shutdown(socket.SHUT_RDWR)
