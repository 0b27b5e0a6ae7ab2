# SPDX-License-Identifier: Apache-2.0
"""Issue tokens for servers' consoles. A token is a secret that nova gives only to its proxy."""

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable

LENGTH = 32  # random bytes


@dataclasses.dataclass
class _Token:
    name: str
    text: str
    expires: float


class ConsoleTokens:
    """Issue and check the tokens with which nova's console proxy connects to containers.

    :param lifetime: seconds after which a token expires unless it is requested again
    """

    def __init__(self, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[str, _Token] = {}

    def issue(self, name: str) -> str:
        """Return the container's token, the same until it expires, because nova requests it again to check."""
        with self._lock:
            self._drop_expired()
            token = self._tokens.setdefault(name, _Token(name, secrets.token_urlsafe(LENGTH), 0))
            token.expires = self._clock() + self._lifetime
            return token.text

    def container(self, text: str) -> str | None:
        """Return the container of a token; None if it is invalid or expired."""
        with self._lock:
            self._drop_expired()
            return next((token.name for token in self._tokens.values()
                         if secrets.compare_digest(token.text.encode(), text.encode())), None)

    def _drop_expired(self) -> None:
        now = self._clock()
        self._tokens = {name: token for name, token in self._tokens.items() if token.expires > now}
