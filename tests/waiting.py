# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition: tests never sleep for a time that is hoped to suffice."""

import time
from collections.abc import Callable

LIMIT = 60.0  # s; generous, because a condition that holds ends the wait at once
PAUSE = 0.05  # s


def await_that(condition: Callable[[], object], what: str, limit: float = LIMIT, pause: float = PAUSE) -> None:
    """:raises AssertionError: it did not hold within ``limit`` seconds
    """
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {limit:g} s")
        time.sleep(pause)
