# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import testtools

from bench.placement import scenarios, schedulers, sockets, workloads
from bench.placement.contention import Machine
from bench.placement.loop import Loop, Request
from bench.placement.workloads import Benchmark, Job
from tests.unit.nova import schedulerkit as kit

CPU, NETWORK = Benchmark("a", "cpu", compute=1.0), Benchmark("b", "network", messages=1.0)
WHOLE = Request((16,))


def job(number: int, kind: Benchmark = CPU) -> Job:
    return Job(number, kind, 0.0)


class LoopTest(testtools.TestCase):
    def loop(self, cores: int, *sizes: int) -> Loop:
        scheduler = schedulers.LeastAllocated({"n1": cores})
        return Loop(scheduler, lambda job: Request((sizes[job.number],)))

    def test_waits_until_cores_are_free(self) -> None:
        loop = self.loop(16, 16, 16)
        first, second = job(0), job(1)
        self.assertEqual({first: ["n1"]}, loop.submit(first))
        self.assertEqual({}, loop.submit(second))
        self.assertEqual({second: ["n1"]}, loop.finish(first))
        self.assertEqual([], loop.waiting)

    def test_a_small_job_overtakes_one_that_does_not_fit(self) -> None:
        loop = self.loop(16, 12, 16, 4)
        jobs = [job(at) for at in range(3)]
        self.assertEqual([[jobs[0]], [], [jobs[2]]], [list(loop.submit(each)) for each in jobs])
        self.assertEqual([jobs[1]], loop.waiting)
        self.assertEqual({}, loop.finish(jobs[0]))
        self.assertEqual([jobs[1]], list(loop.finish(jobs[2])))

    def test_as_many_as_fit_start_at_once(self) -> None:
        loop = self.loop(16, 16, 8, 8, 8)
        jobs = [job(at) for at in range(4)]
        for each in jobs:
            loop.submit(each)
        self.assertEqual(jobs[1:3], list(loop.finish(jobs[0])))


class LeastAllocatedTest(testtools.TestCase):
    def test_spreads_containers(self) -> None:
        scheduler = schedulers.LeastAllocated({"n1": 4, "n2": 8})
        hosts = scheduler.place(job(0), Request((2, 2, 2)))
        self.assertEqual(["n2", "n2", "n2"], [hosts[0], hosts[1], max(hosts[2], "n2")] if hosts else hosts)

    def test_all_or_nothing(self) -> None:
        scheduler = schedulers.LeastAllocated({"n1": 4, "n2": 4})
        self.assertIsNone(scheduler.place(job(0), Request((4, 4, 4))))
        self.assertEqual({"n1", "n2"}, set(scheduler.place(job(1), Request((4, 4))) or ()))


class NovaTaskGroupsTest(testtools.TestCase):
    """The scenario's requests, placed by nova's scheduler with the filter and the weigher."""

    def scheduler(self, cores: int = 32) -> schedulers.NovaTaskGroups:
        cloud = self.useFixture(kit.Cloud([kit.compute_node(name, cores) for name in Machine().hosts]))
        return schedulers.NovaTaskGroups(cloud)

    def place(self, scheduler: schedulers.NovaTaskGroups, each: Job, policy: str) -> Sequence[str] | None:
        return scheduler.place(each, scenarios.planned(each.benchmark, Machine(), policy))

    def test_groups_are_spread_and_a_network_bound_job_is_not(self) -> None:
        scheduler = self.scheduler()
        self.assertEqual(["n1", "n2", "n3", "n4"], self.place(scheduler, job(0), "scale"))
        self.assertEqual([f"n{1 + rank // 4}" for rank in range(16)], self.place(scheduler, job(1), "granularity"))
        self.assertEqual(1, len(self.place(scheduler, job(2, NETWORK), "granularity") or ()))

    def test_what_a_job_had_is_free_when_it_ends(self) -> None:
        scheduler = self.scheduler(cores=4)
        self.assertIsNotNone(self.place(scheduler, job(0), "scale"))
        self.assertIsNone(self.place(scheduler, job(1), "granularity"))
        scheduler.release(job(0))
        self.assertIsNotNone(self.place(scheduler, job(1), "granularity"))

    def test_containers_of_different_size_are_refused(self) -> None:
        error = self.assertRaises(ValueError, self.scheduler().place, job(0), Request((3, 2), 2))
        self.assertIn("[2, 3] cores", str(error))


class SocketsTest(testtools.TestCase):
    def test_a_container_gets_cores_of_the_freest_socket(self) -> None:
        host = sockets.Sockets((16, 16))
        self.assertEqual([[0] * 4, [1] * 4, [0] * 12, [1] * 4], [host.take(count) for count in (4, 4, 12, 4)])
        self.assertEqual([1] * 8, host.take(8))
        self.assertRaises(ValueError, host.take, 1)

    def test_a_larger_one_gets_the_rest_of_another(self) -> None:
        host = sockets.Sockets((16, 16))
        taken = host.take(20)
        self.assertEqual((16, 4), (taken.count(0), taken.count(1)))
        host.give(taken)
        self.assertEqual([16, 16], host.free)


class ScenarioTest(testtools.TestCase):
    def test_containers_of_each(self) -> None:
        found = {scenario.name: scenario.request(CPU, Machine()).containers for scenario in scenarios.ALL}
        self.assertEqual({"none": WHOLE.containers, "affinity": WHOLE.containers, "Kubeflow-like": WHOLE.containers,
                          "Volcano-like": (1,) * 16, "scale+groups": (4,) * 4, "granularity+groups": (1,) * 16}, found)

    def test_only_none_lets_ranks_float(self) -> None:
        floating = [each.name for each in scenarios.ALL if not each.request(CPU, Machine()).affinity]
        self.assertEqual(["none"], floating)


class WorkloadsTest(testtools.TestCase):
    def test_twenty_jobs_of_five_kinds_in_the_window(self) -> None:
        kinds = workloads.benchmarks(0.4)
        jobs = workloads.mixed(kinds, 1)
        self.assertEqual([4] * 5, [sum(1 for each in jobs if each.benchmark == kind) for kind in kinds])
        self.assertEqual(sorted(each.submitted for each in jobs), [each.submitted for each in jobs])
        self.assertTrue(all(0 <= each.submitted <= 1200 for each in jobs))
        self.assertEqual(jobs, workloads.mixed(kinds, 1))
        self.assertNotEqual(jobs, workloads.mixed(kinds, 2))

    def test_shares_of_time_are_whole(self) -> None:
        for kind in workloads.benchmarks(0.4):
            self.assertAlmostEqual(1.0, kind.compute + kind.memory + kind.messages)
