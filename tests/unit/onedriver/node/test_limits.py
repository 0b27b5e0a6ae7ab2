# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.placement.affinity import Affinity
from containerhost.spec import Cpu
from onedriver.errors import BadInput
from onedriver.node import limits
from onedriver.node.limits import NodeCores
from onedriver.vm import NumaNode, Topology, Vm
from tests.unit.lxdone.machines import machine

HOST = NodeCores({0: frozenset(range(4)), 1: frozenset(range(4, 8))})


def vm(affinity: str | None, policy: str = "NONE", *nodes: int, **more: int) -> Vm:
    placed = tuple(NumaNode(frozenset({4 * node}), node) for node in nodes)
    return machine()._replace(affinity=affinity, topology=Topology(policy, None, placed),
                               **{"vcpu": 2, "cpu": 200, **more})


class AffinityTest(testtools.TestCase):
    def test_the_host_chooses_from_all_cores_or_from_those_of_the_node(self) -> None:
        self.assertEqual(Cpu(2, affinity=Affinity.CPUMEM, choice=frozenset(range(8))),
                         limits.cpu(vm("CPUMEM"), HOST))
        self.assertEqual(frozenset({4, 5, 6, 7}), limits.cpu(vm("cpumem", "NODE_AFFINITY", 1), HOST).choice)

    def test_cores_that_opennebula_chose_stay(self) -> None:
        found = limits.cpu(vm("cpumempin", "THREAD", 1), HOST)
        self.assertEqual((frozenset({4}), frozenset({1}), frozenset()), (found.cores, found.nodes, found.own_cores))

    def test_none_and_any_change_nothing(self) -> None:
        for word in (None, "any"):
            self.assertEqual(Cpu(2, share=50), limits.cpu(vm(word, cpu=50), HOST))

    def test_contradictions_name_both_attributes(self) -> None:
        for wanted, words in ((vm("any", "THREAD", 0), "TOPOLOGY binds it"), (vm("cpumem", cpu=150), "CPU=1.5"),
                              (vm("cpumem", "CORE", 0, 1), "2 NUMA nodes"),
                              (vm("socket"), "AFFINITY of HPC is 'socket'"),
                              (vm("cpu", "NODE_AFFINITY", 0), "1 of this host's 2")):
            self.assertIn(words, str(self.assertRaises(BadInput, limits.cpu, wanted, HOST)))

    def test_memory_comes_from_the_node_that_has_some(self) -> None:
        host = dataclasses.replace(HOST, memory={1: 0})
        self.assertEqual(frozenset({0}), limits.cpu(vm(None, "NODE_AFFINITY", 1), host).nodes)
