# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import fixtures
import os_traits
import testtools
from nova.compute.provider_tree import ProviderTree
from nova.conf import CONF
from oslo_utils import uuidutils

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import PoolUsage
from nova_lxd_ext.host import provider, resources
from nova_lxd_ext.host.cpusets import CpuSets
from tests.unit.nova import hosts

NODE = "node1"


class ProviderCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        host = self.useFixture(hosts.FakeHost("small")).host
        engine = hosts.Engine(hosts.LXD, hosts.POOL)
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.facts = resources.Resources(engine, host, lambda: None, AllocationStore(directory), "default").look()
        self.tree = ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def with_cpu(self, **changes):
        topology = self.facts.topology
        return dataclasses.replace(self.facts, topology=dataclasses.replace(
            topology, cpu=dataclasses.replace(topology.cpu, **changes)))

    def configure(self, **options):
        for name, value in options.items():
            CONF.set_override(name, value)
            self.addCleanup(CONF.clear_override, name)


class TestInventory(ProviderCase):
    def inventory(self, facts):
        provider.update(self.tree, NODE, facts)
        return {name: (entry["total"], entry["reserved"], entry["allocation_ratio"])
                for name, entry in self.tree.data(NODE).inventory.items()}

    def test_classes(self):
        self.configure(reserved_host_memory_mb=1024, reserved_host_disk_mb=1025, reserved_host_cpus=2,
                       initial_cpu_allocation_ratio=4.0, initial_ram_allocation_ratio=1.0, disk_allocation_ratio=2.0)
        facts = dataclasses.replace(self.facts, cpus=CpuSets(frozenset(range(24)), frozenset(range(24, 32))))
        self.assertEqual({"VCPU": (24, 2, 4.0), "PCPU": (8, 0, 1.0), "MEMORY_MB": (131072, 1024, 1.0),
                          "DISK_GB": (500, 2, 2.0)}, self.inventory(facts))

    def test_what_is_not_there_is_not_told(self):
        """Placement refuses an inventory of nothing."""
        facts = dataclasses.replace(self.facts, cpus=CpuSets(frozenset(), frozenset({1})),
                                    pool=PoolUsage("default", "dir", 5, 0))
        self.assertEqual({"PCPU", "MEMORY_MB"}, set(self.inventory(facts)))

    def test_a_ratio_set_in_placement_stays(self):
        self.configure(initial_cpu_allocation_ratio=4.0)
        self.inventory(self.facts)
        known = self.tree.data(NODE).inventory
        known["VCPU"]["allocation_ratio"] = 7.5
        self.tree.update_inventory(NODE, known)
        self.assertEqual(7.5, self.inventory(self.facts)["VCPU"][2])

    def test_nothing_changes_the_second_time(self):
        provider.update(self.tree, NODE, self.facts)
        again = self.tree.data(NODE).inventory
        self.assertFalse(self.tree.has_inventory_changed(NODE, again))
        provider.update(self.tree, NODE, self.facts)
        self.assertEqual(again, self.tree.data(NODE).inventory)


class TestTraits(ProviderCase):
    def test_features(self):
        """/proc/cpuinfo's flags -> traits, on each architecture."""
        for arch, flags, expected in (
                ("x86_64", "sse sse2 pni ssse3 sse4_1 sse4_2 avx avx2 fma aes pclmulqdq bmi1 bmi2 sha_ni pdpe1gb rtm",
                 "SSE SSE2 SSE3 SSSE3 SSE41 SSE42 AVX AVX2 FMA3 AESNI CLMUL BMI BMI2 SHA PDPE1GB TSX"),
                ("x86_64", "avx512f avx512_vnni avx512_vbmi2 avx512_vpopcntdq vaes gfni vpclmulqdq amx_tile",
                 "AVX512F AVX512VNNI AVX512VBMI2 AVX512VPOPCNTDQ AVX512VAES AVX512GFNI AVX512VPCLMULQDQ AMXTILE"),
                ("x86_64", "vmx svm sgx hypervisor lm", ""),
                ("aarch64", "fp asimd atomics sve asimddp sha512 dit", "FP ASIMD ATOMICS SVE ASIMDDP SHA512"),
                ("riscv64", "rv64imafdc", "")):
            prefix = "HW_CPU_AARCH64_" if arch == "aarch64" else "HW_CPU_X86_"
            found = provider.traits(self.with_cpu(arch=arch, features=frozenset(flags.split()), threads_per_core=1))
            features = {name for name in found if name.startswith("HW_CPU_")}
            self.assertEqual({prefix + name for name in expected.split()}, features, flags)

    def test_the_host(self):
        found = provider.traits(self.facts)
        self.assertLessEqual({"CUSTOM_LXD", "HW_ARCH_X86_64", "HW_CPU_HYPERTHREADING", "HW_CPU_X86_AVX2"}, found)
        incus = provider.traits(dataclasses.replace(self.facts, server=hosts.INCUS))
        self.assertEqual({"CUSTOM_INCUS", "CUSTOM_LXD"}, incus ^ found)

    def test_placement_knows_them(self):
        found = {name for name in provider.traits(self.facts) if not name.startswith("CUSTOM_")}
        self.assertEqual(set(), found - set(os_traits.get_traits()))

    def test_others_stay_and_old_ones_go(self):
        self.tree.add_traits(NODE, "CUSTOM_RACK_7", "HW_CPU_X86_VMX", "CUSTOM_INCUS", "HW_CPU_X86_AMXTILE")
        provider.update(self.tree, NODE, self.with_cpu(features=frozenset({"avx"}), threads_per_core=1))
        self.assertEqual({"CUSTOM_RACK_7", "HW_CPU_X86_VMX", "CUSTOM_LXD", "HW_ARCH_X86_64", "HW_CPU_X86_AVX"},
                         self.tree.data(NODE).traits)
