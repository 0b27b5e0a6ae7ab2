# SPDX-License-Identifier: Apache-2.0
"""Select hosts that are near each other in the network, and order them along its tree.

A host's path names the parts of the network above it, from the root: ``("rack 1", "switch 2")``. The nearest hosts are
those below the lowest common part.
"""

import collections
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_DIGITS = re.compile(r"(\d+)")


class Leaf(NamedTuple):
    """Describe a host that may be selected. ``cost`` orders hosts of one switch, smallest first."""

    name: str
    path: tuple[str, ...] = ()
    cost: tuple[float, ...] = ()


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which "node2" precedes "node10"."""
    return tuple((0, int(part), part) if part.isdigit() and part.isascii() else (1, 0, part)
                 for part in _DIGITS.split(text))


def order(leaf: Leaf) -> tuple[tuple[tuple[tuple[int, int, str], ...], ...], tuple[tuple[int, int, str], ...]]:
    """Return a sort key that groups hosts of one rack, and within it of one switch."""
    return tuple(map(natural, leaf.path)), natural(leaf.name)


def nearest(leaves: Iterable[Leaf], count: int, beside: Iterable[tuple[str, ...]] = ()) -> list[Leaf]:
    """Return ``count`` leaves, or all if there are fewer, in tree order.

    Prefers the lowest part of the network that has enough of them, and of several the smallest, so that larger ones
    stay free for larger jobs; uses few parts if no single one suffices, and below one switch the lowest cost.
    Deterministic: the order of ``leaves`` does not matter. Time is linear in the number of leaves, apart from
    sorting.

    :param beside: paths of the job's present hosts: leaves of the lowest parts around them come first
    """
    selected: list[Leaf] = []
    for part in _around(leaves, beside):
        taken = set(selected)
        selected += _select([leaf for leaf in part if leaf not in taken], count - len(selected))
        if len(selected) >= count:
            break
    return sorted(selected, key=order)


def _around(leaves: Iterable[Leaf], beside: Iterable[tuple[str, ...]]) -> list[list[Leaf]]:
    """Return the leaves of each part with one of these paths, lowest parts first, and finally all leaves."""
    parts: dict[tuple[str, ...], list[Leaf]] = {prefix: [] for path in ((), *beside) for prefix in _parts_of(path)}
    for leaf in leaves:
        for prefix in _parts_of(leaf.path):
            if prefix in parts:
                parts[prefix].append(leaf)
    return [parts[prefix] for prefix in sorted(parts, key=lambda prefix: (-len(prefix), tuple(map(natural, prefix))))]


def _parts_of(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Return each part of the network that contains a path, the root first."""
    return (path[:depth] for depth in range(len(path) + 1))


def _select(leaves: Sequence[Leaf], count: int) -> list[Leaf]:
    if count >= len(leaves):
        return list(leaves)
    sizes, heights = collections.Counter[tuple[str, ...]](), collections.Counter[tuple[str, ...]]()
    for path, size in collections.Counter(leaf.path for leaf in leaves).items():
        for prefix in _parts_of(path):
            sizes[prefix] += size
            heights[prefix] = max(heights[prefix], len(path) - len(prefix))
    top = min((prefix for prefix, size in sizes.items() if size >= count),
              key=lambda prefix: (heights[prefix], sizes[prefix], tuple(map(natural, prefix))))
    below = [leaf for leaf in leaves if leaf.path[:len(top)] == top]
    if all(leaf.path == top for leaf in below):
        return heapq.nsmallest(count, below, key=lambda leaf: (leaf.cost, order(leaf)))
    parts: dict[tuple[str, ...], list[Leaf]] = {}
    for leaf in below:
        parts.setdefault(leaf.path[:len(top) + 1], []).append(leaf)
    by_size = sorted(parts.items(), key=lambda item: (len(item[1]), tuple(map(natural, item[0]))))
    selected: list[Leaf] = []
    while len(by_size[-1][1]) < count:
        _, largest = by_size.pop()
        selected += largest
        count -= len(largest)
    return selected + _select([leaf for _, part in by_size if len(part) >= count for leaf in part], count)
