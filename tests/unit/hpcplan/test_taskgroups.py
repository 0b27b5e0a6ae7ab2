# SPDX-License-Identifier: Apache-2.0
import collections
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import fixtures
import testtools
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcplan import taskgroups
from hpcplan.errors import NoPlacement, PlanError
from hpcplan.taskgroups import Host, Member, Resources
from tests import levels

ONE: Resources = {"vcpus": 1, "memory_mb": 1024}


def free(slots: int, more: int = 0) -> Resources:
    return {"vcpus": slots, "memory_mb": slots * 1024 + more}


def hosts(*slots: int, path: Sequence[tuple[str, ...]] | None = None) -> list[Host]:
    return [Host(f"n{at}", free(count), path[at] if path else ()) for at, count in enumerate(slots)]


def members(count: int, groups: int, request: Resources = ONE) -> list[Member]:
    divided = taskgroups.divide([request] * count, groups)
    return [Member(rank, group, request) for rank, group in enumerate(divided)]


def mixed(requests: Sequence[Resources], groups: int) -> list[Member]:
    divided = taskgroups.divide(requests, groups)
    return [Member(rank, group, request) for rank, (group, request) in enumerate(zip(divided, requests, strict=True))]


def with_placed(given_hosts: Sequence[Host], placed: Sequence[Member], plan: Mapping[int, str]) -> list[Host]:
    """The hosts after the members were placed."""
    result = []
    for host in given_hosts:
        here = [member for member in placed if plan[member.rank] == host.name]
        left = dict(host.free)
        for member in here:
            for name, amount in member.request.items():
                left[name] = left.get(name, 0) - amount
        result.append(Host(host.name, left, host.path, collections.Counter(member.group for member in here)))
    return result


class DivideTest(testtools.TestCase):
    def test_16_members_in_4_groups_are_4_4_4_4_of_successive_ranks(self) -> None:
        self.assertEqual([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4, taskgroups.divide([ONE] * 16, 4))

    def test_remainder_is_spread(self) -> None:
        self.assertEqual([0] * 5 + [1] * 4 + [2] * 4, taskgroups.divide([ONE] * 13, 3))

    def test_large_members_are_spread_first(self) -> None:
        large, small = {"vcpus": 8}, {"vcpus": 4}
        divided = taskgroups.divide([small, small, large, large, small, small], 2)
        self.assertEqual([0, 0, 0, 1, 1, 1], divided)

    def test_one_resource_of_many_does_not_decide_alone(self) -> None:
        divided = taskgroups.divide([{"vcpus": 2, "gpu": 0}, {"vcpus": 2, "gpu": 1}] * 2, 2)
        self.assertEqual([0, 0, 1, 1], divided)

    def test_member_counts_by_its_share_of_the_jobs_total(self) -> None:
        half, more, less = {"vcpus": 4}, {"memory": 600}, {"memory": 400}
        self.assertEqual([1, 1, 0, 0], taskgroups.divide([half, half, more, less], 2))

    def test_members_that_request_nothing_are_spread_too(self) -> None:
        self.assertEqual([0, 0, 1, 1], taskgroups.divide([{}] * 4, 2))

    def test_refused_with_the_numbers(self) -> None:
        for count, groups in ((3, 4), (3, 0), (0, 1)):
            error = self.assertRaises(PlanError, taskgroups.divide, [ONE] * count, groups)
            self.assertIn(f"{count} members cannot be divided into {groups} groups", str(error))
        self.assertIn("-1 of vcpus", str(self.assertRaises(PlanError, taskgroups.divide, [{"vcpus": -1}], 1)))

    @settings(deadline=None)
    @given(st.integers(1, 200), st.integers(1, 50))
    def test_equal_members_are_spread_evenly_in_rank_order(self, count: int, groups: int) -> None:
        assume(groups <= count)
        divided = taskgroups.divide([ONE] * count, groups)
        sizes = collections.Counter(divided)
        self.assertEqual(set(range(groups)), set(sizes))
        self.assertLessEqual(max(sizes.values()) - min(sizes.values()), 1)
        self.assertEqual(sorted(divided), divided)

    @settings(deadline=None)
    @given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.integers(1, 8))
    def test_loads_differ_by_no_more_than_the_largest_member(self, sizes: list[int], groups: int) -> None:
        assume(groups <= len(sizes))
        loads = [0] * groups
        for size, group in zip(sizes, taskgroups.divide([{"vcpus": size} for size in sizes], groups), strict=True):
            loads[group] += size
        self.assertLessEqual(max(loads) - min(loads), max(sizes))


class ScoreTest(testtools.TestCase):
    def test_formula(self) -> None:
        host = Host("a", free(3), held={0: 2, 1: 1, 2: 4})
        self.assertEqual(2 + 3 - 2, taskgroups.score(host, 0, [ONE] * 5))
        self.assertEqual(2 + 1 - 2, taskgroups.score(host, 0, [ONE]))
        self.assertEqual(0 + 3 - 3, taskgroups.score(host, 7, [ONE] * 3))
        self.assertEqual(0, taskgroups.score(Host("b", free(0)), 0, [ONE]))

    def test_members_that_fit_count_whatever_their_order(self) -> None:
        for order in itertools.permutations((3, 3, 1)):
            self.assertEqual(2, taskgroups.score(Host("a", {"vcpus": 4}), 0, [{"vcpus": count} for count in order]))


class PlaceTest(testtools.TestCase):
    def test_one_by_one_stays_near_the_hosts_that_the_job_has(self) -> None:
        of, given_hosts = members(2, 2), hosts(1, 1, 3, path=[("r0",), ("r1",), ("r1",)])
        self.assertEqual({0: "n1", 1: "n2"}, taskgroups.place(of, given_hosts, 2))
        left = with_placed(given_hosts, of[:1], {0: "n1"})
        self.assertEqual({1: "n2"}, taskgroups.place(of[1:], left, 2))

    def test_unequal_groups_are_near_each_other(self) -> None:
        of = [Member(0, 0, {"vcpus": 4}), Member(1, 1, {"vcpus": 1})]
        given_hosts = hosts(1, 4, 2, path=[("r0",), ("r1",), ("r1",)])
        self.assertEqual({0: "n1", 1: "n2"}, taskgroups.place(of, given_hosts, 2))

    def test_group_by_group_in_rank_order(self) -> None:
        plan = taskgroups.place(members(16, 4), hosts(4, 4, 4, 4), 4)
        self.assertEqual({rank: f"n{rank // 4}" for rank in range(16)}, plan)

    def test_best_fit_keeps_large_hosts_whole(self) -> None:
        plan = taskgroups.place(members(8, 2), hosts(32, 5, 4, 16), 2)
        self.assertEqual({"n1", "n2"}, set(plan.values()))

    def test_fewest_unusable_devices_before_best_fit_but_below_one_switch(self) -> None:
        given_hosts = [Host("n0", free(4), ("r1",), unusable=8), Host("n1", free(32), ("r1",)),
                       Host("n2", free(16), ("r1",)), Host("n3", free(4), ("r1",), unusable=1)]
        self.assertEqual({"n2"}, set(taskgroups.place(members(4, 1), given_hosts, 1).values()))
        self.assertEqual({"n1", "n2"}, set(taskgroups.place(members(8, 2), given_hosts, 2).values()))
        far = [Host("n4", free(4), ("r2",))]
        self.assertEqual({"n0", "n1", "n2", "n3"}, set(taskgroups.place(members(16, 4), given_hosts + far, 4).values()))

    def test_one_rack_before_best_fit(self) -> None:
        path = [("r1",), ("r2",), ("r2",), ("r3",)]
        plan = taskgroups.place(members(8, 2), hosts(4, 32, 32, 4, path=path), 2)
        self.assertEqual({"n1", "n2"}, set(plan.values()))

    def test_ranks_follow_the_tree(self) -> None:
        path = [("r1", "s2"), ("r2", "s1"), ("r1", "s1"), ("r2", "s1")]
        plan = taskgroups.place(members(8, 4), hosts(2, 2, 2, 2, path=path), 4)
        self.assertEqual(["n2", "n2", "n0", "n0", "n1", "n1", "n3", "n3"], [plan[rank] for rank in range(8)])

    def test_larger_group_gets_the_only_host_with_room_for_it(self) -> None:
        plan = taskgroups.place(members(9, 2), hosts(4, 5), 2)
        self.assertEqual([(0, "n1"), (4, "n1"), (5, "n0")], [(rank, plan[rank]) for rank in (0, 4, 5)])

    def test_groups_are_split_only_where_they_do_not_fit(self) -> None:
        plan = taskgroups.place(members(16, 4), hosts(6, 6, 2, 2), 4)
        self.assertEqual({"n0": 6, "n1": 6, "n2": 2, "n3": 2}, collections.Counter(plan.values()))
        self.assertEqual({"n0"}, {plan[rank] for rank in range(4)})

    def test_groups_share_hosts_where_there_are_too_few(self) -> None:
        plan = taskgroups.place(members(16, 4), hosts(8, 8), 4)
        for group in range(4):
            self.assertEqual(1, len({plan[rank] for rank in range(group * 4, group * 4 + 4)}))
        self.assertRaises(NoPlacement, taskgroups.place, members(16, 4), hosts(8, 8), 4, strict=True)

    def test_all_or_nothing_with_the_arithmetic(self) -> None:
        error = self.assertRaises(NoPlacement, taskgroups.place, members(16, 4), hosts(4, 4, 3, 3, 1), 4)
        self.assertIn("16 members in 4 groups do not fit on 4 hosts", str(error))
        self.assertIn("a group needs memory_mb=4096, vcpus=4, for which 2 of 5 hosts have room", str(error))
        self.assertIn("the largest 4 hosts have room for 14 of 16 members", str(error))

    def test_no_more_hosts_than_groups_are_used(self) -> None:
        self.assertRaises(NoPlacement, taskgroups.place, members(16, 2), hosts(4, 4, 4, 4), 2)

    def test_no_hosts(self) -> None:
        self.assertRaises(NoPlacement, taskgroups.place, members(1, 1), [], 1)
        self.assertEqual({}, taskgroups.place([], [], 1))

    def test_started_group_goes_on_where_it_is(self) -> None:
        given_hosts = [Host("n0", free(2)), Host("n1", free(9), held={0: 3}), Host("n2", free(4))]
        rest = [member for member in members(8, 2) if member.rank > 2]
        plan = taskgroups.place(rest, given_hosts, 2)
        self.assertEqual({3: "n1"} | dict.fromkeys(range(4, 8), "n2"), plan)

    def test_hosts_of_placed_groups_count_though_they_are_full(self) -> None:
        full = Host("n9", {}, held={0: 4})
        rest = [member for member in members(8, 2) if member.group == 1]
        self.assertEqual({"n1"}, set(taskgroups.place(rest, [full, *hosts(2, 4)], 2).values()))
        self.assertRaises(NoPlacement, taskgroups.place, rest, [full, *hosts(2, 2)], 2)

    def test_started_group_without_room_is_split_unless_strict(self) -> None:
        given_hosts = [Host("n0", free(1), held={0: 1}), Host("n1", free(4))]
        rest = [member for member in members(4, 1) if member.rank > 0]
        self.assertEqual({"n1": 3}, collections.Counter(taskgroups.place(rest, given_hosts, 2).values()))
        self.assertRaises(NoPlacement, taskgroups.place, rest, given_hosts, 2, strict=True)

    def test_members_of_different_size(self) -> None:
        large, small = {"vcpus": 8, "gpu": 1}, {"vcpus": 2}
        job = mixed([large, small, small, large, small, small], 2)
        given_hosts = [Host("cpu", {"vcpus": 64}), Host("a", {"vcpus": 12, "gpu": 1}),
                       Host("b", {"vcpus": 16, "gpu": 4})]
        self.assertEqual(["a"] * 3 + ["b"] * 3, [taskgroups.place(job, given_hosts, 2)[rank] for rank in range(6)])

    def test_rest_of_a_split_group_stays_together(self) -> None:
        small = {"vcpus": 1}
        for large, other in (({"vcpus": 4}, {}), ({"vcpus": 4, "gpu": 1}, {"gpu": 0})):
            job = [Member(rank, 0, request) for rank, request in enumerate([large, small, small, small])]
            given_hosts = [Host("n0", {"vcpus": 5, "gpu": 1}), Host("n1", {"vcpus": 4, **other})]
            self.assertEqual(["n0"] + ["n1"] * 3, [taskgroups.place(job, given_hosts, 2)[rank] for rank in range(4)])

    def test_time_is_linear_in_hosts(self) -> None:
        reads: dict[int, int] = {}

        class Counting(dict[str, int]):
            def get(self, *args: Any) -> Any:
                reads[count] += 1
                return super().get(*args)

        for count in (1_000, 10_000):
            reads[count] = 0
            given_hosts = [Host(f"n{at}", Counting(free(at % 9)), (f"r{at // 40}", f"s{at // 10}"))
                           for at in range(count)]
            self.assertEqual(64, len(set(taskgroups.place(members(512, 64), given_hosts, 64).values())))
        self.assertLess(reads[10_000], 11 * reads[1_000])

    def test_time_is_linear_for_groups_that_do_not_fit_as_a_whole(self) -> None:
        counted: dict[int, int] = {}
        fits = taskgroups.fits

        def counting(*args: Any) -> int:
            counted[count] += 1
            return fits(*args)

        self.useFixture(fixtures.MonkeyPatch("hpcplan.taskgroups.fits", counting))
        for count in (50, 200):
            counted[count] = 0
            given_hosts = [Host(f"n{at}", free(16 if at % 2 else 13)) for at in range(count)]
            self.assertEqual(14 * count, len(taskgroups.place(members(14 * count, count), given_hosts, count)))
        self.assertLess(counted[200], 6 * counted[50])


@st.composite
def clouds(draw: Any) -> list[Host]:
    found = []
    for at in range(draw(st.integers(0, 12))):
        path = (f"r{draw(st.integers(0, 2))}", f"s{draw(st.integers(0, 2))}")
        found.append(Host(f"n{at}", free(draw(st.integers(0, 10)), draw(st.integers(0, 2000))), path))
    return found


def counts(plan: Mapping[int, str]) -> collections.Counter[str]:
    return collections.Counter(plan.values())


class GrowthTest(testtools.TestCase):
    def test_time_of_many_unequal_members(self) -> None:
        """None of the four groups fits on a host as a whole."""
        members = [Member(rank, rank // 256, {"vcpus": 1 + rank % 7, "memory_mb": 100 + rank}) for rank in range(1024)]
        hosts = [Host(f"h{at}", {"vcpus": 24 + at % 5, "memory_mb": 10**6}, (f"r{at // 16}",)) for at in range(256)]
        began = time.process_time()
        self.assertEqual(1024, len(taskgroups.place(members, hosts, 256)))
        self.assertLess(time.process_time() - began, 8)  # usually 1; 27 if every score examines every member


class PropertiesTest(testtools.TestCase):
    def attempt(self, job: Sequence[Member], cloud: Sequence[Host], nodes: int, **options: bool
                ) -> dict[int, str] | None:
        try:
            return taskgroups.place(job, cloud, nodes, **options)
        except NoPlacement:
            return None

    @settings(deadline=None, max_examples=levels.budget(gate=80, exhaustive=200))
    @given(clouds(), st.integers(1, 24), st.integers(1, 6), st.booleans())
    def test_equal_members(self, cloud: list[Host], count: int, groups: int, strict: bool) -> None:
        assume(groups <= count)
        job = members(count, groups)
        plan = self.attempt(job, cloud, groups, strict=strict)
        slots = sorted((host.free["vcpus"] for host in cloud), reverse=True)
        sizes = sorted(collections.Counter(member.group for member in job).values(), reverse=True)
        whole = len(slots) >= groups and all(slot >= size for slot, size in zip(slots, sizes, strict=False))
        # All or nothing, and never nothing where a placement exists.
        self.assertEqual(whole if strict else sum(slots[:groups]) >= count, plan is not None)
        if plan is None:
            return
        self.assertEqual(set(range(count)), set(plan))
        for host in cloud:
            self.assertLessEqual(counts(plan)[host.name], host.free["vcpus"])
        self.assertLessEqual(len(counts(plan)), groups)
        if whole:  # together, apart, and evenly spread
            self.assertEqual(sizes, sorted(counts(plan).values(), reverse=True))
            for _, of in itertools.groupby(job, key=lambda member: member.group):
                self.assertEqual(1, len({plan[member.rank] for member in of}))

    @settings(deadline=None, max_examples=levels.budget(gate=40, exhaustive=100))
    @given(clouds(), st.integers(1, 24), st.integers(1, 6), st.randoms(use_true_random=False))
    def test_order_of_hosts_does_not_matter(self, cloud: list[Host], count: int, groups: int, random: Any) -> None:
        assume(groups <= count)
        plan = self.attempt(members(count, groups), cloud, groups)
        random.shuffle(cloud)
        self.assertEqual(plan, self.attempt(members(count, groups), cloud, groups))

    @settings(deadline=None, max_examples=levels.budget(gate=40, exhaustive=100))
    @given(clouds(), st.integers(1, 4), st.integers(1, 6), st.data())
    def test_placed_one_by_one_the_answer_stays(self, cloud: list[Host], size: int, groups: int, data: Any) -> None:
        job = members(size * groups, groups)
        plan = self.attempt(job, cloud, groups, strict=True)
        assume(plan is not None)
        assert plan is not None
        done = data.draw(st.integers(0, len(job)))
        now = with_placed([host for host in cloud if host.name in plan.values()], job[:done], plan)
        self.assertEqual({member.rank: plan[member.rank] for member in job[done:]},
                         taskgroups.place(job[done:], now, groups, strict=True))

    @settings(deadline=None, max_examples=levels.budget(gate=40, exhaustive=100))
    @given(clouds(), st.integers(1, 24), st.integers(1, 6))
    def test_a_placement_can_be_finished_after_each_member(self, cloud: list[Host], count: int, groups: int) -> None:
        assume(groups <= count)
        job = members(count, groups)
        plan = self.attempt(job, cloud, groups)
        assume(plan is not None)
        assert plan is not None
        now = [host for host in cloud if host.name in plan.values()]
        made: dict[int, str] = {}
        for done, member in enumerate(job):
            made[member.rank] = taskgroups.place(job[done:], with_placed(now, job[:done], made), groups)[member.rank]
        for host in cloud:
            self.assertLessEqual(counts(made)[host.name], host.free["vcpus"])

    @settings(deadline=None, max_examples=levels.budget(gate=40, exhaustive=100))
    @given(clouds(), st.lists(st.builds(lambda cpu, memory: {"vcpus": cpu, "memory_mb": memory}, st.integers(0, 5),
                                        st.integers(0, 3000)), min_size=1, max_size=12), st.integers(1, 4))
    def test_no_host_is_overcommitted(self, cloud: list[Host], requests: list[Resources], groups: int) -> None:
        assume(groups <= len(requests))
        job = mixed(requests, groups)
        plan = self.attempt(job, cloud, groups)
        if plan is not None:
            self.assertEqual(set(range(len(requests))), set(plan))
            for host in with_placed(cloud, job, plan):
                self.assertGreaterEqual(min(host.free.values()), 0)
