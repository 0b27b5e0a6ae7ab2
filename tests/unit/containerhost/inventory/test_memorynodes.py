# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that is a NUMA node is not the host's; other nodes without processors are."""

from unittest import mock

import testtools

from containerhost.devices.grants import Grant, GrantOptions
from containerhost.engines import affinity
from containerhost.engines.corebinding import CoreBinding, unbound
from containerhost.engines.docker import config as docker_config
from containerhost.engines.lxd import config as lxd_config
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.errors import EngineError
from containerhost.inventory import memorynodes, topology
from containerhost.inventory.scan import scan
from containerhost.operator.doctor import numa
from containerhost.vendors import make_grant
from containerhost.vendors.nvidia.vendor import Nvidia
from onedriver.node import probes
from tests.unit.containerhost.hosts import Broken
from tests.unit.containerhost.operator.doctor.cases import DoctorCase
from tests.unit.nova.fakes import FakeEngine

GIB = 1 << 30
NODES, GPU = "/sys/devices/system/node", "0000:3b:00.0"


def add_node(tree: Broken, number: int, gibibytes: int, distances: str = "10 21 80") -> None:
    """Add a node without processors."""
    kilobytes = gibibytes << 20
    tree.write(f"{NODES}/node{number}/cpulist", "\n")
    tree.write(f"{NODES}/node{number}/distance", f"{distances}\n")
    tree.write(f"{NODES}/node{number}/meminfo",
               f"Node {number} MemTotal: {kilobytes} kB\nNode {number} MemFree: {kilobytes} kB\n")


def is_coherent(tree: Broken) -> None:
    """Make the GPU one that shares its memory with the processors."""
    alias = tree.function(GPU) / "modalias"
    alias.write_text(alias.read_text().replace("20B0", "2342"))


class NodesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        add_node(self.tree, 2, 96)

    def read(self) -> topology.Topology:
        return topology.read(self.tree.host)

    def numbers(self) -> tuple[list[int], list[int]]:
        found = self.read()
        return [node.id for node in found.nodes], [node.id for node in found.of_devices]

    def test_memory_without_processors_and_gpu_is_the_hosts(self) -> None:
        self.assertEqual(([0, 1, 2], []), self.numbers())

    def test_node_of_a_generic_initiator_is_not_the_hosts(self) -> None:
        self.tree.write(f"{NODES}/has_generic_initiator", "2-9\n")
        self.assertEqual(([0, 1], [2]), self.numbers())

    def test_processors_beside_a_generic_initiator_are_the_hosts(self) -> None:
        self.tree.write(f"{NODES}/has_generic_initiator", "0,2\n")
        self.assertEqual(([0, 1], [2]), self.numbers())

    def test_node_that_the_driver_names_is_not_the_hosts(self) -> None:
        self.tree.write(f"/proc/driver/nvidia/gpus/{GPU}/numa_status", "Node:                      2\nStatus: online\n")
        self.assertEqual(([0, 1], [2]), self.numbers())
        self.assertEqual({GPU: 2}, Nvidia.memory_nodes(self.tree.host))

    def test_without_either_a_gpu_of_coherent_memory_decides(self) -> None:
        is_coherent(self.tree)
        add_node(self.tree, 3, 0)
        self.assertEqual(([0, 1], [2]), self.numbers())

    def test_memory_on_cxl_beside_such_a_gpu_is_the_hosts(self) -> None:
        is_coherent(self.tree)
        add_node(self.tree, 3, 64)
        self.tree.write("/sys/bus/dax/devices/dax0.0/target_node", "3\n")
        self.assertEqual(([0, 1, 3], [2]), self.numbers())

    def test_empty_node_is_nothing(self) -> None:
        add_node(self.tree, 3, 0)
        self.assertEqual(([0, 1, 2], []), self.numbers())


class SumsTest(testtools.TestCase):
    """Node 1 is a GPU's, and nodes 0 and 2 have processors."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        nodes = self.tree.path(NODES)
        (nodes / "node1").rename(nodes / "node2")
        meminfo = nodes / "node2/meminfo"
        meminfo.write_text(meminfo.read_text().replace("Node 1", "Node 2"))
        for number, distances in ((0, "10 80 21"), (2, "21 80 10")):
            (nodes / f"node{number}/distance").write_text(f"{distances}\n")
        self.before, self.memory = topology.read(self.tree.host), topology.memory(self.tree.host)
        add_node(self.tree, 1, 96, "80 10 80")
        self.tree.write(f"{NODES}/has_generic_initiator", "1\n")
        table = self.tree.path("/proc/meminfo")
        lines = [line.split() for line in table.read_text().splitlines()]
        table.write_text("".join(f"{key} {int(value) + (96 << 20) if key in ('MemTotal:', 'MemAvailable:') else value} "
                                 f"{' '.join(rest)}\n" for key, value, *rest in lines))
        self.found = topology.read(self.tree.host)

    def test_sums_are_those_of_the_hosts_memory(self) -> None:
        self.assertEqual(self.memory, topology.memory(self.tree.host))

    def test_opennebula_is_told_of_the_hosts_nodes(self) -> None:
        rows = [row for row in probes.numa_system(self.found.nodes) if row.startswith("MEMORY_NODE")]
        self.assertEqual(['DISTANCE="0 2"', 'DISTANCE="2 0"'], [row.split(", ")[-1].split(" ]")[0] for row in rows])

    def test_distances_are_those_of_the_hosts_nodes(self) -> None:
        self.assertEqual([(10, 21), (21, 10)], [node.distances for node in self.found.nodes])

    def test_containers_are_bound_to_the_hosts_memory(self) -> None:
        cores = frozenset().union(*(node.cpus for node in self.found.nodes))
        self.assertEqual(frozenset({0, 2}), self.found.memory_of([0, 2]))
        self.assertEqual(frozenset({0, 2}), affinity.memory_nodes(self.found, cores))


class ContainersTest(testtools.TestCase):
    """A host with a GPU's memory as node 2."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        self.gpu = make_grant(scan(self.tree.host).get(GPU), GrantOptions())
        add_node(self.tree, 2, 96)
        self.tree.write(f"/proc/driver/nvidia/gpus/{GPU}/numa_status", "Node: 2\n")
        self.tree.write(f"{NODES}/has_memory", "0-2\n")

    def runs(self, nodes: str) -> mock.Mock:
        """Let process 9 run, as a container's first one."""
        self.tree.write("/proc/9/status", f"Name:\tinit\nMems_allowed_list:\t{nodes}\n")
        return mock.Mock()

    def test_running_container_that_gets_a_gpu_has_its_memory(self) -> None:
        for nodes, bound in (("0-1", [mock.call.bind_memory(9, [0, 1, 2])]), ("0-2", []), ("1", [])):
            root = self.runs(nodes)
            memorynodes.admit(self.tree.host, root, lambda: 9, [self.gpu])
            self.assertEqual(bound, root.mock_calls)

    def test_running_container_that_loses_a_gpu_loses_its_memory_first(self) -> None:
        root = self.runs("0-2")
        with memorynodes.withdrawn(self.tree.host, root, lambda: 9, [self.gpu], []):
            self.assertEqual([mock.call.bind_memory(9, [0, 1])], root.mock_calls)
        with memorynodes.withdrawn(self.tree.host, self.runs("0-2"), lambda: 9, [self.gpu], [self.gpu]) as nothing:
            self.assertIsNone(nothing)
        self.assertEqual(1, len(root.mock_calls))

    def test_memory_goes_too_where_the_first_process_is_in_a_narrower_group_of_the_tenants(self) -> None:
        for table, file in (("0::/lxc.payload.c1/x\n", "lxc.payload.c1/cpuset.mems.effective"),
                            ("3:cpuset:/lxc.payload.c2/x\n", "cpuset/lxc.payload.c2/cpuset.mems")):
            root = self.runs("0-1")
            self.tree.write("/proc/9/cgroup", table)
            self.tree.write(f"/sys/fs/cgroup/{file}", "0-2\n")
            with memorynodes.withdrawn(self.tree.host, root, lambda: 9, [self.gpu], []):
                self.assertEqual([mock.call.bind_memory(9, [0, 1])], root.mock_calls)

    def test_gpu_that_cannot_be_taken_keeps_its_memory(self) -> None:
        root = self.runs("0-2")

        def fails() -> None:
            with memorynodes.withdrawn(self.tree.host, root, lambda: 9, [self.gpu], []):
                self.runs("0-1")
                raise EngineError("not today")

        self.assertRaises(EngineError, fails)
        self.assertEqual([mock.call.bind_memory(9, [0, 1]), mock.call.bind_memory(9, [0, 1, 2])], root.mock_calls)

    def cpu(self, wanted: Cpu, *parts: Grant) -> Cpu:
        directory = self.tree.path("/locks")
        directory.mkdir(exist_ok=True)
        spec = ContainerSpec("c1", "image", wanted, Memory(1), RootDisk("pool"), parts=parts)
        with CoreBinding(FakeEngine(), self.tree.host, directory, "whose").bound(spec) as bound:
            self.assertEqual(frozenset(), unbound(bound).cpu.memory_nodes)
            return bound.cpu

    def test_containers_have_no_memory_of_anothers_gpu(self) -> None:
        cpu = self.cpu(Cpu(2))
        self.assertEqual({"limits.cpu": "2", "raw.lxc": "lxc.cgroup2.cpuset.mems = 0,1"},
                         lxd_config.cpu(cpu, [lxd_config.CGROUP2]))
        self.assertEqual("0-1", docker_config.cpu(cpu)["CpusetMems"])

    def test_containers_have_memory_of_their_own_gpu(self) -> None:
        self.assertEqual(frozenset({0, 1, 2}), self.cpu(Cpu(2), self.gpu).bound_memory)

    def test_nodes_that_were_chosen_stay(self) -> None:
        chosen = Cpu(2, cores=frozenset({0, 1}), nodes=frozenset({0}))
        self.assertEqual(frozenset({0}), self.cpu(chosen, self.gpu).bound_memory)
        self.assertEqual("0", docker_config.cpu(self.cpu(chosen))["CpusetMems"])

    def test_other_hosts_bind_nothing(self) -> None:
        self.tree.path(f"/proc/driver/nvidia/gpus/{GPU}/numa_status").unlink()
        self.assertEqual(Cpu(2), self.cpu(Cpu(2)))


class DoctorTest(DoctorCase):
    host_name = "small"

    def test_memory_of_a_gpu_is_noted(self) -> None:
        add_node(self.tree, 2, 96)
        self.tree.write(f"{NODES}/has_generic_initiator", "2\n")
        self.assertIn("its 96 GiB are memory of a GPU", self.problems(numa.check)["NUMA node 2"])
