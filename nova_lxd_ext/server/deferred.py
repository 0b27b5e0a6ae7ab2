# SPDX-License-Identifier: Apache-2.0
"""Defer actions that nova-compute's start must not wait for, or that require it to have succeeded."""

import threading
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Deferred:
    """Call functions in separate threads once nova-compute has started.

    A failed start is repeated, and would repeat each request. Besides, ending a move sends requests to other hosts
    and needs the lock that nova holds while it updates its resources.
    """

    def __init__(self) -> None:
        self._held: list[tuple[float, Callable[[], None]]] | None = []
        self._timers: list[threading.Timer] = []

    def call(self, delay: float, uuid: str, function: Callable[..., None], *args: Any) -> None:
        """Call a function ``delay`` seconds after the end of the start; an error is logged.

        :param uuid: the server or servers concerned
        """
        def call() -> None:
            try:
                function(*args)
            except Exception:  # clients of other services raise errors that nova does not translate
                LOG.exception("An interrupted operation could not be ended; nova-compute tries again at its next start",
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
        """Record that nova-compute has started. Idempotent."""
        held, self._held = self._held or [], None
        for delay, call in held:
            self._begin(delay, call)

    def stop(self) -> None:
        """Call nothing until the next start, which a SIGHUP triggers in the same process."""
        for timer in self._timers:
            timer.cancel()
        self._held, self._timers = [], []
