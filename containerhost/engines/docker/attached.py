# SPDX-License-Identifier: Apache-2.0
"""Wrap a connection to Docker that was upgraded to a command's streams."""

import contextlib
import socket
from typing import Any


class Attached:
    """Read and write the streams of a command that runs in a container on Docker."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket = connection._sock
        self._socket.settimeout(None)
        # Read from this buffer, not from the socket: it may hold data that arrived with the response's header.
        self._reader = connection._response.raw._fp.fp

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end."""
        return bytes(self._reader.read(size))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end_of_input(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection, even while another thread reads."""
        with contextlib.suppress(OSError):  # the peer closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()
