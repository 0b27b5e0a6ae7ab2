# SPDX-License-Identifier: Apache-2.0
"""Serial consoles: one TCP port of this host, at which nova's serial proxy gets the console of any server.

Nova tells the proxy the port and, as the path to ask for, a ticket. Whoever else reaches the port gets nothing.
"""

import contextlib
import socket
import threading
import time

from nova import exception, objects
from nova.console import type as console_type
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import consolebridge, errors
from containerhost.engines import Console, Engine, Status
from containerhost.linux.poll import wait_while
from nova_lxd_ext.access import consolesession
from nova_lxd_ext.access.tickets import Tickets
from nova_lxd_ext.server.states import States

LOG = logging.getLogger(__name__)

MOST_VISITORS = 100  # at a time on this host, greeted or not
HAND_OVER = 5.0  # s in which the visitor before must have let go
PAUSE = 0.1  # s


class Consoles:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._tickets = Tickets(conf.consoleauth.token_ttl)
        self._listening: socket.socket | None = None
        self._lock = threading.Lock()
        self._visitors: dict[socket.socket, str | None] = {}

    def serial(self, instance: objects.Instance) -> console_type.ConsoleSerial:
        """Where the server's console is to be had now.

        :raises InstanceNotReady: it does not run
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
        return console_type.ConsoleSerial(host, port, f"/{self._tickets.issue(state.name)}")

    def close(self) -> None:
        """End the port and every session."""
        with self._lock:
            listening, self._listening = self._listening, None
            if listening is not None:
                consolebridge.hang_up(listening)
                listening.close()
            for visitor in self._visitors:
                consolebridge.hang_up(visitor)

    def _accept(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                visitor, _ = listening.accept()
            except OSError as error:
                if self._listening is listening:
                    LOG.warning("A visitor of the consoles cannot be let in: %s", error)
                    time.sleep(PAUSE)
                continue
            self.admit(visitor)

    def admit(self, visitor: socket.socket) -> None:
        """Serve a connection, in a thread of its own."""
        with self._lock:
            admitted = self._listening is not None and (len(self._visitors) < MOST_VISITORS or self._make_room())
            if admitted:
                self._visitors[visitor] = None
        if not admitted:
            LOG.warning("A visitor of the consoles is turned away: %d are there already", MOST_VISITORS)
            visitor.close()
            return
        threading.Thread(target=self._serve, args=(visitor,), name="console", daemon=True).start()

    def _make_room(self) -> bool:
        """Hang up on the connection that has waited longest without a ticket: nova's proxy sends its own at once.

        :returns: whether there was one; the caller holds the lock
        """
        oldest = next((visitor for visitor, container in self._visitors.items() if container is None), None)
        if oldest is not None:
            del self._visitors[oldest]
            consolebridge.hang_up(oldest)
        return oldest is not None

    def _serve(self, visitor: socket.socket) -> None:
        try:
            consolesession.serve(visitor, self._tickets.container, lambda name: self._attach(visitor, name))
        finally:
            with self._lock:
                self._visitors.pop(visitor, None)
            visitor.close()

    def _attach(self, visitor: socket.socket, name: str) -> Console:
        """A console has one visitor: whoever comes last, since a browser that was closed may be noticed late."""
        with self._lock:
            if visitor not in self._visitors:
                raise errors.EngineBusy(f"the console of {name} was asked for too slowly: others wait")
            for other, container in self._visitors.items():
                if container == name:
                    consolebridge.hang_up(other)
            self._visitors[visitor] = name
        wait_while(lambda: self._is_visited(name, visitor), HAND_OVER)
        return self._engine.console(name)

    def _is_visited(self, name: str, visitor: socket.socket) -> bool:
        with self._lock:
            return any(container == name for other, container in self._visitors.items() if other is not visitor)


def listening(host: str, port_range: str) -> socket.socket:
    """A listening socket at the first free port.

    :param port_range: ``first:end``, end not included
    """
    first, end = map(int, port_range.split(":"))
    for port in range(first, end):
        with contextlib.suppress(OSError):
            return socket.create_server((host, port))
    raise exception.SocketPortRangeExhaustedException(host=host)
