# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition: tests never sleep for a time that is hoped to suffice."""

from collections.abc import Callable

from containerhost.linux.poll import wait_until

LIMIT = 60.0  # s; generous, because a condition that holds ends the wait at once
PAUSE = 0.05  # s


def await_that(condition: Callable[[], object], what: str, limit: float = LIMIT, pause: float = PAUSE) -> None:
    """:raises AssertionError: it did not hold within ``limit`` seconds
    """
    if not wait_until(condition, limit, pause):
        raise AssertionError(f"{what}: not within {limit:g} s")
