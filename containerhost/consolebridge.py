# SPDX-License-Identifier: Apache-2.0
"""Carries bytes between a visitor's socket and a container's console."""

import contextlib
import logging
import socket
import threading

from containerhost import errors
from containerhost.engines import Console

LOG = logging.getLogger(__name__)

CHUNK = 4096  # bytes


def bridge(visitor: socket.socket, console: Console) -> None:
    """Both ways until the visitor or the console ends; then both have."""
    visitor.settimeout(None)
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
