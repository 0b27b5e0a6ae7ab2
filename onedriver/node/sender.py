# SPDX-License-Identifier: Apache-2.0
"""Send messages to onemonitord: by datagrams, or by a connection for those that must not be lost."""

import socket
import time

from onedriver import monitor
from onedriver.monitor import Message, Type
from onedriver.monitorconfig import MonitorConfig

TIMEOUT = 10  # seconds to connect
SURE = frozenset({Type.STATE_VM, Type.EXEC_VM})


def send(config: MonitorConfig, kind: Type, success: bool, text: str) -> None:
    """Send a message; raise OSError if it cannot be sent."""
    message = Message(kind, success, config.host, int(time.time()), text)
    parts = monitor.datagrams(message, config.encrypt)
    if kind in SURE or max(map(len, parts)) > monitor.DATAGRAM_LIMIT:
        with socket.create_connection((config.address, config.port), TIMEOUT) as connection:
            connection.sendall(monitor.wire(message, config.encrypt))
        return
    family, carrying, protocol, _, address = socket.getaddrinfo(config.address, config.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, carrying, protocol) as carrier:
        for data in parts:
            carrier.sendto(data, address)
