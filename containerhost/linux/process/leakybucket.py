# SPDX-License-Identifier: Apache-2.0
"""Limit how long a container can block the host, by a leaky bucket for each, filled by blocked time."""

import time
from collections.abc import Callable


class LeakyBuckets:
    """Track how long each container has blocked the host, and how long it must therefore be left alone.

    :param burst: seconds of waiting that a bucket can hold
    :param leak_rate: seconds of waiting that drain per second
    """

    def __init__(self, burst: float, leak_rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._leak_rate = leak_rate
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}  # s of waiting, and when that was; only of those not empty

    def add(self, container: str, waited: float) -> None:
        """Fill a container's bucket with seconds of waiting."""
        self._levels[container] = self._level(container) + waited, self._clock()

    def overflow(self, container: str) -> float:
        """Return the seconds until the overflow of the container's bucket has drained; 0 if there is none."""
        self._levels = {key: found for key, found in list(self._levels.items()) if self._level(key) > 0}
        return max(0.0, self._level(container) - self._burst) / self._leak_rate

    def __bool__(self) -> bool:
        """Return whether any bucket is not empty."""
        return bool(self._levels)

    def _level(self, container: str) -> float:
        waited, when = self._levels.get(container, (0.0, 0.0))
        return max(0.0, waited - (self._clock() - when) * self._leak_rate)
