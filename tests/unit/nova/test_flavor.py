# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost import errors
from containerhost.engines.bounds import Bounds, Range
from containerhost.engines.gpubounds import GpuBounds
from containerhost.engines.spec import Cpu, IoLimit, Memory, RootDisk, Security
from hpcplan.affinity import Affinity
from nova_lxd_ext.instance import flavor
from nova_lxd_ext.instance.flavor import HostCpus
from tests.unit.nova import records

MIB, GIB = 2**20, 2**30
TWO_NODES = {0: frozenset({0, 1, 2, 3}), 1: frozenset({4, 5, 6, 7})}
FREE = HostCpus(TWO_NODES)
SHARED = HostCpus(TWO_NODES, shared=frozenset({2, 3, 6, 7}))


class CpuTest(testtools.TestCase):
    def test_what_nova_decided_becomes_cores(self) -> None:
        node_1 = records.numa({"id": 1, "cpuset": {0, 1}})
        pinned = records.numa({"id": 0, "pcpuset": {0, 1}, "cpu_pinning_raw": {"0": 1, "1": 3}})
        mixed = records.numa({"id": 1, "cpuset": {0}, "pcpuset": {1}, "cpu_pinning_raw": {"1": 4}})
        both = records.numa({"id": 0, "cpuset": {0}}, {"id": 1, "cpuset": {1}})
        table = [
            ("no placement, no shared set", None, FREE, Cpu(2)),
            ("no placement, shared set", None, SHARED, Cpu(2, cores=frozenset({2, 3, 6, 7}), share=200)),
            ("node", node_1, FREE, Cpu(2, frozenset({4, 5, 6, 7}), frozenset({1}), share=200)),
            ("node, shared set", node_1, SHARED, Cpu(2, frozenset({6, 7}), frozenset({1}))),
            ("pinned", pinned, FREE, Cpu(2, frozenset({1, 3}), frozenset({0}))),
            ("pinned ignores the shared set", pinned, SHARED, Cpu(2, frozenset({1, 3}), frozenset({0}))),
            ("mixed", mixed, SHARED, Cpu(2, frozenset({4, 6, 7}), frozenset({1}), share=200)),
            ("two nodes", both, SHARED, Cpu(2, frozenset({2, 3, 6, 7}), frozenset({0, 1}), share=200)),
        ]
        for name, topology, host, expected in table:
            with self.subTest(name):
                self.assertEqual(expected, flavor.cpu(2, topology, host))

    def test_as_many_vcpus_as_cores_need_no_limit(self) -> None:
        self.assertIsNone(flavor.cpu(4, None, SHARED).share)
        self.assertIsNone(flavor.cpu(9, None, SHARED).share)

    def test_a_node_without_shared_cores_is_refused(self) -> None:
        host = HostCpus(TWO_NODES, shared=frozenset({6}))
        error = self.assertRaises(errors.UnsupportedOnHost, flavor.cpu, 1, records.numa({"id": 0, "cpuset": {0}}), host)
        self.assertIn("cpu_shared_set", str(error))

    def test_cores_the_host_lacks_are_refused(self) -> None:
        error = self.assertRaises(errors.UnsupportedOnHost, flavor.cpu, 1, None, HostCpus(TWO_NODES, frozenset({3, 8})))
        self.assertIn("[8]", str(error))


class AffinityTest(testtools.TestCase):
    def cpu(self, word: str, topology: object = None, host: HostCpus = FREE, **more: str) -> Cpu:
        return flavor.bound_cpu(2, topology, host, {"hpc:affinity": word, **more})

    def test_cores_are_chosen_from_those_of_unpinned_vcpus(self) -> None:
        every = frozenset(range(8))
        self.assertEqual(Cpu(2, affinity=Affinity.CPUMEM, choice=every), self.cpu("cpumem"))
        self.assertEqual(frozenset({2, 3, 6, 7}), self.cpu("cpumem", host=SHARED).choice)
        host = HostCpus(TWO_NODES, dedicated=frozenset({0, 1}))
        self.assertEqual(every - {0, 1}, self.cpu("cpu", host=host).choice)

    def test_without_an_affinity_all_is_as_before(self) -> None:
        for topology in (None, records.numa({"id": 1, "cpuset": {0, 1}})):
            self.assertEqual(flavor.cpu(2, topology, SHARED), flavor.bound_cpu(2, topology, SHARED, {}))
        self.assertEqual(flavor.cpu(2, None, SHARED), self.cpu("any", host=SHARED))

    def test_what_nova_chose_stays(self) -> None:
        node = records.numa({"id": 1, "cpuset": {0, 1}})
        self.assertEqual(Cpu(2, affinity=Affinity.CPUMEM, choice=frozenset({6, 7})), self.cpu("cpumem", node, SHARED))
        pinned = records.numa({"id": 0, "pcpuset": {0, 1}, "cpu_pinning_raw": {"0": 1, "1": 3}})
        found = self.cpu("cpumempin", pinned)
        self.assertEqual((frozenset({1, 3}), frozenset()), (found.cores, found.own_cores))

    def test_contradictions_name_both_keys(self) -> None:
        node = records.numa({"id": 1, "cpuset": {0, 1}})
        both = records.numa({"id": 0, "cpuset": {0}}, {"id": 1, "cpuset": {1}})
        pinned = records.numa({"id": 0, "pcpuset": {0, 1}, "cpu_pinning_raw": {"0": 1, "1": 3}})
        mixed = records.numa({"id": 1, "cpuset": {0}, "pcpuset": {1}, "cpu_pinning_raw": {"1": 4}})
        for word, topology, key in (("any", node, "hw:numa_nodes"), ("any", pinned, "hw:cpu_policy"),
                                    ("cpumem", both, "hw:numa_nodes=2"), ("cpumem", mixed, "hw:cpu_policy=mixed"),
                                    ("cpu", node, "hw:numa_nodes=1")):
            error = self.assertRaises(errors.SpecError, self.cpu, word, topology)
            self.assertIn(f"hpc:affinity={word}", str(error))
            self.assertIn(key, str(error))
        self.assertEqual(frozenset(range(8)), self.cpu("cpu", both).choice)

    def test_unknown_word_is_refused(self) -> None:
        self.assertIn("hpc:affinity", str(self.assertRaises(errors.SpecError, self.cpu, "socket")))

    def test_memory_comes_from_the_node_that_has_some(self) -> None:
        host = HostCpus(TWO_NODES, memory={0: 0, 1: 0})
        self.assertEqual(frozenset({0}), flavor.cpu(2, records.numa({"id": 1, "cpuset": {0, 1}}), host).nodes)


class MemoryTest(testtools.TestCase):
    def test_bytes_of_ordinary_and_huge_pages(self) -> None:
        cell = {"cpuset": {0}, "memory": 512}
        table = [
            ("no topology", None, {}),
            ("small pages", records.numa({"id": 0, **cell, "pagesize": 4}), {}),
            ("2 MiB", records.numa({"id": 0, **cell, "pagesize": 2048}), {2 * MIB: 512 * MIB}),
            ("two nodes", records.numa({"id": 0, **cell, "pagesize": 2048}, {"id": 1, **cell, "pagesize": 2048}),
             {2 * MIB: 1024 * MIB}),
        ]
        for name, topology, hugepages in table:
            with self.subTest(name):
                self.assertEqual(Memory(1024 * MIB, hugepages), flavor.memory(1024, topology))


class RootDiskTest(testtools.TestCase):
    def test_size_and_limits(self) -> None:
        table = [
            (4, {}, RootDisk("fast", 4 * GIB)),
            (0, {}, RootDisk("fast")),
            (1, {"quota:disk_read_bytes_sec": "1000", "quota:disk_write_iops_sec": "20"},
             RootDisk("fast", GIB, IoLimit(read_bytes=1000, write_iops=20))),
            (1, {"quota:disk_total_bytes_sec": "500"}, RootDisk("fast", GIB, IoLimit(500, 500))),
            (1, {"quota:disk_total_iops_sec": "50", "quota:disk_read_iops_sec": "20"},
             RootDisk("fast", GIB, IoLimit(read_iops=20, write_iops=50))),
            (1, {"quota:disk_read_bytes_sec": "0"}, RootDisk("fast", GIB)),
        ]
        for root_gb, specs, expected in table:
            with self.subTest(specs):
                self.assertEqual(expected, flavor.root_disk(root_gb, specs, "fast"))

    def test_a_limit_that_is_no_number_is_refused(self) -> None:
        for text in ("", "-1", "10MB", "٣", "1e6"):
            with self.subTest(text):
                error = self.assertRaises(errors.SpecError, flavor.root_disk, 1,
                                          {"quota:disk_read_bytes_sec": text}, "fast")
                self.assertIn("quota:disk_read_bytes_sec", str(error))


class SecurityTest(testtools.TestCase):
    def test_what_the_flavor_and_the_operator_say(self) -> None:
        table: list[tuple[dict[str, str], bool, Security]] = [
            ({}, True, Security(privileged=False, isolated=True, nesting=False)),
            ({}, False, Security(privileged=False, isolated=False, nesting=False)),
            ({"lxd:isolated": "false"}, True, Security(isolated=False)),
            ({"lxd:isolated": "true"}, False, Security(isolated=True)),
            ({"lxd:nested_allowed": "true"}, True, Security(nesting=True)),
            # nova-lxd took the text "false" for true.
            ({"lxd:privileged_allowed": "false", "lxd:nested_allowed": "False"}, True, Security()),
            ({"lxd:privileged_allowed": "0"}, True, Security()),
            ({"lxd:privileged_allowed": "true"}, True, Security(privileged=True, isolated=False)),
        ]
        for specs, isolated, expected in table:
            with self.subTest(specs=specs, isolated=isolated):
                self.assertEqual(expected, flavor.security(specs, allow_privileged=True, isolated=isolated))

    def test_a_privileged_flavor_needs_the_operators_consent(self) -> None:
        error = self.assertRaises(errors.UnsupportedOnHost, flavor.security, {"lxd:privileged_allowed": "true"},
                                  allow_privileged=False, isolated=True)
        self.assertIn("allow_privileged", str(error))

    def test_what_is_no_boolean_is_refused(self) -> None:
        for text in ("", "maybe", "truely"):
            with self.subTest(text):
                self.assertRaises(errors.SpecError, flavor.security, {"lxd:privileged_allowed": text},
                                  allow_privileged=True, isolated=True)


class ProcessesTest(testtools.TestCase):
    def test_every_container_has_a_limit(self) -> None:
        self.assertEqual((5, 100), (flavor.processes({}, 5), flavor.processes({"lxd:process_limit": "100"}, 5)))
        for text in ("", "0", "-1", "unlimited"):
            with self.subTest(text):
                error = self.assertRaises(errors.SpecError, flavor.processes, {"lxd:process_limit": text}, 5)
                self.assertIn("lxd:process_limit", str(error))


class VfRateTest(testtools.TestCase):
    def test_no_limit_is_no_key(self) -> None:
        self.assertEqual((None, 1), (flavor.vf_rate({}), flavor.vf_rate({"lxd:vf_max_tx_rate": "1"})))
        for text in ("", "0", "-1", "1.5", "1G"):
            with self.subTest(text):
                error = self.assertRaises(errors.SpecError, flavor.vf_rate, {"lxd:vf_max_tx_rate": text})
                self.assertIn("lxd:vf_max_tx_rate", str(error))


class GpuCapabilitiesTest(testtools.TestCase):
    def test_the_flavor_comes_before_the_default(self) -> None:
        table = [
            ({}, ["compute"], {"compute"}),
            ({"lxd:gpu_capabilities": "compute,utility"}, [], {"compute", "utility"}),
            ({"lxd:gpu_capabilities": "none"}, ["compute"], set()),
        ]
        for specs, default, expected in table:
            with self.subTest(specs):
                self.assertEqual(expected, flavor.gpu_capabilities(specs, default))

    def test_unknown_names_are_refused(self) -> None:
        for text in ("", "all", "compute;utility", "compute,,utility"):
            with self.subTest(text):
                self.assertRaises(errors.SpecError, flavor.gpu_capabilities, {"lxd:gpu_capabilities": text}, [])


class ElasticTest(testtools.TestCase):
    @staticmethod
    def bounds(topology: object = None, **keys: str) -> Bounds | None:
        named = {f"hpc:{key}": value for key, value in keys.items()}
        return flavor.elastic(named, topology, Cpu(4, frozenset({2, 3, 6, 7})), Memory(GIB))

    def test_flavor_is_the_most(self) -> None:
        self.assertIsNone(self.bounds(affinity="any"))
        self.assertEqual(Bounds(Range(1, 4), Range(GIB, GIB), choice=frozenset({2, 3, 6, 7})),
                         self.bounds(vcpus_min="1"))
        self.assertEqual(Bounds(Range(2, 3), Range(GIB // 2, GIB), 8, frozenset({2, 3, 6, 7})), self.bounds(
            vcpus_min="2", vcpus_max="3", memory_min="512", elastic_priority="8"))

    def test_job_below_its_minimum_is_refused(self) -> None:
        for keys, words in (({"vcpus_min": "5"}, "from 5 to 4"), ({"memory_min": "2048"}, "elastic memory"),
                            ({"vcpus_max": "8"}, "at most 4"), ({"vcpus_min": "many"}, "hpc:vcpus_min")):
            self.assertIn(words, str(self.assertRaises(errors.SpecError, self.bounds, **keys)))

    def test_least_number_is_told(self) -> None:
        for text in ("0", "-1", "1.5"):
            for key, least in (("vcpus_min", 1), ("memory_max", 1), ("elastic_priority", 0)):
                if not (text == "0" and least == 0):
                    error = self.assertRaises(errors.SpecError, self.bounds, **{key: text})
                    self.assertEqual(f"Flavor key hpc:{key} must be a whole number of at least {least}, not {text!r}.",
                                     str(error))

    def test_gpus_that_may_be_missing(self) -> None:
        self.assertIsNone(flavor.gpus({"hpc:vcpus_min": "1"}, ()))
        self.assertEqual(GpuBounds(0, frozenset({"compute"})), flavor.gpus({"hpc:gpus_min": "0"}, ("compute",)))
        self.assertEqual(GpuBounds(1, frozenset({"utility"})), flavor.gpus(
            {"hpc:gpus_min": "1", "lxd:gpu_capabilities": "utility"}, ("compute",)))
        for more, words in (({"hpc:gpus_min": "one"}, "hpc:gpus_min"), ({"accel:device_profile": "fpga"}, "Cyborg")):
            keys = {"hpc:gpus_min": "1"} | more
            self.assertIn(words, str(self.assertRaises(errors.SpecError, flavor.gpus, keys, ())))

    def test_pinned_cores_are_not_elastic(self) -> None:
        pinned = records.numa({"id": 0, "pcpuset": {0, 1}, "cpu_pinning_raw": {"0": 1, "1": 3}})
        self.assertIn("hw:cpu_policy", str(self.assertRaises(errors.SpecError, self.bounds, pinned, vcpus_min="1")))
