# SPDX-License-Identifier: Apache-2.0
"""Test the invariants of every division, whatever is requested, and the purpose of each policy."""

from typing import Any

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.elastic import corechoice, policies
from containerhost.elastic.corechoice import Share
from containerhost.elastic.policies import Demand, Pool
from tests import levels


@st.composite
def demands(draw: Any) -> list[Demand]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        least = draw(st.integers(1, 5))
        most = draw(st.integers(least, 12))
        found.append(Demand(f"c{number}", least, most, draw(st.integers(1, 12)), draw(st.integers(0, 3)),
                            draw(st.integers(0, 20))))
    return found


def fewest(asked: list[Demand]) -> int:
    return sum(demand.least for demand in asked)


EVERY = st.sampled_from(sorted(policies.POLICIES))


class InvariantsTest(testtools.TestCase):
    @given(st.integers(0, 40), demands(), EVERY)
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    def test_nobody_is_outside_its_bounds_and_nothing_is_given_twice(self, capacity: int, asked: list[Demand],
                                                                     policy: str) -> None:
        given_ = policies.POLICIES[policy](Pool(capacity), asked)
        self.assertEqual({demand.name for demand in asked}, given_.keys())
        for demand in asked:
            self.assertTrue(demand.least <= given_[demand.name] <= demand.most, (demand, given_))
        self.assertLessEqual(sum(given_.values()), max(capacity, fewest(asked)))

    @given(st.integers(0, 40), demands(), EVERY)
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    def test_a_second_division_moves_nothing(self, capacity: int, asked: list[Demand], policy: str) -> None:
        first = policies.POLICIES[policy](Pool(capacity), asked)
        again = [demand._replace(present=first[demand.name]) for demand in asked]
        self.assertEqual(first, policies.POLICIES[policy](Pool(capacity), again))

    @given(st.integers(0, 40), demands())
    @settings(max_examples=levels.budget(gate=40, exhaustive=100), deadline=None)
    def test_nothing_is_left_while_somebody_may_have_more(self, capacity: int, asked: list[Demand]) -> None:
        for policy in (policies.fair, policies.priority):
            given_ = policy(Pool(capacity), asked)
            left = capacity - sum(given_.values())
            self.assertTrue(left <= 0 or all(given_[demand.name] == demand.most for demand in asked), given_)


class PolicyTest(testtools.TestCase):
    def test_fair_is_in_proportion_to_what_each_may_have(self) -> None:
        self.assertEqual({"a": 2, "b": 1}, policies.fair(Pool(3), [Demand("a", 1, 4, 4), Demand("b", 1, 2, 2)]))
        self.assertEqual({"a": 2, "b": 2, "c": 2}, policies.fair(
            Pool(6), [Demand(name, 1, 6, 6) for name in "abc"]))

    def test_fair_is_max_min(self) -> None:
        """2/3 and 2/2, not 3/3 and 1/2."""
        self.assertEqual({"a": 2, "b": 2}, policies.fair(Pool(4), [Demand("a", 2, 3, 3), Demand("b", 1, 2, 2)]))

    def test_what_cannot_be_divided_stays_where_it_is(self) -> None:
        for holder in "ab":
            asked = [Demand(name, 1, 4, 2 if name == holder else 1) for name in "ab"]
            self.assertEqual(2, policies.fair(Pool(3), asked)[holder])

    def test_priority_is_served_first_but_nobody_falls_below_its_least(self) -> None:
        asked = [Demand("low", 1, 4, 4, 1), Demand("high", 1, 4, 1, 9), Demand("also", 1, 4, 1, 9)]
        self.assertEqual({"low": 1, "high": 3, "also": 2}, policies.priority(
            Pool(6), [each._replace(present=3) if each.name == "high" else each for each in asked]))
        self.assertEqual({"low": 2, "high": 4, "also": 4}, policies.priority(Pool(10), asked))

    def test_load_moves_what_one_does_not_need_to_who_does(self) -> None:
        asked = [Demand("idle", 1, 4, 3, need=1), Demand("busy", 1, 4, 1, need=4)]
        self.assertEqual({"idle": 1, "busy": 3}, policies.load(Pool(4), asked))

    def test_load_takes_nothing_that_nobody_needs(self) -> None:
        asked = [Demand("idle", 1, 4, 3, need=1), Demand("calm", 1, 4, 1, need=1)]
        self.assertEqual({"idle": 3, "calm": 1}, policies.load(Pool(4), asked))


class NeedTest(testtools.TestCase):
    def test_bounds(self) -> None:
        for present, used, pressure, expected in (
                (4, (), None, 4), (4, (3.6,), None, 6), (1, (1.0,), None, 2), (4, (0.2,), None, 1),
                (4, (3.0, 0.2), None, 4), (4, (4.0, 0.2), None, 4), (4, (4.0, 0.2), 30.0, 4),
                (4, (0.2,), 30.0, 4), (2, (0.1,), 5.0, 1)):
            with self.subTest(present=present, used=used, pressure=pressure):
                self.assertEqual(expected, policies.cores_needed(present, used, pressure))

    @given(st.lists(st.tuples(st.floats(0, 12), st.integers(1, 3), st.integers(3, 8)), min_size=1, max_size=5),
           st.integers(4, 24))
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    def test_constant_load_comes_to_rest(self, loads: list[tuple[float, int, int]], capacity: int) -> None:
        """Each container keeps as many cores busy as it has work for, and not more than it has."""
        present = {f"c{number}": most for number, (_, _, most) in enumerate(loads)}
        used: dict[str, list[float]] = {name: [] for name in present}
        history = []
        for _ in range(60):
            asked = []
            for (name, has), (work, least, most) in zip(present.items(), loads, strict=True):
                used[name] = [*used[name], min(work, has)][-3:]
                asked.append(Demand(name, least, most, has, need=policies.cores_needed(has, used[name], None)))
            after = policies.load(Pool(capacity), asked)
            used = {name: used[name] if after[name] == present[name] else [] for name in present}
            present = after
            history.append(tuple(after.values()))
        self.assertEqual(1, len(set(history[-10:])), history)


HARDWARE = tuple((node, frozenset((core, core + 8))) for core, node in enumerate((0, 0, 0, 0, 1, 1, 1, 1)))
ALL = frozenset(range(16))


class ChoiceTest(testtools.TestCase):
    """Two nodes with four cores of two threads each; 0 and 8 are one core."""

    def choose(self, *shares: Share, **least: int) -> dict[str, frozenset[int]]:
        return corechoice.choose(shares, HARDWARE, {share.name: 1 for share in shares} | least)

    def test_who_shrinks_keeps_whole_cores_and_who_grows_gets_its_neighbours(self) -> None:
        found = self.choose(Share("a", 4, ALL, frozenset({0, 8, 1, 9, 2, 10})), Share("b", 4, ALL, frozenset({4, 12})))
        self.assertEqual({0, 8, 1, 9}, found["a"])
        self.assertEqual({4, 12, 5, 13}, found["b"])

    def test_new_ones_begin_on_whole_cores_of_one_node(self) -> None:
        found = self.choose(Share("a", 3, ALL, frozenset()), Share("b", 4, ALL, frozenset()))
        self.assertEqual(frozenset(), found["a"] & found["b"])
        for cores in found.values():
            self.assertEqual(1, len({0 if core % 8 < 4 else 1 for core in cores}), found)

    def test_permitted_cores_only(self) -> None:
        found = self.choose(Share("a", 4, frozenset({1, 2}), frozenset({0, 1})), Share("b", 8, ALL, frozenset()))
        self.assertEqual({1, 2}, found["a"])
        self.assertEqual(8, len(found["b"] - {1, 2}))

    def test_cores_are_shared_only_below_the_least(self) -> None:
        few = frozenset({0, 1})
        found = self.choose(Share("a", 1, few, few), Share("b", 1, few, frozenset()), Share("c", 1, few, frozenset()))
        self.assertEqual([1, 1, 1], [len(cores) for cores in found.values()])
        self.assertEqual(few, found["a"] | found["b"] | found["c"])
