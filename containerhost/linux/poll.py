# SPDX-License-Identifier: Apache-2.0
"""Poll for conditions without notification, and retry transient failures, each with a time limit."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

INTERVAL = 0.02  # s
T = TypeVar("T")


def wait_until(condition: Callable[[], object], timeout: float, interval: float = INTERVAL) -> bool:
    """Call ``condition`` until it is true: at once, every ``interval`` seconds, and once after ``timeout`` seconds."""
    return not wait_while(lambda: not condition(), timeout, interval)


def wait_while(condition: Callable[[], T], timeout: float, interval: float = INTERVAL) -> T:
    """Call ``condition`` until it is false, as often as :func:`wait_until` does.

    :returns: its last result, which is true if the time was over
    """
    end = time.monotonic() + timeout
    while (found := condition()) and time.monotonic() < end:
        time.sleep(interval)
    return found


def is_readable(file: Any, timeout: float | None) -> bool:
    """Return whether a file, open under any number, is readable within ``timeout`` seconds; None waits forever.

    select(2) takes no number above 1023, and where nova's threads are eventlet's, ``select`` has no poll."""
    import selectors  # noqa: PLC0415  (every start of a container on Docker waits until this module is loaded)
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def retry(action: Callable[[], T], error: type[Exception] | tuple[type[Exception], ...], timeout: float,
          interval: float, is_final: Callable[[Any], bool] = lambda error: False) -> T:
    """Repeat ``action`` while it raises ``error``, which is logged, for up to ``timeout`` seconds.

    :param is_final: selects the errors that a retry cannot repair
    :raises Exception: the last one
    """
    end = time.monotonic() + timeout
    while True:
        try:
            return action()
        except error as failed:
            if is_final(failed) or time.monotonic() >= end:
                raise
            import logging  # noqa: PLC0415  (every start of a container on Docker waits until this module is loaded)
            logging.getLogger(__name__).info("%s; it is tried again", failed)
        time.sleep(interval)
