# SPDX-License-Identifier: Apache-2.0
"""The two levels of the tests: the gate, which every change passes, and the exhaustive level.

The exhaustive level repeats a behaviour of the gate at more points. The gate runs a share of these repetitions: of M
shares the N-th, which ``tools/test`` derives from the commit, so that a few merges run all of them.

``tools/test`` sets two variables of the environment:

- ``TEST_LEVEL``: ``gate`` or ``exhaustive``. Where it is not set, as in a module that is run by hand, all tests are
  listed, and lists of points and budgets are those of the gate.
- ``TEST_SHARE``: ``N/M``, 1 <= N <= M. Where it is not set the share is empty.
"""

import os
import unittest
import zlib
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeVar

LEVEL = os.environ.get("TEST_LEVEL", "")
SHARE = os.environ.get("TEST_SHARE", "")

T = TypeVar("T")


def exhaustive(reason: str, when: bool = True, tests: Collection[str] = (), share: bool = True
               ) -> Callable[[Any], Any]:
    """Decorate a test, or a class of tests, that belongs to the exhaustive level. The gate lists its share only.

    :param reason: why the gate can do without it; HACKING.md names the module
    :param when: whether that applies, for a class that runs on several engines
    :param tests: names of tests of a class, inherited ones too; empty for all
    :param share: whether the gate's share may have it; not what needs more than the gate installs
    """
    if not reason:
        raise ValueError("a test of the exhaustive level needs a reason")

    def mark(target: Any) -> Any:
        if not when:
            return target
        name = f"{target.__module__}.{target.__qualname__}"
        if not isinstance(target, type):
            return target if chosen(name, share) else None  # loaders list callables only
        known = unittest.defaultTestLoader.getTestCaseNames(target)  # type: ignore[arg-type]
        if not set(tests) <= set(known):
            raise ValueError(f"{name} has no {', '.join(sorted(set(tests) - set(known)))}")
        for test in tests or known:
            if not chosen(f"{name}.{test}", share):
                setattr(target, test, None)
        return target
    return mark


def chosen(name: str, share: bool = True) -> bool:
    """Return whether this run has the repetition ``name``."""
    return LEVEL != "gate" or (share and in_share(name))


def in_share(name: str) -> bool:
    """Return whether ``name`` is in this run's share. The same share has the same names everywhere."""
    if not SHARE:
        return False
    number, count = _share()
    return zlib.crc32(name.encode()) % count == number


def _share() -> tuple[int, int]:
    """Return the share's number, from 0, and the count of all."""
    number, count = map(int, (SHARE or "1/1").split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"TEST_SHARE is {SHARE!r}; it must be N/M with 1 <= N <= M")
    return number - 1, count


def points(effects: Sequence[Hashable | None]) -> list[int]:
    """Choose the steps of an operation at which a test on real engines kills it; in the gate one of them.

    They change the set of outside effects, which decides what a kill leaves.

    :param effects: what each step does to the outside, in words; None where it only reads
    :returns: indices of ``effects``, ascending
    """
    changes = sorted(effects.index(effect) for effect in set(effects) if effect is not None)
    return changes if LEVEL == "exhaustive" else [turn(changes)]


def turn(items: Sequence[T]) -> T:
    """Return the one of the items whose turn it is: the shares go from the first to the last."""
    number, count = _share()
    return items[number * len(items) // count]


def some(name: str, items: Sequence[T], gate: Collection[int]) -> list[T]:
    """Choose from a list: the exhaustive level takes all, the gate those at some places and its share of the others.

    :param name: of the list, unique among all tests
    :param gate: places in ``items``
    """
    return [item for place, item in enumerate(items)
            if LEVEL == "exhaustive" or place in gate or in_share(f"{name} {place}")]


def budget(gate: T, exhaustive: T) -> T:
    """Choose between the two levels' amounts (of seconds, examples, operations)."""
    return exhaustive if LEVEL == "exhaustive" else gate
