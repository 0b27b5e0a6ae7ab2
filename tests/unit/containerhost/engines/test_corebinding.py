# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import fixtures
import testtools

from containerhost import errors
from containerhost.engines.corebinding import CoreBinding, unbound
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.guest import resources
from containerhost.linux.lock import FileLock
from containerhost.linux.sysfs import Host
from hpcplan.affinity import Affinity
from tests.unit.nova.fakes import FakeEngine

WHOSE = "whose"
ALL = frozenset(range(8))


def spec(name: str, count: int, affinity: Affinity | None = Affinity.CPUMEM, choice: frozenset[int] | None = ALL,
         whose: str | None = None) -> ContainerSpec:
    return ContainerSpec(name, "image", Cpu(count, affinity=affinity, choice=choice, share=100 * count), Memory(1),
                         RootDisk("pool"), labels={WHOSE: whose or name})


class CoreBindingTest(testtools.TestCase):
    """A host of two sockets with four cores each, without SMT; the last core is isolated by the kernel."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        root = self.directory / "root"
        for node, cpus in (("0", range(4)), ("1", range(4, 8))):
            files = {f"node/node{node}/cpulist": f"{cpus[0]}-{cpus[-1]}", "cpu/online": "0-7", "cpu/isolated": "7",
                     f"node/node{node}/meminfo": f"Node {node} MemTotal: 1024 kB"}
            files |= {f"cpu/cpu{cpu}/topology/physical_package_id": node for cpu in cpus}
            for name, text in files.items():
                path = root / "sys/devices/system" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{text}\n")
        self.engine, self.host = FakeEngine(), Host(root)
        self.binding = self.restarted()

    def restarted(self, reserved: frozenset[int] = frozenset()) -> CoreBinding:
        return CoreBinding(self.engine, self.host, self.directory, WHOSE, reserved)

    def create(self, wanted: ContainerSpec) -> frozenset[int]:
        with self.binding.bound(wanted) as bound:
            self.engine.create(bound)
        return bound.cpu.cores

    def test_containers_have_different_cores_after_a_restart(self) -> None:
        self.assertEqual(frozenset({4, 5, 6}), self.create(spec("c1", 3)))
        self.binding = self.restarted()
        self.assertEqual(frozenset({0, 1}), self.create(spec("c2", 2)))

    def test_bound_container_has_memory_of_its_node_and_no_limit_of_time(self) -> None:
        with self.binding.bound(spec("c1", 2)) as bound:
            self.assertEqual((frozenset({1}), None), (bound.cpu.nodes, bound.cpu.share))

    def test_container_keeps_its_cores(self) -> None:
        self.create(spec("c1", 2))
        self.create(spec("c2", 1))
        cores = self.engine.containers()[0].cores
        with self.binding.bound(spec("c1", 2)) as bound:
            self.assertEqual(cores, bound.cpu.cores)

    def test_smaller_container_keeps_some_of_its_cores(self) -> None:
        cores = self.create(spec("c1", 3))
        self.assertLess(self.binding.preview(spec("c1", 2)).cpu.cores, cores)

    def test_cores_that_a_container_may_need_again_are_nobody_elses(self) -> None:
        cores = self.create(spec("c1", 3))
        for affinity in (None, Affinity.CPUMEM):
            wanted = spec("c1", 1, affinity)
            wanted = dataclasses.replace(wanted, cpu=dataclasses.replace(wanted.cpu, may_revert=True))
            for _ in range(2):
                with self.binding.bound(wanted) as bound:
                    self.engine.reconfigure("c1", bound)
                self.assertEqual(cores, bound.cpu.own_cores | bound.cpu.reserved)
                self.assertFalse(self.binding.preview(spec("c2", 1)).cpu.cores & cores)
                self.assertEqual(cores, self.binding.preview(spec("c1", 3)).cpu.cores)
        self.engine.reconfigure("c1", self.binding.preview(spec("c1", 1)))
        self.assertEqual(2, len(self.binding.preview(spec("c2", 2)).cpu.cores & cores))

    def test_one_that_takes_the_place_of_another_has_its_cores(self) -> None:
        cores = self.create(spec("c1", 3))
        self.assertEqual(cores, self.binding.preview(spec("c1-new", 3, whose="c1")).cpu.cores)

    def test_reserved_isolated_and_other_cores_are_not_used(self) -> None:
        self.binding = self.restarted(frozenset({0}))
        self.assertEqual(frozenset({1, 2, 3}), self.create(spec("c1", 3)))
        self.assertRaises(errors.UnsupportedOnHost, self.create, spec("c2", 4))
        self.assertRaises(errors.UnsupportedOnHost, self.create, spec("c2", 2, choice=frozenset({0, 7})))

    def test_cores_of_a_deleted_container_are_free(self) -> None:
        cores = self.create(spec("c1", 3))
        self.engine.delete("c1")
        self.assertEqual(cores, self.create(spec("c2", 3)))

    def test_nothing_is_asked_or_changed_without_an_affinity(self) -> None:
        self.engine.fail["containers"] = errors.EngineUnavailable("asked")
        for wanted in (spec("c1", 2, None), spec("c1", 2, Affinity.ANY), spec("c1", 2, Affinity.CPUMEM, None)):
            with FileLock(self.directory / "cores", 0).held(), self.binding.bound(wanted) as bound:
                self.assertEqual(wanted, bound)

    def test_choices_wait_for_each_other(self) -> None:
        with self.binding.bound(spec("c1", 2)):
            self.assertRaises(TimeoutError, FileLock(self.directory / "cores", 0).held().__enter__)

    def test_container_that_is_fetched_has_no_cores_yet(self) -> None:
        wanted = spec("c1", 2)
        fetched = unbound(self.binding.preview(wanted))
        self.assertEqual((frozenset(), frozenset()), (fetched.cpu.cores, fetched.cpu.own_cores))
        pinned = dataclasses.replace(wanted, cpu=Cpu(2, frozenset({1, 3})))
        self.assertEqual(pinned, unbound(pinned))

    def test_guest_is_told_the_cores_of_each_rank(self) -> None:
        bound = self.binding.preview(spec("c1", 2, Affinity.CPUMEMPIN))
        self.assertEqual({"count": 2, "cores": [4, 5], "ranks": [[4], [5]]}, resources.of(bound)["cpus"])
        self.assertNotIn("ranks", resources.of(dataclasses.replace(bound, cpu=Cpu(2)))["cpus"])
