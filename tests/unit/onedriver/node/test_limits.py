# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.engines.bounds import Bounds, Range
from containerhost.engines.gpubounds import GpuBounds
from containerhost.engines.spec import Cpu
from hpcplan.affinity import Affinity
from onedriver.errors import BadInput
from onedriver.node import limits
from onedriver.node.limits import NodeCores
from onedriver.vm import MIB, NumaNode, Topology, Vm
from tests.unit.lxdone.machines import machine

HOST = NodeCores({0: frozenset(range(4)), 1: frozenset(range(4, 8))})


def vm(affinity: str | None, policy: str = "NONE", *nodes: int, **more: int) -> Vm:
    placed = tuple(NumaNode(frozenset({4 * node}), node) for node in nodes)
    return machine()._replace(affinity=affinity, topology=Topology(policy, None, placed),
                               **{"vcpu": 2, "cpu": 200, **more})


def elastic(text: str, policy: str = "NONE", **more: int) -> Bounds | None:
    wanted = vm(None, policy, **{"vcpu": 4, "cpu": 400, "memory": 1024 * MIB, **more})._replace(hpc={"ELASTIC": text})
    return limits.elastic(wanted, Cpu(wanted.vcpu, share=wanted.cpu), limits.memory(wanted))


class ElasticTest(testtools.TestCase):
    def test_what_the_template_may_say(self) -> None:
        for text, expected in (("", None), ("cores=1", Bounds(Range(1, 4), Range(1024 * MIB, 1024 * MIB))),
                               ("Cores=2-3, memory=512-768 ,priority=9",
                                Bounds(Range(2, 3), Range(512 * MIB, 768 * MIB), 9)),
                               ("memory=16", Bounds(Range(4, 4), Range(16 * MIB, 1024 * MIB)))):
            self.assertEqual(expected, elastic(text))

    def test_refusals_name_what_is_wrong(self) -> None:
        for text, more, words in (
                ("cores", {}, "ELASTIC='cores'"), ("cores=1,cores=2", {}, "ELASTIC="), ("cores=-1", {}, "ELASTIC="),
                ("gpus", {}, "ELASTIC="), ("cores=1,", {}, "ELASTIC="), ("cores=1-8", {}, "from 1 to 8"),
                ("cores=5", {}, "from 5 to 4"), ("memory=1", {}, "elastic memory"), ("priority=11", {}, "11"),
                ("cores=1", {"cpu": 150}, "claims only CPU=1.5"), ("cores=1", {"policy": "CORE"}, "CORE")):
            with self.subTest(text):
                self.assertIn(words, str(self.assertRaises(BadInput, elastic, text, **more)))

    def test_gpus_that_may_be_missing(self) -> None:
        gpu, nic = (machine().pcis[0]._replace(class_code=code) for code in ("0302", "0207"))

        def gpus(text: str) -> GpuBounds | None:
            return limits.elastic_gpus(vm(None)._replace(hpc={"ELASTIC": text}, pcis=(gpu, gpu, nic)), ("compute",))

        self.assertEqual([None, None], [gpus(""), gpus("cores=1")])
        for text, least in (("gpus=0", 0), ("GPUs=1-2", 1), ("cores=1, gpus=2-2", 2)):
            self.assertEqual(GpuBounds(least, frozenset({"compute"})), gpus(text))
        for text in ("gpus=3", "gpus=2-1", "gpus=1-3", "gpus=1-1"):
            self.assertIn("2 whole GPUs", str(self.assertRaises(BadInput, gpus, text)))
        self.assertIsNone(elastic("gpus=0"))
        self.assertEqual(Range(1, 4), elastic("gpus=0,cores=1").cores)

    def test_fewer_cores_than_vcpu_can_be_claimed(self) -> None:
        self.assertEqual(Range(1, 2), elastic("cores=1-2", cpu=200).cores)


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
