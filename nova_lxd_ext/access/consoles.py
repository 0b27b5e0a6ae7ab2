# SPDX-License-Identifier: Apache-2.0
"""Serve serial consoles of all servers to nova's serial proxy at one TCP port of this host.

Nova gives the proxy the port and, as the path to request, a token. Clients without a token get no console.
"""

import errno
import socket
import threading
import time

from nova import exception, objects
from nova.console import type as console_type
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines import consolebridge
from containerhost.engines.contract import Console, Engine, Status
from containerhost.linux.poll import wait_while
from nova_lxd_ext.access import consolesession
from nova_lxd_ext.access.console_tokens import ConsoleTokens
from nova_lxd_ext.instance.states import States

LOG = logging.getLogger(__name__)

MAX_CLIENTS = 100  # concurrent clients on this host, authenticated or not
HANDOVER_TIMEOUT = 5.0  # s for the previous client to disconnect
POLL_INTERVAL = 0.1  # s
TAKEN = frozenset({errno.EADDRINUSE, errno.EACCES})  # the port is unusable, others may be usable


class Consoles:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._tokens = ConsoleTokens(conf.consoleauth.token_ttl)
        self._listening: socket.socket | None = None
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, str | None] = {}

    def serial(self, instance: objects.Instance) -> console_type.ConsoleSerial:
        """Return how the server's console can be reached now.

        :raises InstanceNotReady: the server is not running
        :raises ConsoleTypeUnavailable: it cannot listen at ``[serial_console] proxyclient_address``
        :raises SocketPortRangeExhaustedException: no port of ``[serial_console] port_range`` is free
        """
        state = self._states.require(instance)
        if state.status is not Status.RUNNING:
            raise exception.InstanceNotReady(instance_id=instance.uuid)
        host = self._conf.serial_console.proxyclient_address
        with self._lock:
            if self._listening is None:
                self._listening = listening(host, self._conf.serial_console.port_range)
                threading.Thread(target=self._accept, args=(self._listening,), name="consoles", daemon=True).start()
            port = self._listening.getsockname()[1]
        return console_type.ConsoleSerial(host, port, f"/{self._tokens.issue(state.name)}")

    def close(self) -> None:
        """Close the port and every session."""
        with self._lock:
            listening, self._listening = self._listening, None
            if listening is not None:
                consolebridge.hang_up(listening)
                listening.close()
            for client in self._clients:
                consolebridge.hang_up(client)

    def _accept(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                client, _ = listening.accept()
            except OSError as error:
                if self._listening is listening:
                    LOG.warning("A console client cannot be accepted: %s", error)
                    time.sleep(POLL_INTERVAL)
                continue
            self.admit(client)

    def admit(self, client: socket.socket) -> None:
        """Serve a connection in its own thread."""
        with self._lock:
            admitted = self._listening is not None and (len(self._clients) < MAX_CLIENTS or self._make_room())
            if admitted:
                self._clients[client] = None
        if not admitted:
            LOG.warning("A console client is refused: %d are connected already", MAX_CLIENTS)
            client.close()
            return
        threading.Thread(target=self._serve, args=(client,), name="console", daemon=True).start()

    def _make_room(self) -> bool:
        """Close the oldest connection without a token: nova's proxy sends its token immediately.

        :returns: whether there was one; the caller holds the lock
        """
        oldest = next((client for client, container in self._clients.items() if container is None), None)
        if oldest is not None:
            del self._clients[oldest]
            consolebridge.hang_up(oldest)
        return oldest is not None

    def _serve(self, client: socket.socket) -> None:
        try:
            consolesession.serve(client, self._tokens.container, lambda name: self._attach(client, name))
        finally:
            with self._lock:
                self._clients.pop(client, None)
            client.close()

    def _attach(self, client: socket.socket, name: str) -> Console:
        """Attach a client and disconnect the previous one, whose closed browser may not have been noticed."""
        with self._lock:
            if client not in self._clients:
                raise errors.EngineBusy(f"the request for the console of {name} was too slow: others wait")
            for other, container in self._clients.items():
                if container == name:
                    consolebridge.hang_up(other)
            self._clients[client] = name
        wait_while(lambda: self._has_client(name, client), HANDOVER_TIMEOUT)
        return self._engine.console(name)

    def _has_client(self, name: str, client: socket.socket) -> bool:
        with self._lock:
            return any(container == name for other, container in self._clients.items() if other is not client)


def listening(host: str, port_range: str) -> socket.socket:
    """Return a listening socket at the first free port.

    :param port_range: ``first:end``, end not included
    :raises ConsoleTypeUnavailable: it cannot listen at ``host``
    """
    first, end = map(int, port_range.split(":"))
    for port in range(first, end):
        try:
            return socket.create_server((host, port))
        except OSError as error:
            if error.errno not in TAKEN:
                raise exception.ConsoleTypeUnavailable(
                    f"Unavailable console type serial: its host cannot listen at {host} ({error}); see "
                    "[serial_console]proxyclient_address there") from error
    raise exception.SocketPortRangeExhaustedException(host=host)
