# SPDX-License-Identifier: Apache-2.0
"""The side of the front-end that listens: onemonitord's port, on loopback."""

import socket
import threading

import fixtures
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from onedriver import monitor
from onedriver.monitor import Message, Type
from tests.unit.onedriver import frontend

ADDRESS = "127.0.0.1"
POLL = 0.2  # s between two polls


class FrontEnd(fixtures.Fixture):
    """:param private: its key, for messages that only it can read
    :ivar messages: what came, and over what: ``udp`` or ``tcp``
    """

    def __init__(self, private: rsa.RSAPrivateKey | None = None) -> None:
        super().__init__()
        self._decrypt = frontend.decryption(private) if private else bytes
        self._key = private.public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1).decode() if private else ""

    def _setUp(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self._over = threading.Event()
        self._tcp = socket.create_server((ADDRESS, 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((ADDRESS, self.port))
        for listener, listen in ((self._tcp, self._accept), (self._udp, self._receive)):
            listener.settimeout(POLL)
            thread = threading.Thread(target=self._until_over, args=(listener, listen), daemon=True)
            thread.start()
            self.addCleanup(thread.join)
        self.addCleanup(self._over.set)

    def _until_over(self, listener: socket.socket, listen) -> None:
        with listener:
            while not self._over.is_set():
                try:
                    listen()
                except TimeoutError:
                    continue

    def _accept(self) -> None:
        connection, _ = self._tcp.accept()
        with connection, connection.makefile("rb") as stream:
            self.messages.append(("tcp", frontend.read(stream.read(), self._decrypt)))

    def _receive(self) -> None:
        self.messages.append(("udp", frontend.read(self._udp.recv(monitor.DATAGRAM_LIMIT), self._decrypt)))

    def texts(self, kind: Type, success: bool = True) -> list[str]:
        return [message.text for _, message in self.messages if (message.type, message.success) == (kind, success)]

    def configuration(self, address: str = ADDRESS) -> str:
        """As onemonitord writes it, with the shortest periods."""
        periods = "".join(f"<{kind}>1</{kind}>" for kind in ("BEACON_HOST", "MONITOR_HOST", "MONITOR_VM", "STATE_VM",
                                                             "SYNC_STATE_VM", "SYSTEM_HOST", "EXEC_VM"))
        return (f"<MONITOR_CONFIGURATION><HOST_ID>3</HOST_ID><NETWORK><ADDRESS>0.0.0.0</ADDRESS><MONITOR_ADDRESS>"
                f"{address}</MONITOR_ADDRESS><PORT>{self.port}</PORT><PUBKEY>{self._key}</PUBKEY></NETWORK><PROBES_PERIOD>{periods}"
                "</PROBES_PERIOD></MONITOR_CONFIGURATION>")
