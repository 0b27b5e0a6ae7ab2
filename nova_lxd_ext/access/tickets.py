# SPDX-License-Identifier: Apache-2.0
"""Issue tickets for servers' consoles. A ticket is a secret that nova gives only to its proxy."""

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable

LENGTH = 32  # random bytes


@dataclasses.dataclass
class _Ticket:
    name: str
    text: str
    expires: float


class Tickets:
    """Issue and check the tickets with which nova's console proxy connects to containers.

    :param lifetime: seconds after which a ticket expires unless it is requested again
    """

    def __init__(self, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}

    def issue(self, name: str) -> str:
        """Return the container's ticket, the same until it expires, because nova requests it again to check."""
        with self._lock:
            self._drop_expired()
            ticket = self._tickets.setdefault(name, _Ticket(name, secrets.token_urlsafe(LENGTH), 0))
            ticket.expires = self._clock() + self._lifetime
            return ticket.text

    def container(self, text: str) -> str | None:
        """Return the container of a ticket; None if it is invalid or expired."""
        with self._lock:
            self._drop_expired()
            return next((ticket.name for ticket in self._tickets.values()
                         if secrets.compare_digest(ticket.text.encode(), text.encode())), None)

    def _drop_expired(self) -> None:
        now = self._clock()
        self._tickets = {name: ticket for name, ticket in self._tickets.items() if ticket.expires > now}
