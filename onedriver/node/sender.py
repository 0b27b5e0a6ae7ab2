# SPDX-License-Identifier: Apache-2.0
"""Send messages to onemonitord: datagrams, and a connection of its own for what may not be lost."""

import socket
import time

from onedriver import monitor
from onedriver.monitor import Message, Type
from onedriver.monitorconfig import MonitorConfig

TIMEOUT = 10  # seconds to be connected
SURE = frozenset({Type.STATE_VM, Type.EXEC_VM})


class Sender:
    def __init__(self, config: MonitorConfig) -> None:
        self._config = config

    def send(self, kind: Type, success: bool, text: str) -> None:
        """Send a message; raise OSError if it cannot be sent."""
        message = Message(kind, success, self._config.host, int(time.time()), text)
        parts = monitor.datagrams(message, self._config.encrypt)
        if kind in SURE or max(map(len, parts)) > monitor.DATAGRAM_LIMIT:
            self._connected(monitor.wire(message, self._config.encrypt))
        else:
            self._datagrams(parts)

    def _connected(self, data: bytes) -> None:
        with socket.create_connection((self._config.address, self._config.port), TIMEOUT) as connection:
            connection.sendall(data)

    def _datagrams(self, datagrams: list[bytes]) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(
            self._config.address, self._config.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as carrier:
            for data in datagrams:
                carrier.sendto(data, address)
