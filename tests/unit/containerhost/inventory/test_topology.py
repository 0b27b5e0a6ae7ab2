# SPDX-License-Identifier: Apache-2.0
import os
import shutil

import testtools

from containerhost.inventory import topology
from containerhost.linux.idlist import id_text
from containerhost.linux.sysfs import Host
from containerhost.operator.drawing.hostreader import read_map
from tests.unit.containerhost.hosts import Broken, shared

GIB = 1 << 30


class TwoSockets(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.found = topology.read(shared("mixed"))

    def test_nodes(self):
        self.assertEqual([0, 1], [node.id for node in self.found.nodes])
        first, second = self.found.nodes
        self.assertEqual(frozenset([*range(16), *range(32, 48)]), first.cpus)
        self.assertEqual(frozenset([*range(16, 32), *range(48, 64)]), second.cpus)
        self.assertEqual(frozenset(range(64)), self.found.cpus)
        self.assertEqual((256 * GIB, {2 << 20: (512, 512), GIB: (4, 4)}), (first.memory, first.hugepages))
        self.assertTrue(0 < first.free < first.memory)
        self.assertEqual(((10, 21), (21, 10)), (first.distances, second.distances))

    def test_cores_are_their_threads(self):
        self.assertEqual(16, len(self.found.nodes[1].siblings))
        self.assertEqual(frozenset((16, 48)), self.found.nodes[1].siblings[0])

    def test_processor(self):
        cpu = self.found.cpu
        self.assertEqual((2, 16, 2, "x86_64", "GenuineIntel"),
                         (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.arch, cpu.vendor))
        self.assertIn("avx512f", cpu.features)


class OddHosts(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))

    def read(self) -> topology.Topology:
        return topology.read(Host(self.tree.root))

    def test_a_cpu_that_is_offline_is_not_there(self):
        before = self.read()
        lost = max(before.cpus)
        self.tree.write("/sys/devices/system/cpu/online", f"0-{lost - 1}\n")
        after = self.read()
        self.assertEqual(before.cpus - {lost}, after.cpus)
        self.assertNotIn(lost, frozenset().union(*(core for node in after.nodes for core in node.siblings)))

    def test_one_core_that_is_offline_is_one_core_less(self):
        cores = len({core for node in self.read().nodes for core in node.siblings})
        lost = self.read().nodes[1].siblings[-1]
        self.tree.write("/sys/devices/system/cpu/online", id_text(self.read().cpus - lost) + "\n")
        self.assertIn(f"2 sockets, {cores - 1} cores, ", read_map(self.tree.host, {}).title)
        self.assertEqual(cores // 2, self.read().cpu.cores_per_socket)

    def test_a_kernel_without_numa_has_one_node(self):
        everything = self.read().cpus
        shutil.rmtree(self.tree.path("/sys/devices/system/node"))
        only, = self.read().nodes
        self.assertEqual((0, everything, (10,)), (only.id, only.cpus, only.distances))
        self.assertEqual(topology.memory(self.tree.host).total, only.memory)

    def test_a_node_of_memory_only(self):
        self.tree.write("/sys/devices/system/node/node7/cpulist", "\n")
        self.tree.write("/sys/devices/system/node/node7/meminfo", "Node 7 MemTotal: 1024 kB\nNode 7 MemFree: 512 kB\n")
        node = self.read().nodes[-1]
        self.assertEqual((7, frozenset(), (), 1 << 20, 1 << 19),
                         (node.id, node.cpus, node.siblings, node.memory, node.free))

    def test_nothing_at_all(self):
        found = topology.read(Host("/nonexistent"))
        self.assertEqual((frozenset(), 1, 1, 1, "unknown"),
                         (found.cpus, found.cpu.sockets, found.cpu.cores_per_socket, found.cpu.threads_per_core,
                          found.cpu.arch))


class Load(testtools.TestCase):
    def test_figures(self):
        tree = self.useFixture(Broken("small"))
        tree.write("/proc/stat", "cpu  100 10 30 1000 40 1 2 0 0 0\ncpu0 1 1 1 1\n")
        tree.write("/proc/uptime", "4711.25 9000.00\n")
        tree.write("/proc/loadavg", "0.50 1.25 2.00 3/456 7890\n")
        tree.write("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n")
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self.assertEqual(topology.CpuTimes(kernel=33 * tick, user=110 * tick, idle=1000 * tick, iowait=40 * tick),
                         topology.cpu_times(tree.host))
        self.assertEqual(4711.25, topology.uptime(tree.host))
        self.assertEqual((0.5, 1.25, 2.0), topology.loadavg(tree.host))
        self.assertEqual(topology.MemoryUse(total=1000 << 10, used=400 << 10), topology.memory(tree.host))

    def test_a_host_that_does_not_say(self):
        host = Host("/nonexistent")
        self.assertEqual(topology.CpuTimes(0, 0, 0, 0), topology.cpu_times(host))
        self.assertEqual((0.0, (0.0, 0.0, 0.0)), (topology.uptime(host), topology.loadavg(host)))
        self.assertEqual(topology.MemoryUse(0, 0), topology.memory(host))

    def test_this_host(self):
        self.assertGreater(topology.uptime(), 0)
        self.assertGreater(topology.cpu_times().idle, 0)
        self.assertTrue(0 < topology.memory().used < topology.memory().total)
        self.assertEqual(len(os.sched_getaffinity(0)) > 0, bool(topology.read().cpus))
