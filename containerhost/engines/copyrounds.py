# SPDX-License-Identifier: Apache-2.0
"""Decide how often a running container is copied before it is stopped for its last changes."""

import logging
import math
import time
from collections.abc import Callable, Iterator

LOG = logging.getLogger(__name__)

ROUNDS = 5
SHORT_ROUND = 2.0  # s: what is left is not worth another round
SHRINKS = 0.7  # of the time of the round before, at most: else the container changes as fast as it is copied


def rounds(what: str, most: int = ROUNDS, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Yield the number of each round, which the caller copies, until another would bring few further changes.

    :param what: the container and where it goes, for the log
    :param clock: monotonic clock in seconds
    """
    took = math.inf
    for number in range(1, most + 1):
        began, before = clock(), took
        yield number
        took = clock() - began
        LOG.info("Round %d of copying %s while it runs took %.1f s", number, what, took)
        if took < SHORT_ROUND or took > SHRINKS * before:
            return
