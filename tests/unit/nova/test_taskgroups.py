# SPDX-License-Identifier: Apache-2.0
"""Nova's own scheduler with the filter and the weigher of task groups."""

import collections
from typing import Any
from unittest import mock

import fixtures
import testtools
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nova import exception, objects, quota, utils
from nova.scheduler import weights

from nova_lxd_ext.scheduler import TaskGroupFilter, TaskGroupWeigher, capacity, jobs
from tests import levels
from tests.unit.nova import records
from tests.unit.nova import schedulerkit as kit
from tests.unit.nova.schedulerkit import Cloud, compute_node


class Base(testtools.TestCase):
    def cloud(self, *cores: int, **more: Any) -> Cloud:
        nodes = [compute_node(f"n{at}", count) for at, count in enumerate(cores)]
        return self.useFixture(Cloud(nodes, **more))

    def schedule(self, cloud: Cloud, count: int, policy: str = "soft-anti-affinity",
                 rules: dict[str, int] | None = None, spec: dict[str, Any] | None = None, **hints: Any) -> list[str]:
        servers = kit.uuids(count)
        group = kit.server_group(servers, policy, **rules or {})
        request = kit.request(servers[0], group, {key: str(value) for key, value in hints.items()}, count, **spec or {})
        return cloud.schedule(request, servers)

    def refused(self, cloud: Cloud, count: int, **arguments: Any) -> str:
        error = self.assertRaises(exception.NoValidHost, self.schedule, cloud, count, **arguments)
        self.assertEqual([], cloud.released)
        return str(error)


class OneRequestTest(Base):
    def test_16_servers_in_4_groups_are_4_4_4_4_in_rank_order(self) -> None:
        hosts = self.schedule(self.cloud(4, 4, 4, 4), 16, task_groups=4)
        self.assertEqual([f"n{rank // 4}" for rank in range(16)], hosts)

    def test_other_weighers_do_not_break_the_placement(self) -> None:
        hosts = self.schedule(self.cloud(64, 4, 4, 128), 8, task_groups=2)  # nova's own spread to n3
        self.assertEqual(["n1"] * 4 + ["n2"] * 4, hosts)

    def test_no_server_is_tried_again_outside_its_group(self) -> None:
        cloud = self.cloud(4, 4, 4)
        self.schedule(cloud, 8, task_groups=2)
        self.assertEqual({0}, {len(hosts) for hosts in cloud.alternates.values()})

    def test_all_or_nothing(self) -> None:
        cloud = self.cloud(4, 4, 4, 3)
        self.assertIn("no hosts have room for 16 servers of the job with 4 task groups",
                      self.refused(cloud, 16, task_groups=4))
        self.assertEqual(15, sum(collections.Counter(self.schedule(cloud, 15, task_groups=4)).values()))

    def test_claims_are_released_if_placement_has_less_room(self) -> None:
        cloud = self.cloud(4, 4)
        cloud.placement = {"n0": 4, "n1": 3}
        self.assertRaises(exception.NoValidHost, self.schedule, cloud, 8, task_groups=2)
        self.assertEqual(7, len(cloud.released))

    def test_ranks_follow_racks_and_switches(self) -> None:
        network = {"n0": {"rack": "2", "switch": "1"}, "n1": {"rack": "10", "switch": "1"},
                   "n2": {"rack": "2", "switch": "2"}, "n3": {"rack": "2", "switch": "1"}}
        hosts = self.schedule(self.cloud(2, 2, 2, 2, network=network), 6, task_groups=3)
        self.assertEqual(["n0", "n0", "n3", "n3", "n2", "n2"], hosts)
        hosts = self.schedule(self.cloud(2, 2, 2, 2, network=network), 4, task_groups=2)
        self.assertEqual(["n0", "n0", "n3", "n3"], hosts)

    def test_groups_share_hosts_unless_the_policy_is_anti_affinity(self) -> None:
        self.assertEqual({"n0": 4, "n1": 4}, collections.Counter(self.schedule(self.cloud(4, 4), 8, task_groups=4)))
        self.assertIn("8 servers", self.refused(self.cloud(4, 4), 8, task_groups=4, policy="anti-affinity",
                                                rules={"max_server_per_host": 2}))

    def test_anti_affinity_with_its_rule(self) -> None:
        hosts = self.schedule(self.cloud(9, 9, 9), 6, task_groups=3, policy="anti-affinity",
                              rules={"max_server_per_host": 2})
        self.assertEqual(["n0", "n0", "n1", "n1", "n2", "n2"], hosts)

    def test_one_group_with_affinity(self) -> None:
        self.assertEqual(["n1"] * 4, self.schedule(self.cloud(2, 4, 9), 4, task_groups=1, policy="affinity"))

    def test_memory_and_disk_count(self) -> None:
        nodes = [compute_node("memory", 9, memory_mb=3 * 512), compute_node("disk", 9, disk_gb=3),
                 compute_node("cores", 3), compute_node("ample", 4, memory_mb=4 * 512, disk_gb=4)]
        self.assertEqual(["ample"] * 4, self.schedule(self.useFixture(Cloud(nodes)), 4, task_groups=1))

    def test_volume_backed_servers_need_no_disk(self) -> None:
        cloud = self.useFixture(Cloud([compute_node("a", 4, disk_gb=0)]))
        self.refused(cloud, 4, task_groups=1)
        self.assertEqual(["a"] * 4, self.schedule(cloud, 4, task_groups=1, spec={"is_bfv": True}))

    def test_allocation_ratios_and_used_cores_count(self) -> None:
        nodes = [compute_node("a", 4, used=1), compute_node("b", 2, cpu_allocation_ratio=2.0)]
        self.assertEqual(["b"] * 4, self.schedule(self.useFixture(Cloud(nodes)), 4, task_groups=1))

    def test_requests_without_hints_are_left_alone(self) -> None:
        cloud = self.cloud(1, 2)
        self.assertEqual(1, len(cloud.schedule(kit.request(records.UUID, None, {}), [records.UUID])))
        spec = kit.request(records.UUID, None, {})
        self.assertEqual(2, len(TaskGroupFilter().filter_all(iter(cloud.host_states()), spec)))

    def test_a_server_group_may_be_used_again_when_its_servers_are_gone(self) -> None:
        cloud = self.cloud(2, 2)
        servers = kit.uuids(4)
        group = kit.server_group([*kit.uuids(3), *servers])
        self.assertEqual(["n0", "n0", "n1", "n1"],
                         cloud.schedule(kit.request(servers[0], group, {"task_groups": "2"}, 4), servers))

    @settings(deadline=None, max_examples=levels.budget(gate=16, exhaustive=40),
              suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=8),
           st.integers(1, 16), st.integers(1, 5))
    def test_never_overcommitted_and_all_or_nothing(self, drawn: list[tuple[int, int, int]], count: int, groups: int
                                                    ) -> None:
        assume(groups <= count)
        network = {f"n{at}": {"rack": str(rack), "switch": str(switch)} for at, (_, rack, switch) in enumerate(drawn)}
        cores = [cores for cores, _, _ in drawn]
        with Cloud([compute_node(f"n{at}", number) for at, number in enumerate(cores)], network) as cloud:
            enough = sum(sorted(cores, reverse=True)[:groups]) >= count
            try:
                placed = collections.Counter(self.schedule(cloud, count, task_groups=groups))
            except exception.NoValidHost:
                self.assertFalse(enough)
                return
        self.assertTrue(enough)
        self.assertEqual(count, sum(placed.values()))
        self.assertLessEqual(len(placed), groups)
        self.assertTrue(all(number <= cores[int(name[1:])] for name, number in placed.items()))


def numa_host(cells: int) -> Any:
    return objects.NUMATopology(cells=[objects.NUMACell(
        id=at, cpuset={2 * at, 2 * at + 1}, pcpuset={2 * at, 2 * at + 1}, memory=4096, cpu_usage=0,
        memory_usage=0, socket=at, pinned_cpus=set(), siblings=[{2 * at}, {2 * at + 1}],
        mempages=[objects.NUMAPagesTopology(size_kb=4, total=1 << 20, used=0)])
        for at in range(cells)])._to_json()


class DevicesTest(Base):
    def pci(self, count: int) -> objects.PciDevicePoolList:
        return objects.PciDevicePoolList(objects=[objects.PciDevicePool(
            vendor_id="10de", product_id="20b0", numa_node=0, count=count, tags={"dev_type": "type-PCI"})])

    def request(self) -> dict[str, Any]:
        spec = [{"vendor_id": "10de", "product_id": "20b0", "dev_type": "type-PCI"}]
        return {"pci_requests": objects.InstancePCIRequests(requests=[objects.InstancePCIRequest(
            request_id="8f2b6a0c-5c56-4b0e-9b5e-0a6f1f6d9a02", count=2, spec=spec, alias_name="gpu")])}

    def test_hosts_are_measured_in_devices_too(self) -> None:
        nodes = [compute_node(f"n{at}", 9, pci_device_pools=self.pci(count))
                 for at, count in enumerate((2, 5, 4, 1, 4))]
        cloud = self.useFixture(Cloud(nodes))
        self.assertEqual(["n2"] * 2 + ["n4"] * 2, self.schedule(cloud, 4, task_groups=2, spec=self.request()))
        self.refused(cloud, 8, task_groups=2, spec=self.request())

    def test_servers_without_devices_leave_hosts_with_devices_alone(self) -> None:
        cloud = self.useFixture(Cloud([compute_node("n0", 4, pci_device_pools=self.pci(8)), compute_node("n1", 64)]))
        self.assertEqual(["n1"] * 4, self.schedule(cloud, 4, task_groups=1))
        self.assertEqual(["n0"] * 4, self.schedule(cloud, 4, task_groups=1, spec=self.request()))

    def test_devices_are_not_left_without_cores(self) -> None:
        # A server has two devices and one core. Of n0 it would take the last cores, and leave six devices of no use.
        nodes = [compute_node("n0", 8, used=7, pci_device_pools=self.pci(8)),
                 compute_node("n1", 8, pci_device_pools=self.pci(8))]
        cloud = self.useFixture(Cloud(nodes))
        self.assertEqual(["n1"], self.schedule(cloud, 1, task_groups=1, spec=self.request()))

    def on_node(self, memory: int = 512, **cores: set[int]) -> dict[str, Any]:
        values: dict[str, Any] = {"cpuset": set(), "pcpuset": set(), **cores}
        cell = objects.InstanceNUMACell(id=0, memory=memory, pagesize=None, cpu_thread_policy=None, cpu_pinning=None,
                                        cpu_policy="dedicated" if values["pcpuset"] else None, **values)
        return {"numa_topology": objects.InstanceNUMATopology(cells=[cell])}

    def counted(self) -> list[str]:
        """The hosts that are asked exactly from now on."""
        found: list[str] = []
        exact = capacity.exact

        def counting(host: Any, *args: Any) -> int:
            found.append(host.host)
            return exact(host, *args)

        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.scheduler.capacity.exact", counting))
        return found

    def test_numa_nodes_are_counted_on_few_hosts(self) -> None:
        # By their cores the first hosts have room for as many as the others; a server has the memory of a node.
        counted = self.counted()
        nodes = [compute_node(f"n{at}", 64, numa_topology=numa_host(1 if at < 3 else 4)) for at in range(40)]
        cloud = self.useFixture(Cloud(nodes))
        self.assertEqual(["n3"] * 4, self.schedule(cloud, 4, task_groups=1, spec=self.on_node(4096, cpuset={0, 1})))
        self.assertEqual({"n0", "n1", "n2", "n3"}, set(counted))

    def test_no_host_is_asked_exactly_whose_nodes_have_not_the_cores(self) -> None:
        counted = self.counted()
        cloud = self.useFixture(Cloud([compute_node(f"n{at}", 64, numa_topology=numa_host(4)) for at in range(40)]))
        self.refused(cloud, 5, task_groups=1, spec=self.on_node(pcpuset={0, 1}))
        self.assertEqual([], counted)

    def test_numa_nodes(self) -> None:
        # Two servers of three pinned cores do not fit into nodes of two cores; two of two do.
        nodes = [compute_node("a", 64, numa_topology=numa_host(1)), compute_node("b", 64, numa_topology=numa_host(3))]
        cloud = self.useFixture(Cloud(nodes))
        spec = self.on_node(pcpuset={0, 1})
        self.assertEqual(["b"] * 3, self.schedule(cloud, 3, task_groups=1, spec=spec))
        self.refused(cloud, 4, task_groups=1, spec=spec)


class OneByOneTest(Base):
    """Servers that are made one after the other, as a gang start makes them, with ports of their own."""

    def setUp(self) -> None:
        super().setUp()
        self.homes: dict[str, str] = {}
        self.useFixture(fixtures.MonkeyPatch(
            "nova_lxd_ext.scheduler.jobs.hosts_of",
            lambda spec, group, servers: {self.homes[server] for server in servers}))

    def start(self, cloud: Cloud, members: int, groups: int, before: Any = lambda rank: None) -> list[str]:
        servers = kit.uuids(members)
        for rank, server in enumerate(servers):
            before(rank)
            group = kit.server_group(servers[:rank + 1], hosts=set(self.homes.values()))
            hints = {"task_groups": str(groups), "task_members": str(members), "task_rank": str(rank)}
            (self.homes[server],) = cloud.schedule(kit.request(server, group, hints), [server])
            self.assertEqual({server: []}, cloud.alternates)
            node = next(node for node in cloud.nodes if node.host == self.homes[server])
            node.vcpus_used += 1
        return [self.homes[server] for server in servers]

    def test_as_one_request_would_place_them(self) -> None:
        network = {"n0": {"rack": "2"}, "n1": {"rack": "1"}, "n2": {"rack": "2"}, "n3": {"rack": "1"}}
        self.assertEqual(["n1", "n1", "n3", "n3"], self.start(self.cloud(2, 2, 2, 2, network=network), 4, 2))

    def test_the_first_is_refused_if_not_all_fit(self) -> None:
        cloud = self.cloud(2, 1)
        self.assertRaises(exception.NoValidHost, self.start, cloud, 4, 2)
        self.assertEqual({}, self.homes)

    def test_full_hosts_that_nova_leaves_out_are_known_by_their_group(self) -> None:
        cloud = self.cloud(2, 2)

        def before(rank: int) -> None:
            cloud.nodes = [node for node in cloud.nodes if node.vcpus_used < node.vcpus]

        self.assertEqual(["n0", "n0", "n1", "n1"], self.start(cloud, 4, 2, before))

    def test_taken_by_another_in_between_the_next_is_refused(self) -> None:
        cloud = self.cloud(2, 2)

        def before(rank: int) -> None:
            if rank == 2:
                cloud.nodes[1].vcpus_used = 1

        self.assertRaises(exception.NoValidHost, self.start, cloud, 4, 2, before)
        self.assertEqual(2, len(self.homes))


class HostsOfTest(testtools.TestCase):
    def test_the_database_of_every_cell_is_asked_for_these_servers_alone(self) -> None:
        asked: list[objects.InstanceGroup] = []

        def all_cells(context: Any, group: objects.InstanceGroup) -> list[str]:
            asked.append(group.obj_clone())  # as nova does for each cell
            return ["n1", "n1", "n2"]

        self.useFixture(fixtures.MonkeyPatch("nova.scheduler.utils._get_instance_group_hosts_all_cells", all_cells))
        members = kit.uuids(3)
        group = kit.server_group(members)
        self.assertEqual({"n1", "n2"}, jobs.hosts_of(kit.request(members[2], group, {}), group, members[:2]))
        self.assertEqual([(group.uuid, members[:2])], [(found.uuid, found.members) for found in asked])
        self.assertEqual(members, group.members)


class BadInputTest(Base):
    def reason(self, count: int = 4, **arguments: Any) -> str:
        return self.refused(self.cloud(9, 9), count, **arguments)

    def test_hints(self) -> None:
        for hints, words in (
                ({"task_groups": "two"}, "task_groups='two' is not a number"),
                ({"task_groups": 0}, "task_groups=0 is not from 1 to"),
                ({"task_groups": 10**7}, "is not a number"),
                ({"task_groups": 5}, "task_groups=5 is more than the job's 4 servers"),
                ({"task_rank": 1}, "task_groups is missing"),
                ({"task_groups": 2, "task_rank": 1}, "remove task_rank"),
                ({"task_groups": 2, "task_members": 8}, "creates 4 of task_members=8 servers")):
            self.assertIn(words, self.reason(**hints), hints)
        self.assertIn("without its rank: give task_rank, 0 to 7", self.reason(1, task_groups=2, task_members=8))
        self.assertIn("task_rank=8 is not below", self.reason(1, task_groups=2, task_members=8, task_rank=8))
        self.assertIn("has 0 servers before this one", self.reason(1, task_groups=2, task_members=8, task_rank=1))

    def large(self, quotas: dict[str, int], **arguments: Any) -> str:
        """Return why a job of 1000 servers is refused, of which none may be listed."""
        found = {name: {"limit": limit} for name, limit in quotas.items()}
        with mock.patch.object(quota.QUOTAS, "get_project_quotas", return_value=found), \
                mock.patch.object(jobs, "divide", side_effect=AssertionError):
            return self.reason(1, task_members=1000, task_rank=0, **arguments)

    def test_job_of_more_servers_than_the_quota_is_refused_before_they_are_listed(self) -> None:
        for quotas in ({"instances": 10, "server_group_members": -1}, {"instances": -1, "server_group_members": 999}):
            self.assertIn(f"task_members=1000 is more than the {max(quotas.values())} that the project's quota",
                          self.large(quotas, task_groups=2))

    def test_job_that_cannot_fit_is_refused_before_its_servers_are_listed(self) -> None:
        unlimited = dict.fromkeys(jobs.QUOTAS, -1)
        self.assertIn("the hosts lack room", self.large(unlimited, task_groups=2))
        # Hosts with more room than there are servers, and fewer of them than groups.
        self.assertIn("the hosts lack room", self.large(unlimited, task_groups=1000, policy="anti-affinity",
                                                       spec={"flavor": records.flavor(vcpus=0, memory_mb=0, root_gb=0)}
                                                       ))

    def test_number_of_servers_is_limited(self) -> None:
        self.assertIn(f"task_members={jobs.MOST_MEMBERS + 1} is not from 1 to", self.reason(
            1, task_groups=1, task_rank=0, task_members=jobs.MOST_MEMBERS + 1))

    def test_policies_that_contradict(self) -> None:
        self.assertIn("affinity puts all servers on one host", self.reason(task_groups=2, policy="affinity"))
        self.assertIn("set its rule max_server_per_host=2", self.reason(task_groups=2, policy="anti-affinity"))

    def test_no_server_group(self) -> None:
        spec = kit.request(records.UUID, None, {"task_groups": "1"})
        error = self.assertRaises(exception.NoValidHost, self.cloud(1).schedule, spec, [records.UUID])
        self.assertIn("needs a server group", str(error))

    def test_server_group_of_another_job(self) -> None:
        servers = kit.uuids(2)
        group = kit.server_group([*kit.uuids(1), *servers], hosts=["n1"])
        spec = kit.request(servers[0], group, {"task_groups": "1"}, 2)
        error = self.assertRaises(exception.NoValidHost, self.cloud(4, 4).schedule, spec, servers)
        self.assertIn("the server group already has servers, on 1 hosts", str(error))

    def test_server_group_of_another_project(self) -> None:
        servers = kit.uuids(2)
        group = kit.server_group([*kit.uuids(1), *servers], hosts=["n1"])
        group.project_id = "other"
        spec = kit.request(servers[0], group, {"task_groups": "1"}, 2)
        error = self.assertRaises(exception.NoValidHost, self.cloud(4, 4).schedule, spec, servers)
        self.assertIn("belongs to another project", str(error))
        self.assertNotIn("1 hosts", str(error))


class MoveTest(Base):
    def moved(self, cloud: Cloud, server: str, group: objects.InstanceGroup, hints: dict[str, str], count: int
              ) -> dict[str, float]:
        spec = kit.request(server, group, hints, count,
                           requested_destination=objects.Destination(cell=objects.CellMapping(uuid=kit.CELL)))
        hosts = TaskGroupFilter().filter_all(cloud.host_states(), spec)
        self.assertEqual(len(cloud.nodes), len(hosts))
        found = TaskGroupWeigher().weigh_objects([weights.WeighedHost(host, 0.0) for host in hosts], spec)
        return {host.host: weight for host, weight in zip(hosts, found, strict=True)}

    def test_prefers_its_group_then_a_host_without_others(self) -> None:
        cloud = self.cloud(9, 9, 9)
        servers = kit.uuids(4)
        for server, host in zip(servers, ("n0", "n0", "n1", "n1"), strict=True):
            cloud.instances[host][server] = objects.Instance(uuid=server)
        group = kit.server_group(servers, hosts=["n0", "n1"])
        self.assertEqual({"n0": 2.0, "n1": 0.0, "n2": 1.0},
                         self.moved(cloud, servers[1], group, {"task_groups": "2"}, 4))
        alone = {"task_groups": "2", "task_members": "4", "task_rank": "1"}
        self.assertEqual({"n0": 2.0, "n1": 0.0, "n2": 1.0}, self.moved(cloud, servers[1], group, alone, 1))

    def test_what_cannot_be_known_moves_freely(self) -> None:
        cloud = self.cloud(9, 9)
        servers = kit.uuids(4)
        for members in ([*kit.uuids(2), *servers], servers[1:]):
            self.assertEqual({0.0}, set(self.moved(cloud, servers[0], kit.server_group(members), {"task_groups": "2"},
                                                   4).values()))
        self.assertEqual({0.0}, set(self.moved(cloud, servers[0], kit.server_group(servers), {"task_groups": "x"},
                                               4).values()))

    def test_rebuild_and_new_servers_are_no_moves(self) -> None:
        self.assertFalse(jobs.is_move(kit.request(records.UUID, None, {})))
        asked = objects.Destination(host="n0", node="n0")
        self.assertFalse(jobs.is_move(kit.request(records.UUID, None, {}, requested_destination=asked)))


class ReplacementTest(Base):
    """A server that was made anew for a rank: of 4 in 2 groups on n0 and n1, where others of the job are."""

    def setUp(self) -> None:
        super().setUp()
        self.servers = kit.uuids(5)
        self.ranks: dict[str, int] = {}
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.scheduler.jobs.replaced_rank",
                                             lambda spec, server: self.ranks.get(server)))

    def replaced(self, cloud: Cloud, rank: int, avoid: str, more: list[str] | None = None, policy: str =
                 "soft-anti-affinity", **rules: int) -> str:
        server = kit.uuids(1)[0]
        group = kit.server_group([*self.servers[:4], *(more or []), server], policy, **rules)
        hints = {"task_groups": "2", "task_members": "4", "task_rank": str(rank), "task_avoid": avoid}
        self.ranks[server] = rank
        return cloud.schedule(kit.request(server, group, hints), [server])[0]

    def running(self, *cores: int, **where: int) -> Cloud:
        cloud = self.cloud(*cores)
        for server, at in where.items():
            cloud.instances[f"n{at}"][self.servers[int(server[1:])]] = objects.Instance()
        return cloud

    def test_goes_to_another_host_by_host_id_or_name(self) -> None:
        host_id = utils.generate_hostid("n0", "p")
        for avoid in (host_id, host_id[:12], "n0"):
            cloud = self.running(9, 9, 9, s0=0, s2=1, s3=1)  # n1 has the other group
            self.assertEqual("n2", self.replaced(cloud, 1, avoid))
        self.assertRaises(exception.NoValidHost, self.replaced, self.running(9, s0=0), 1, host_id)

    def test_prefers_the_host_of_its_group(self) -> None:
        self.assertEqual("n3", self.replaced(self.running(9, 9, 9, 9, s0=3, s2=1, s3=1), 1, "n0"))

    def test_needs_room_for_itself_alone(self) -> None:
        self.assertEqual("n2", self.replaced(self.running(0, 0, 1, s1=0, s2=1, s3=1), 0, "n0"))

    def test_next_member_of_the_group_follows_the_first(self) -> None:
        cloud = self.running(9, 9, 9, 9, s2=1, s3=1)
        first = self.replaced(cloud, 0, "n0")
        (made,) = self.ranks
        self.assertEqual(first, self.replaced(cloud, 1, "n0", [made]))

    def test_strict_group_does_not_join_a_full_host(self) -> None:
        cloud = self.running(9, 9, s0=0, s2=1, s3=1)
        self.assertRaises(exception.NoValidHost, self.replaced, cloud, 1, "n0", None, "anti-affinity",
                          max_server_per_host=2)

    def test_wrong_hints(self) -> None:
        cloud = self.running(9, 9)
        for avoid in ("", "a b", "x" * 256):
            error = self.assertRaises(exception.NoValidHost, self.replaced, cloud, 1, avoid)
            self.assertIn("give a server's hostId, or 12 of its digits", str(error))
        self.assertIn("not below task_members=4", str(self.assertRaises(exception.NoValidHost, self.replaced, cloud, 4,
                                                                        "n0")))

    def test_rank_of_an_earlier_replacement_is_read_from_its_request(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.scheduler.jobs.replaced_rank", self.replaced_rank))
        spec = kit.request(self.servers[0], None, {"task_groups": "2", "task_members": "4", "task_rank": "3"})
        with mock.patch.object(objects.RequestSpec, "get_by_instance_uuid") as read:
            read.return_value = spec
            self.assertEqual(3, jobs.replaced_rank(spec, self.servers[0]))
            read.side_effect = exception.RequestSpecNotFound(instance_uuid=self.servers[0])
            self.assertIsNone(jobs.replaced_rank(spec, self.servers[0]))

    replaced_rank = staticmethod(jobs.replaced_rank)

    def test_moves_as_others_do(self) -> None:
        cloud = self.running(9, 9)
        group = kit.server_group(self.servers)
        hints = {"task_groups": "2", "task_members": "4", "task_rank": "1", "task_avoid": "n0"}
        spec = kit.request(self.servers[4], group, hints,
                           requested_destination=objects.Destination(cell=objects.CellMapping(uuid=kit.CELL)))
        self.assertEqual(2, len(TaskGroupFilter().filter_all(cloud.host_states(), spec)))
