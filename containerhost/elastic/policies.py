# SPDX-License-Identifier: Apache-2.0
"""Decide how many units of a resource each opted-in container should have. Pure.

A unit is a core, or a piece of memory. A policy maps a supply of units and the demands on it to an amount for each. Of
every policy holds:

- each gets at least its minimum and at most its maximum;
- beyond the minimums each gets what the supply permits; if not even the minimums fit, none gets more than its
  minimum;
- a second division of unchanged input changes nothing.

Fairness is max-min: the next unit goes to the container with the smallest part of its most, which is what its owner
claimed, of those that can have one. What sets of containers can have of a supply is a polymatroid (that of a matching,
or of a sum), for which this greedy choice is the best (Edmonds 1970). Between equals it stays with the one that has it.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

Amounts = dict[str, int]


class Demand(NamedTuple):
    """State how many units (cores or pieces of memory) a container may have, has, and could use.

    :ivar least, most: between these it may be
    :ivar priority: 10 is served first
    :ivar need: what it could use now
    """

    name: str
    least: int
    most: int
    present: int
    priority: int = 0
    need: int = 0


class Supply(Protocol):
    def take(self, name: str, count: int) -> int:
        """Take units for a container.

        :returns: how many it can have in addition to what was taken for it and for others; if it is fewer than
            ``count``, it can have no more ever
        """


class Pool:
    """Supply a number of units, any of which any container can have."""

    def __init__(self, capacity: int) -> None:
        self._left = capacity

    def take(self, name: str, count: int) -> int:
        taken = max(0, min(count, self._left))
        self._left -= taken
        return taken


def fair(supply: Supply, demands: Sequence[Demand]) -> Amounts:
    """Divide everything in proportion to the maximums."""
    return _filled(supply, demands, [lambda demand: demand.most])


def priority(supply: Supply, demands: Sequence[Demand]) -> Amounts:
    """Serve the highest priority first, in full; equal ones are served as :func:`fair` does."""
    levels = sorted({demand.priority for demand in demands}, reverse=True)
    return _filled(supply, demands, [lambda demand, level=level: (  # type: ignore[misc]
        demand.most if demand.priority == level else 0) for level in levels])


def load(supply: Supply, demands: Sequence[Demand]) -> Amounts:
    """Give each container its need; unneeded units stay where they are, to avoid pointless moves."""
    return _filled(supply, demands, [lambda demand: min(demand.need, demand.most),
                                     lambda demand: min(demand.present, demand.most)])


Policy = Callable[[Supply, Sequence[Demand]], Amounts]
POLICIES: Mapping[str, Policy] = {"fair": fair, "priority": priority, "load": load}


def _filled(supply: Supply, demands: Sequence[Demand], ceilings: Sequence[Callable[[Demand], int]]) -> Amounts:
    amounts = {demand.name: demand.least for demand in demands}
    for demand in demands:
        supply.take(demand.name, demand.least)
    for ceiling in ceilings:
        _fill(amounts, supply, demands, ceiling)
    return amounts


def _fill(amounts: Amounts, supply: Supply, demands: Sequence[Demand], ceiling: Callable[[Demand], int]) -> None:
    """Give units one at a time to the demands that are below their ceiling."""
    def entry(demand: Demand) -> tuple[float, bool, str]:
        amount = amounts[demand.name]
        # Below 2^26 units the nearest floats of two fractions differ if the fractions do.
        return amount / demand.most, demand.present <= amount, demand.name

    by_name = {demand.name: demand for demand in demands}
    waiting = [entry(demand) for demand in demands if amounts[demand.name] < ceiling(demand)]
    heapq.heapify(waiting)
    while waiting:
        demand = by_name[heapq.heappop(waiting)[2]]
        if supply.take(demand.name, 1):
            amounts[demand.name] += 1
            if amounts[demand.name] < ceiling(demand):
                heapq.heappush(waiting, entry(demand))


BUSY = Fraction(9, 10)  # fraction of its cores: a container that uses more could use another one
PRESSED = 10.0  # % of the time during which a process waits for a core


def cores_needed(present: int, used: Sequence[float], pressure: float | None) -> int:
    """Return how many cores a container could use.

    The bound for growing and that for shrinking are the same number of busy cores, and a shrink waits for the
    highest use of all rounds: so a constant load causes no oscillation.

    :param used: busy cores in the last rounds with its present size, the newest last
    :param pressure: per cent of the time in which a process waited for a core (PSI, ``some avg10``): an average of
        use hides short peaks, so a container that waits keeps its cores; None if the kernel does not report it
    """
    if not used:
        return present
    if used[-1] >= BUSY * present:
        return present + max(1, present // 2)
    if pressure is not None and pressure >= PRESSED:
        return present
    return min(present, int(max(used) / BUSY) + 1)
