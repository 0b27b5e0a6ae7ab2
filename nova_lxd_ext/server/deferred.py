# SPDX-License-Identifier: Apache-2.0
"""Do later what nova-compute's start must not wait for, or do at all before it has succeeded."""

import threading
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Deferred:
    """Call functions in threads of their own once nova-compute has started.

    A start that fails is repeated, and would send each request once more. Besides, what ends a move asks other hosts
    and needs the lock that nova holds while it updates its resources.
    """

    def __init__(self) -> None:
        self._held: list[tuple[float, Callable[[], None]]] | None = []
        self._timers: list[threading.Timer] = []

    def call(self, delay: float, uuid: str, function: Callable[..., None], *args: Any) -> None:
        """Call a function ``delay`` seconds after the start's end; an error is logged.

        :param uuid: the server, or the servers, that it is about
        """
        def call() -> None:
            try:
                function(*args)
            except Exception:  # of a client of another service, say, which nova does not translate
                LOG.exception("What was interrupted could not be ended; nova-compute tries again at its next start",
                              instance_uuid=uuid)

        if self._held is None:
            self._begin(delay, call)
        else:
            self._held.append((delay, call))

    def _begin(self, delay: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(delay, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def started(self) -> None:
        """Note that nova-compute has started. Idempotent."""
        held, self._held = self._held or [], None
        for delay, call in held:
            self._begin(delay, call)

    def stop(self) -> None:
        """Call nothing any more until the next start, which a SIGHUP brings about in the same process."""
        for timer in self._timers:
            timer.cancel()
        self._held, self._timers = [], []
