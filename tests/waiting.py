# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition: tests never sleep for a time that is hoped to suffice."""

from collections.abc import Callable

from containerhost.linux.poll import wait_until

TIMEOUT = 60.0  # s; generous, because a condition that holds ends the wait at once
POLL_INTERVAL = 0.05  # s


def await_that(condition: Callable[[], object], what: str, limit: float = TIMEOUT,
               pause: float = POLL_INTERVAL) -> None:
    """:raises AssertionError: it did not hold within ``timeout`` seconds
    """
    if not wait_until(condition, limit, pause):
        raise AssertionError(f"{what}: not within {limit:g} s")
