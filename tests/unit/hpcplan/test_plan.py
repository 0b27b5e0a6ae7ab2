# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import testtools
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.engines import affinity
from containerhost.inventory.topology import Topology
from containerhost.operator.cli import main
from hpcjob import files
from hpcjob import job as jobs
from hpcplan import plan as planner
from hpcplan import planformats
from hpcplan.affinity import Affinity
from hpcplan.errors import NoPlacement, PlanError
from hpcplan.plan import Fabric, Nodes, Plan, Policy, Profile
from tests import levels
from tests.unit.containerhost.engines.test_affinity import CPU, node

NODES = Nodes(4, 32)  # two sockets of 16


def plan(tasks: int, profile: Profile, policy: Policy | None = Policy.SCALE, nodes: Nodes = NODES, **more: Any) -> Plan:
    return planner.plan(tasks, profile, nodes, policy, **more)


def shape(found: Plan) -> tuple[int, tuple[int, ...], Affinity]:
    return found.nodes, found.containers, found.affinity


def sources(found: Plan, words: str) -> list[str]:
    return [advice.source for advice in found.advice if words in advice.text]


class RecommendationsTest(testtools.TestCase):
    """One test for each row of the thesis' recommendations."""

    def test_network_bound_is_one_container_on_one_node(self) -> None:
        found = plan(32, Profile.NETWORK)
        self.assertEqual((1, (32,), Affinity.CPU), shape(found))
        self.assertEqual(["6.3.1, 6.5"], sources(found, "network-bound"))

    def test_network_bound_beyond_a_node_is_one_container_on_each(self) -> None:
        self.assertEqual((2, (32, 32), Affinity.CPU), shape(plan(64, Profile.NETWORK, Policy.GRANULARITY)))

    def test_cpu_bound_granularity_is_one_rank_in_each_container_on_its_core(self) -> None:
        found = plan(16, Profile.CPU, Policy.GRANULARITY)
        self.assertEqual((4, (1,) * 16, Affinity.CPUMEMPIN), shape(found))
        self.assertEqual(["3.3.4, 6.4.2"], sources(found, "CPU-bound"))

    def test_cpu_bound_scale_is_one_container_on_each_node(self) -> None:
        self.assertEqual((4, (4,) * 4, Affinity.CPUMEMPIN), shape(plan(16, Profile.CPU)))

    def test_memory_bound_is_spread_over_nodes_and_sockets(self) -> None:
        found = plan(16, Profile.MEMORY)
        self.assertEqual((4, (4,) * 4, Affinity.CPU), shape(found))
        self.assertEqual(["6.4.3"], sources(found, "bandwidth: spread"))

    def test_small_containers_that_hosts_put_on_one_socket_are_told(self) -> None:
        for profile in (Profile.MEMORY, Profile.CPU_MEMORY, Profile.INFERENCE):
            self.assertEqual(["3.4.2, 6.4.3"], sources(plan(16, profile, Policy.GRANULARITY), "one socket before the"))
            self.assertEqual([], sources(plan(128, profile, Policy.GRANULARITY), "one socket before the"))
        self.assertEqual([], sources(plan(16, Profile.CPU, Policy.GRANULARITY), "one socket before the"))
        self.assertEqual([], sources(plan(16, Profile.MEMORY), "one socket before the"))

    def test_cpu_and_memory_bound_is_spread_and_pinned(self) -> None:
        self.assertEqual((4, (1,) * 64, Affinity.CPUMEMPIN), shape(plan(64, Profile.CPU_MEMORY, Policy.GRANULARITY)))

    def test_network_and_memory_bound_is_one_container_on_each_socket(self) -> None:
        found = plan(32, Profile.NETWORK_MEMORY)
        self.assertEqual((1, (16, 16), Affinity.CPUMEM), shape(found))
        self.assertEqual(["3.5.4"], sources(found, "about 8 %"))

    def test_many_small_messages_are_one_container_on_one_socket(self) -> None:
        found = plan(16, Profile.NETWORK)
        self.assertEqual((1, (16,), Affinity.CPUMEM), shape(found))
        self.assertEqual(["3.3.4"], sources(found, "small messages"))

    def test_oversubscribed_ranks_are_pinned(self) -> None:
        found = plan(32, Profile.NETWORK, nodes=Nodes(1, 16, 1), ranks_per_core=2)
        self.assertEqual((1, (32,), Affinity.CPUMEMPIN), shape(found))
        self.assertEqual(16, found.cores)
        self.assertEqual(["3.3.4, 3.4.4"], sources(found, "mpi_yield_when_idle"))

    def test_network_advice_depends_on_the_fabric(self) -> None:
        words = {Fabric.ETHERNET: "Ethernet", Fabric.ROCE: "RoCE", Fabric.INFINIBAND: "macvlan does not work"}
        for fabric in Fabric:
            found = plan(16, Profile.CPU, fabric=fabric)
            self.assertEqual([fabric], [other for other, word in words.items() if sources(found, word)])
        self.assertTrue(all(sources(plan(16, Profile.CPU), word) for word in words.values()))

    def test_inference_of_one_stream_is_one_container_on_each_socket(self) -> None:
        found = plan(128, Profile.INFERENCE)
        self.assertEqual((4, (16,) * 8, Affinity.CPUMEM), shape(found))
        self.assertEqual(["4.3"], sources(found, "one stream"))

    def test_inference_under_high_load_is_finer(self) -> None:
        found = plan(128, Profile.INFERENCE, Policy.GRANULARITY)
        self.assertEqual((4, (1,) * 128, Affinity.CPUMEM), shape(found))
        self.assertEqual(["4.3"], sources(found, "high load"))

    def test_several_containers_on_a_node_would_share_memory(self) -> None:
        self.assertEqual(["3.3.5"], sources(plan(16, Profile.CPU, Policy.GRANULARITY), "shared memory"))
        self.assertEqual([], sources(plan(16, Profile.CPU), "shared memory"))

    def test_threads_are_as_many_as_cores(self) -> None:
        self.assertEqual(["4.3.2"], sources(plan(16, Profile.CPU), "threads in a container as it has cores: 4"))


class AlgorithmTest(testtools.TestCase):
    def test_number_of_containers_of_the_user(self) -> None:
        self.assertEqual((4, (8,) * 8, Affinity.CPUMEMPIN), shape(plan(64, Profile.CPU, None, containers=8)))
        self.assertEqual((2, (8, 8), Affinity.CPUMEMPIN), shape(plan(16, Profile.CPU, None, containers=2)))

    def test_rest_is_spread(self) -> None:
        self.assertEqual((3, 3, 2, 2), plan(10, Profile.CPU).containers)

    def test_more_ranks_than_cores_are_refused_with_the_arithmetic(self) -> None:
        error = self.assertRaises(NoPlacement, plan, 129, Profile.CPU)
        self.assertIn("4 * 32 * 1 = 128", str(error))

    def test_nodes_that_are_there_are_used_before_a_plan_is_refused(self) -> None:
        found = plan(12, Profile.NETWORK, None, Nodes(4, 8), containers=5)
        self.assertEqual((3, (3, 3, 2, 2, 2)), (found.nodes, found.containers))

    def test_containers_that_nodes_do_not_divide_are_refused(self) -> None:
        error = self.assertRaises(NoPlacement, plan, 10, Profile.CPU, None, Nodes(2, 5, 1), containers=3)
        self.assertIn("3 containers of 4 tasks, 4 cores each, on 2 nodes need 8 cores of one, which has 5", str(error))

    def test_sockets_have_room_for_containers_that_are_bound_to_one(self) -> None:
        """Of 10 cores each socket of 16 takes one; of 3 cores each socket of 8 takes two."""
        for tasks, containers, nodes, expected in (
                (30, 3, Nodes(1, 32), (1, Affinity.CPU)), (11, 5, Nodes(1, 16), (1, Affinity.CPU)),
                (30, 3, Nodes(2, 32), (2, Affinity.CPUMEMPIN))):
            found = plan(tasks, Profile.CPU, None, nodes, containers=containers)
            self.assertEqual(expected, (found.nodes, found.affinity), (tasks, containers, nodes))

    def test_fewer_cores_than_sockets_are_not_spread(self) -> None:
        found = plan(2, Profile.NETWORK, nodes=Nodes(1, 4, 4))
        self.assertEqual((1, (2,), Affinity.ANY), shape(found))
        self.assertEqual(["3.4.2"], sources(found, "affinity any"))

    def test_containers_without_room_on_sockets_are_refused_with_the_arithmetic(self) -> None:
        error = self.assertRaises(NoPlacement, plan, 10, Profile.CPU, None, Nodes(1, 12, 4), containers=5)
        self.assertIn("5 containers of 2 cores on one node, whose 4 sockets of 3 cores have room for 4", str(error))

    def test_wrong_numbers_are_refused(self) -> None:
        for wrong in ({"tasks": 0}, {"nodes": Nodes(0, 1, 1)}, {"nodes": Nodes(1, 0, 1)}, {"nodes": Nodes(1, 1, 2)},
                      {"containers": 0, "policy": None}, {"containers": 17, "policy": None}, {"ranks_per_core": 0},
                      {"containers": 2}, {"policy": None}):
            arguments: dict[str, Any] = {"tasks": 16, "profile": Profile.CPU, **wrong}
            self.assertRaises(PlanError, plan, **arguments)

    @given(tasks=st.integers(1, 300), profile=st.sampled_from(Profile), policy=st.sampled_from(Policy),
           count=st.integers(1, 8), sockets=st.integers(1, 4), per_socket=st.integers(1, 20), ranks=st.integers(1, 3))
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    def test_plan_has_every_task_and_fits(self, tasks: int, profile: Profile, policy: Policy, count: int, sockets: int,
                                          per_socket: int, ranks: int) -> None:
        nodes = Nodes(count, sockets * per_socket, sockets)
        try:
            found = plan(tasks, profile, policy, nodes, ranks_per_core=ranks)
        except NoPlacement:
            return
        self.assertEqual(tasks, sum(found.containers))
        self.assertLessEqual(found.nodes, min(count, len(found.containers)))
        self.assertLessEqual(-(-len(found.containers) // found.nodes) * found.cores, nodes.cores)
        if found.affinity in (Affinity.CPUMEM, Affinity.CPUMEMPIN):
            self.assertLessEqual(found.cores, per_socket)

    @given(tasks=st.integers(1, 40), profile=st.sampled_from(Profile), policy=st.sampled_from((*Policy, None)),
           containers=st.integers(1, 12), count=st.integers(1, 3), sockets=st.integers(1, 4), cores=st.integers(1, 20),
           ranks=st.integers(1, 3))
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    def test_hosts_take_what_is_recommended(self, tasks: int, profile: Profile, policy: Policy | None, containers: int,
                                            count: int, sockets: int, cores: int, ranks: int) -> None:
        nodes = Nodes(count, cores, sockets)
        try:
            found = planner.plan(tasks, profile, nodes, policy, containers=None if policy else containers,
                                 ranks_per_core=ranks)
        except PlanError:
            return
        for fabric in planner.Fabric:  # it changes nothing but advice
            self.assertEqual(shape(found), shape(planner.plan(
                tasks, profile, nodes, policy, containers=None if policy else containers, ranks_per_core=ranks,
                fabric=fabric)))
        on_fullest = found.containers[:-(-len(found.containers) // found.nodes)]
        self.assertEqual([affinity.Binding] * len(on_fullest), list(map(type, placed(found, nodes, on_fullest))))


def host(nodes: Nodes) -> Topology:
    """Return a host whose sockets have as equal a number of cores as can be."""
    first, found = 0, []
    for socket in range(nodes.sockets):
        size = nodes.cores // nodes.sockets + (socket < nodes.cores % nodes.sockets)
        found.append(node(socket, [(core,) for core in range(first, first + size)]))
        first += size
    return Topology(tuple(found), CPU)


def placed(found: Plan, nodes: Nodes, tasks: Sequence[int]) -> Iterator[affinity.Binding]:
    """Place containers on a host one after the other, as a driver does."""
    taken: frozenset[int] = frozenset()
    for ranks in tasks:
        yield (binding := affinity.place(host(nodes), range(nodes.cores), taken, affinity.Request(
            found.affinity, found.cores, ranks)))
        taken |= binding.cores


class FormatsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.plan = plan(16, Profile.CPU, None, containers=8)

    def written(self, form: str) -> str:
        return planformats.FORMATS[form](self.plan, "wave")

    def test_job_file_is_read_by_hpcjob(self) -> None:
        job = jobs.parse(self.written("job"))
        self.assertEqual(("wave", 8, 4, 2), (job.name, job.members, job.groups, job.slots))
        self.assertIn("hpc:affinity=cpumempin", self.written("job"))
        self.assertIn("mpirun -np 16", self.written("job"))
        self.assertFalse(job.oversubscribe)
        self.plan = plan(32, Profile.NETWORK, nodes=Nodes(1, 16, 1), ranks_per_core=2)
        self.assertTrue(jobs.parse(self.written("job")).oversubscribe)

    def test_job_file_and_hostfile_have_the_same_slots(self) -> None:
        for tasks, containers in ((4, 3), (10, 4), (8, 4), (5, 1)):
            self.plan = plan(tasks, Profile.CPU, None, containers=containers)
            job = jobs.parse(self.written("job"))
            members = [jobs.Member(rank, 0, f"wave-{rank}", f"wave-{rank}") for rank in range(containers)]
            self.assertEqual(self.written("hostfile"), files.hostfile(job, members).rstrip("\n"))

    def test_groups_are_those_of_the_job(self) -> None:
        """All containers have the same cores, so a group has as many as another one, or one more."""
        for tasks, containers, nodes in ((4, 3, 2), (30, 12, 5), (16, 8, 4)):
            self.plan = dataclasses.replace(plan(tasks, Profile.CPU, None, containers=containers), nodes=nodes)
            roles = [role["cardinality"] for role in json.loads(self.written("oneflow"))["roles"]]
            division = jobs.parse(self.written("job")).division()
            self.assertEqual([division.count(group) for group in range(nodes)], roles)

    def test_time_of_a_large_job(self) -> None:
        self.plan = plan(10_000, Profile.CPU, None, Nodes(10_000, 8), containers=10_000)
        for form in planformats.FORMATS:
            began = time.process_time()
            self.written(form)
            self.assertLess(time.process_time() - began, 8 if form == "heat" else 1, form)

    def test_json_has_every_source(self) -> None:
        found = json.loads(self.written("json"))
        self.assertEqual([2] * 8, found["containers"])
        self.assertTrue(all(advice["source"] for advice in found["advice"]))

    def test_text_names_the_sources(self) -> None:
        self.assertIn("affinity: cpumempin", self.written("text"))
        self.assertIn("[3.3.4, 6.4.2]", self.written("text"))

    def test_heat_makes_the_members_in_the_order_of_ranks(self) -> None:
        resources = yaml.safe_load(self.written("heat"))["resources"]
        self.assertEqual({"group": {"get_resource": "group"}, "task_groups": 4, "task_members": 8, "task_rank": 7},
                         resources["member7"]["properties"]["scheduler_hints"])
        self.assertEqual("member6", resources["member7"]["depends_on"])

    def test_openstack_commands_make_all_at_once(self) -> None:
        flavor, _, servers = self.written("openstack").splitlines()
        self.assertIn("--vcpus 2 ", flavor)
        self.assertIn("hpc:affinity=cpumempin", flavor)
        self.assertIn("--min 8 --max 8", servers)
        self.assertIn("--hint task_groups=4", servers)

    def test_oneflow_has_a_role_for_each_group(self) -> None:
        roles = json.loads(self.written("oneflow"))["roles"]
        self.assertEqual([("g0", 2), ("g1", 2), ("g2", 2), ("g3", 2)],
                         [(role["name"], role["cardinality"]) for role in roles])
        self.assertEqual({"AFFINITY": "cpumempin"}, roles[0]["template_contents"]["HPC"])

    def test_vm_group_keeps_groups_apart(self) -> None:
        self.assertIn('ANTI_AFFINED="g0,g1,g2,g3"', self.written("vmgroup"))
        self.plan = plan(16, Profile.NETWORK)
        self.assertNotIn("ANTI_AFFINED", self.written("vmgroup"))

    def test_hostfile_has_the_tasks_of_each_container(self) -> None:
        self.assertEqual([f"wave-{rank} slots=2" for rank in range(8)], self.written("hostfile").splitlines())

    def test_rankfile_has_every_rank_once(self) -> None:
        self.plan = plan(5, Profile.CPU, None, containers=2)
        self.assertEqual(["rank 0=wave-0 slot=0", "rank 1=wave-0 slot=1", "rank 2=wave-0 slot=2",
                          "rank 3=wave-1 slot=0", "rank 4=wave-1 slot=1"], self.written("rankfile").splitlines())


class CommandTest(testtools.TestCase):
    def run_plan(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["plan", "--nodes", "4", "--cores", "32", *arguments])

    def test_plan_is_printed_in_the_format(self) -> None:
        result = self.run_plan("--tasks", "16", "--profile", "cpu", "--policy", "granularity", "--output", "hostfile",
                               "--name", "wave")
        self.assertEqual((0, "wave-15 slots=1"), (result.exit_code, result.output.splitlines()[-1]))

    def test_unknown_profile_is_refused_with_those_there_are(self) -> None:
        result = self.run_plan("--tasks", "16", "--profile", "disk", "--policy", "scale")
        self.assertEqual(2, result.exit_code)
        self.assertIn("network+memory", result.output)

    def test_more_ranks_than_cores_are_refused(self) -> None:
        result = self.run_plan("--tasks", "129", "--profile", "cpu", "--policy", "scale")
        self.assertEqual(1, result.exit_code)
        self.assertIn("129 tasks are more than 4 nodes of 32 cores", result.output)

    def test_name_that_a_shell_would_read_otherwise_is_refused(self) -> None:
        result = self.run_plan("--tasks", "16", "--profile", "cpu", "--policy", "scale", "--name", "a;b")
        self.assertEqual(1, result.exit_code)
