# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition: tests never sleep for a time that is hoped to suffice."""

import time
from collections.abc import Callable

TIMEOUT = 60.0  # s; generous, because a condition that holds ends the wait at once
POLL_INTERVAL = 0.05  # s
SHARE = 0.1  # of a processor, at most, that looking takes: what is waited for needs the rest


def await_that(condition: Callable[[], object], what: str | Callable[[], str], limit: float = TIMEOUT,
               pause: float = POLL_INTERVAL) -> None:
    """Look every ``pause`` seconds, and less often where looking takes long.

    :param what: what is waited for, or a function that describes how things are when the time is over
    :raises AssertionError: it did not hold within ``limit`` seconds
    """
    end = time.monotonic() + limit
    while True:
        began = time.thread_time()
        if condition():
            return
        if time.monotonic() >= end:
            raise AssertionError(f"{what if isinstance(what, str) else what()}: not within {limit:g} s")
        time.sleep(max(pause, (time.thread_time() - began) / SHARE))
