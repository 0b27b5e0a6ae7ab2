# SPDX-License-Identifier: Apache-2.0
import collections
from typing import Any

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcplan import networktree
from hpcplan.networktree import Leaf
from tests import levels


def names(leaves: list[Leaf]) -> list[str]:
    return [leaf.name for leaf in leaves]


def rack(number: int, switch: int, *hosts: str) -> list[Leaf]:
    return [Leaf(name, (f"r{number}", f"s{switch}")) for name in hosts]


class NearestTest(testtools.TestCase):
    def test_smallest_switch_with_enough_hosts_is_taken(self) -> None:
        leaves = rack(1, 1, "a", "b", "c") + rack(2, 1, "d", "e") + rack(2, 2, "f")
        self.assertEqual(["d", "e"], names(networktree.nearest(leaves, 2)))
        self.assertEqual(["f"], names(networktree.nearest(leaves, 1)))

    def test_switches_of_one_rack_are_preferred_to_two_racks(self) -> None:
        leaves = rack(1, 1, "a", "b") + rack(2, 1, "c") + rack(3, 1, "d", "e") + rack(3, 2, "f")
        self.assertEqual(["d", "e", "f"], names(networktree.nearest(leaves, 3)))

    def test_one_switch_is_preferred_to_a_rack_that_has_fewer_hosts(self) -> None:
        leaves = rack(1, 1, "a", "b", "c") + rack(2, 1, "d") + rack(2, 2, "e")
        self.assertEqual(["a", "b"], names(networktree.nearest(leaves, 2)))

    def test_a_rack_without_switches_is_as_near_as_one_switch(self) -> None:
        leaves = [*rack(1, 1, "a", "b", "c"), Leaf("d", ("rack 2",)), Leaf("e", ("rack 2",))]
        self.assertEqual(["d", "e"], names(networktree.nearest(leaves, 2)))

    def test_few_parts_are_taken_where_none_suffices(self) -> None:
        leaves = rack(1, 1, "a") + rack(2, 1, "b", "c", "d") + rack(3, 1, "e", "f")
        self.assertEqual(["b", "c", "d", "e", "f"], names(networktree.nearest(leaves, 5)))
        self.assertEqual(["a", "b", "c", "d"], names(networktree.nearest(leaves, 4)))

    def test_beside_the_hosts_that_the_job_has(self) -> None:
        leaves = rack(1, 1, "a", "b") + rack(2, 1, "c", "d") + rack(2, 2, "e")
        self.assertEqual(["c"], names(networktree.nearest(leaves, 1, [("r2", "s1")])))
        self.assertEqual(["c", "d", "e"], names(networktree.nearest(leaves, 3, [("r2", "s1")])))
        self.assertEqual(["e"], names(networktree.nearest(leaves, 1, [("r2", "s3"), ("r3", "s1")])))
        self.assertEqual(["a", "b", "c", "d", "e"], names(networktree.nearest(leaves, 6, [("r2", "s2")])))

    def test_lowest_cost_below_one_switch(self) -> None:
        leaves = [Leaf("a", ("r",), (0, 3.0)), Leaf("b", ("r",), (0, 1.0)), Leaf("c", ("r",), (0, 2.0))]
        self.assertEqual(["b", "c"], names(networktree.nearest(leaves, 2)))

    def test_numbers_in_names_are_ordered_as_numbers(self) -> None:
        leaves = [Leaf("node10", ("rack 2",)), Leaf("node9", ("rack 2",)), Leaf("node1", ("rack 10",))]
        self.assertEqual(["node9", "node10", "node1"], names(networktree.nearest(leaves, 3)))

    def test_hosts_without_path(self) -> None:
        self.assertEqual(["a", "b"], names(networktree.nearest([Leaf("b"), Leaf("a"), Leaf("c")], 2)))
        self.assertEqual(["a"], names(networktree.nearest([Leaf("a")], 5)))
        self.assertEqual([], names(networktree.nearest([], 1)))
        self.assertEqual([], names(networktree.nearest([Leaf("a", ("r",)), Leaf("b", ("s",))], 0)))

    @settings(deadline=None, max_examples=levels.budget(gate=24, exhaustive=60))
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), max_size=40),
           st.integers(0, 40), st.randoms(use_true_random=False))
    def test_one_rack_or_switch_where_one_suffices(self, drawn: list[tuple[int, int, int]], count: int, random: Any
                                                   ) -> None:
        leaves = [Leaf(f"n{at}", (f"r{r}", f"s{s}"), (cost,)) for at, (r, s, cost) in enumerate(drawn)]
        selected = networktree.nearest(leaves, count)
        self.assertEqual(min(count, len(leaves)), len(set(selected)))
        self.assertEqual(sorted(selected, key=networktree.order), selected)
        for depth in (1, 2):
            sizes = collections.Counter(leaf.path[:depth] for leaf in leaves)
            if max(sizes.values(), default=0) >= count > 0:
                self.assertEqual(1, len({leaf.path[:depth] for leaf in selected}))
        random.shuffle(leaves)
        self.assertEqual(selected, networktree.nearest(leaves, count))
