# SPDX-License-Identifier: Apache-2.0
"""Compare the division of cores with an exhaustive search on small hosts.

Containers there have different permitted cores."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.elastic import plan, policies
from containerhost.elastic.plan import Capacity, Member
from containerhost.engines.bounds import Bounds, Range
from tests import levels

GiB = 1 << 30


def member(name: str, least: int, most: int, permitted: set[int] | range | None = None, present: set[int] | None = None,
           priority: int = 5, **more: Any) -> Member:
    document = None if present is None else json.dumps({"cpus": {"cores": sorted(present)}, "memory": GiB})
    bounds = Bounds(Range(least, most), Range(GiB, GiB), priority, frozenset(permitted or ()))
    return Member(name, name, 1, bounds, "mark", document, **more)


def capacity(cores: int, nodes: int = 1, memory: int = 64 * GiB) -> Capacity:
    """Return that of a host whose cores have one thread."""
    hardware = tuple((core * nodes // cores, frozenset((core,))) for core in range(cores))
    return Capacity(frozenset(range(cores)), hardware, memory)


def divided(members: list[Member], host: Capacity, policy: str = "fair") -> dict[str, set[int]]:
    return {name: set(size.cores) for name, size in plan.sizes(members, host, policies.POLICIES[policy]).items()}


class PermittedTest(testtools.TestCase):
    def counts(self, members: list[Member], host: Capacity, policy: str = "fair") -> dict[str, int]:
        found = divided(members, host, policy)
        self.assertEqual(sum(map(len, found.values())), len(set().union(*found.values())), found)
        return {name: len(cores) for name, cores in found.items()}

    def test_cores_of_one_node_are_no_share_of_the_other(self) -> None:
        found = divided([member("a", 1, 2, {0, 1}), member("b", 1, 2, {0, 1}), member("w", 1, 1, {2, 3})],
                        capacity(4, 2))
        self.assertEqual({"a": 1, "b": 1, "w": 1}, {name: len(cores) for name, cores in found.items()})
        self.assertEqual({0, 1}, found["a"] | found["b"])

    def test_idle_cores_of_a_node_go_to_who_may_have_them(self) -> None:
        members = [member("a", 4, 16, range(16)), member("b", 4, 16, range(16)), member("w", 4, 8, range(16, 32))]
        self.assertEqual({"a": 8, "b": 8, "w": 8}, self.counts(members, capacity(32, 2)))

    def test_priority_counts_permitted_cores_only(self) -> None:
        members = [member("high", 1, 8, {0, 1}, priority=9), member("low", 1, 8, priority=1)]
        self.assertEqual({"high": 2, "low": 2}, self.counts(members, capacity(4), "priority"))
        members = [member("high", 1, 8, priority=9), member("low", 1, 8, {0, 1}, priority=1)]
        self.assertEqual({"high": 3, "low": 1}, self.counts(members, capacity(4), "priority"))

    def test_node_without_room_for_all_minima_takes_nothing_from_the_other(self) -> None:
        members = [member("a", 2, 2, {0, 1}), member("b", 1, 2, {0, 1}), member("w", 1, 2, {2, 3})]
        found = divided(members, capacity(4, 2))
        self.assertEqual({"a": {0, 1}, "w": {2, 3}}, {name: found[name] for name in "aw"})
        self.assertEqual(1, len(found["b"]))

    def test_kept_core_is_given_up_to_a_container_that_can_have_no_other(self) -> None:
        members = [member("a", 1, 1, {0}, {0}), member("b", 1, 1, {0, 1}, {0})]
        for each in (members, members[::-1]):
            self.assertEqual({"a": {0}, "b": {1}}, divided(each, capacity(2)))

    def test_cores_pass_through_several_containers_to_the_one_that_needs_one(self) -> None:
        """The last container may have one core only, and each other one this one and the next."""
        chain = [member(f"c{core}", 1, 1, {core, core + 1}, {core}) for core in range(5)]
        found = divided([*chain, member("last", 1, 1, {0})], capacity(6))
        self.assertEqual({"last": {0}} | {f"c{core}": {core + 1} for core in range(5)}, found)

    def test_container_without_permitted_cores_keeps_what_it_has(self) -> None:
        found = divided([member("a", 1, 2, {7}, {0}), member("b", 1, 2, None, {1})], capacity(2))
        self.assertEqual({"a": {0}, "b": {1}}, found)


class Case(NamedTuple):
    """A host without NUMA, and its containers."""

    cores: int
    members: list[Member]
    policy: str

    def permitted(self, member: Member) -> frozenset[int]:
        return frozenset(range(self.cores)) & (member.bounds.choice or frozenset(range(self.cores)))

    def demand(self, member: Member) -> policies.Demand:
        return policies.Demand(member.key, *member.bounds.cores, member.count, member.bounds.priority,
                               policies.cores_needed(member.count, member.used, member.pressure))


@st.composite
def cases(draw: Any) -> Case:
    cores = draw(st.integers(1, 4))
    some = st.frozensets(st.integers(0, cores - 1), min_size=1)
    members = []
    for name in "abc"[:draw(st.integers(1, 3))]:
        least = draw(st.integers(1, 2))
        members.append(member(name, least, draw(st.integers(least, 4)), draw(some), draw(st.none() | some),
                              draw(st.integers(0, 2)), used=draw(st.sampled_from(((), (0.1,), (4.0,))))))
    return Case(cores, members, draw(st.sampled_from(sorted(policies.POLICIES))))


def assignments(case: Case) -> Iterator[dict[str, set[int]]]:
    """Yield every way to give each core to one of the containers that may have it, or to none."""
    takers = [[None, *(each.key for each in case.members if core in case.permitted(each))]
              for core in range(case.cores)]
    for owners in itertools.product(*takers):
        yield {each.key: {core for core, owner in enumerate(owners) if owner == each.key} for each in case.members}


def ranks(case: Case, demand: policies.Demand, count: int) -> list[tuple[float, float]]:
    """Return how early the policy serves each core beyond the least of a container that gets ``count``."""
    def rank(amount: int) -> tuple[float, float]:
        first = {"fair": 0, "priority": -demand.priority,
                 "load": 0 if amount < demand.need else 1 if amount < demand.present else float("inf")}[case.policy]
        return first, amount / demand.most
    return [rank(amount) for amount in range(demand.least, count)]


def best(case: Case) -> list[tuple[float, float]] | None:
    """Return the ranks of the best division, by trying all; None if the minima do not fit.

    It is the one that serves most cores, the earliest first."""
    demands = [case.demand(each) for each in case.members]
    counts = {tuple(len(cores) for cores in found.values()) for found in assignments(case)}
    found = [sorted(rank for demand, count in zip(demands, each, strict=True) for rank in ranks(case, demand, count))
             for each in counts
             if all(demand.least <= count <= demand.most for demand, count in zip(demands, each, strict=True))]
    found = [each for each in found if not each or each[-1][0] < float("inf")]
    return min(found, key=lambda each: (-len(each), each), default=None)


class ExhaustiveTest(testtools.TestCase):
    @given(cases())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_division_is_the_best_of_all(self, case: Case) -> None:
        found, wanted = divided(case.members, capacity(case.cores), case.policy), best(case)
        for each in case.members:
            least = min(each.bounds.cores.least, len(case.permitted(each)))
            self.assertTrue(found[each.key] <= case.permitted(each), found)
            self.assertTrue(least <= len(found[each.key]) <= each.bounds.cores.most, found)
        idle = set(range(case.cores)).difference(*found.values())
        if case.policy != "load":
            self.assertFalse([each.key for each in case.members if len(found[each.key]) < each.bounds.cores.most
                              and idle & case.permitted(each)], (found, idle))
        if wanted is not None:
            self.assertEqual(sum(map(len, found.values())), len(set().union(*found.values())), found)
            self.assertEqual(wanted, sorted(rank for each in case.members for rank in ranks(
                case, case.demand(each), len(found[each.key]))), found)

    @given(cases())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_as_few_cores_as_possible_change_hands(self, case: Case) -> None:
        self.as_few_as_possible(case)

    def as_few_as_possible(self, case: Case) -> None:
        found = divided(case.members, capacity(case.cores), case.policy)
        if best(case) is None:
            return
        def kept(cores: dict[str, set[int]]) -> int:
            return sum(len(cores[each.key] & each.cores) for each in case.members)
        possible = [kept(each) for each in assignments(case)
                    if all(len(each[name]) == len(cores) for name, cores in found.items())]
        self.assertEqual(max(possible), kept(found), found)

    def test_one_that_passes_a_core_on_gets_another_that_it_had(self) -> None:
        own, other = member("a", 1, 1, {0, 1, 2}, {1, 2}), member("b", 1, 1, {1}, set())
        self.as_few_as_possible(Case(3, [own, other], "fair"))
        self.as_few_as_possible(Case(4, [
            member("a", 1, 2, {0, 1}, set()), member("b", 2, 3, {0, 1, 2, 3}, {0, 1, 2, 3}),
            member("c", 1, 1, {0, 2, 3}, {0, 2})], "fair"))

    @given(cases())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_second_division_moves_nothing(self, case: Case) -> None:
        """Where the minima do not fit, those that share a core may move once more, to one that has fewer users."""
        def again(found: dict[str, set[int]], order: int = 1) -> dict[str, set[int]]:
            return divided([member(each.key, *each.bounds.cores, each.bounds.choice, found[each.key],
                                   each.bounds.priority) for each in case.members[::order]],
                           capacity(case.cores), case.policy)

        found = divided(case.members, capacity(case.cores), case.policy)
        for _ in range(2 if best(case) is None else 0):
            found = again(found)
        self.assertEqual(found, again(found))
        self.assertEqual(found, again(found, -1))


class GrowthTest(testtools.TestCase):
    """200 containers divide 2,000 cores."""

    def test_time_of_a_division(self) -> None:
        nodes = {"all": [None] * 200, "of a node": [range(node * 250, node * 250 + 250) for node in range(8)] * 25,
                 "of their own": [range(10 * number, 10 * number + 40) for number in range(200)]}
        for name, permitted in nodes.items():
            with self.subTest(name):
                members = [member(f"c{number}", 1, 64, cores) for number, cores in enumerate(permitted)]
                began = time.process_time()
                found = divided(members, capacity(2000, 8))
                self.assertLess(time.process_time() - began, 0.5)  # usually 0.05
                self.assertEqual(2000, sum(map(len, found.values())))
