# SPDX-License-Identifier: Apache-2.0
from typing import Any

import testtools
from nova.compute.provider_tree import ProviderTree
from oslo_utils.fixture import uuidsentinel as uuids

from containerhost.devices.model import Kind
from nova_lxd_ext.hardware import pci, sliceproviders
from nova_lxd_ext.hardware.sliceproviders import Need, provider_name, provider_uuid
from tests.unit.nova.migkit import GPU_A, GPU_B, LARGE, NODE, SMALL, gpu, host, part, place

NAME_A, NAME_B = provider_name(NODE, GPU_A), provider_name(NODE, GPU_B)
PLACES = "CUSTOM_SHARED_GPU_NVIDIA_A100_SXM4_40GB"
UUID_A, UUID_B = provider_uuid(NODE, GPU_A), provider_uuid(NODE, GPU_B)


class WordsTest(testtools.TestCase):
    def test_classes_of_profiles(self) -> None:
        for profile, expected in (("1g.5gb", SMALL), ("3g.20gb", LARGE), ("1g.10gb+me", "CUSTOM_MIG_1G_10GB_ME"),
                                  ("1c.3g.40gb", "CUSTOM_MIG_1C_3G_40GB"), (None, None)):
            self.assertEqual(expected, sliceproviders.resource_class(part(GPU_A, 1, profile)), profile)
        self.assertIsNone(sliceproviders.resource_class(gpu(GPU_A)))

    def test_what_a_flavor_asks_for(self) -> None:
        for specs, expected in (
                ({}, {}), ({"resources:VGPU": "1", "hw:numa_nodes": "1"}, {}),
                ({f"resources:{SMALL}": "2"}, {SMALL: 2}),
                ({f"resources1:{SMALL}": "1", f"resources_b:{SMALL}": "1", f"resources:{LARGE}": "1"},
                 {SMALL: 2, LARGE: 1}),
                ({f"resources:{SMALL}": "0"}, {}), ({f"resources:{SMALL}": "many"}, {}), ({f"trait:{SMALL}": "1"}, {})):
            self.assertEqual(expected, dict(sliceproviders.asked(specs)), specs)


class SharedTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.devices = (gpu(GPU_A), place(GPU_A, 0), place(GPU_A, 1), gpu(GPU_B), part(GPU_B, 7))
        self.name = provider_name(NODE, GPU_A, Kind.GPU_SHARE)

    def test_one_provider_per_shared_gpu(self) -> None:
        tree, inventory = ProviderTree(), host(*self.devices)
        tree.new_root(NODE, uuids.root)
        sliceproviders.update(tree, NODE, inventory, [f"{GPU_A}/share1"], lambda uuid: {})
        (entry,) = tree.data(self.name).inventory.values()
        self.assertEqual([PLACES], list(tree.data(self.name).inventory))
        self.assertEqual((2, 1, 1), (entry["total"], entry["reserved"], entry["max_unit"]))
        self.assertTrue(tree.exists(NAME_B))
        # It is cut now: the provider of its places goes, another comes.
        sliceproviders.update(tree, NODE, host(gpu(GPU_A), part(GPU_A, 1)), (), lambda uuid: {})
        self.assertEqual((False, True), (tree.exists(self.name), tree.exists(NAME_A)))

    def test_what_a_server_gets(self) -> None:
        inventory = host(*self.devices)
        self.assertEqual({PLACES: 1}, dict(sliceproviders.asked({f"resources:{PLACES}": "1"})))
        allocations = {provider_uuid(NODE, GPU_A, Kind.GPU_SHARE): {"resources": {PLACES: 1}},
                       provider_uuid(NODE, GPU_A): {"resources": {SMALL: 1}}}
        self.assertEqual((Need(GPU_A, PLACES, 1),), sliceproviders.needs(allocations, NODE, inventory))

    def test_a_model_that_is_not_told(self) -> None:
        self.assertEqual("CUSTOM_SHARED_GPU_10DE_20B0", sliceproviders.resource_class(place(GPU_A, 0, model=None)))

    def test_a_shared_gpu_is_no_pci_device_of_novas(self) -> None:
        self.assertEqual([], [entry["address"] for entry in pci.passthrough(host(*self.devices), {})])


class NeedsTest(testtools.TestCase):
    def test_only_this_hosts_providers_count(self) -> None:
        allocations = {UUID_A: {"resources": {SMALL: 2, LARGE: 1}}, UUID_B: {"resources": {SMALL: 1}},
                       uuids.root: {"resources": {"VCPU": 4}},
                       provider_uuid("node2", GPU_A): {"resources": {SMALL: 1}}}
        self.assertEqual((Need(GPU_A, SMALL, 2), Need(GPU_A, LARGE, 1), Need(GPU_B, SMALL, 1)),
                         tuple(sorted(sliceproviders.needs(allocations, NODE, host()),
                                      key=lambda need: (need.gpu, -need.count))))

    def test_other_resources_of_the_provider_are_not_ours(self) -> None:
        self.assertEqual((), sliceproviders.needs({UUID_A: {"resources": {"CUSTOM_X": 1}}}, NODE, host()))

    def test_none(self) -> None:
        self.assertEqual((), sliceproviders.needs({}, NODE, host()))


class UpdateTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = ProviderTree()
        self.tree.new_root(NODE, uuids.root)
        self.used: dict[str, dict[str, int]] = {}

    def update(self, *devices: Any, unusable: Any = ()) -> None:
        self.inventory = host(*devices)
        sliceproviders.update(self.tree, NODE, self.inventory, unusable, lambda uuid: self.used.get(uuid, {}))

    def counts(self, name: str) -> dict[str, tuple[int, int]]:
        """Resource class -> total and reserved."""
        return {item: (entry["total"], entry["reserved"]) for item, entry in self.tree.data(name).inventory.items()}

    def test_one_provider_per_gpu_below_the_host(self) -> None:
        self.update()
        self.assertEqual(({SMALL: (2, 0), LARGE: (1, 0)}, {SMALL: (1, 0)}), (self.counts(NAME_A), self.counts(NAME_B)))
        found = self.tree.data(NAME_A)
        self.assertEqual((UUID_A, uuids.root), (found.uuid, found.parent_uuid))
        self.assertEqual({"CUSTOM_NUMA_NODE_0", "CUSTOM_GPU_NVIDIA_A100_SXM4_40GB"}, found.traits)
        entry = found.inventory[SMALL]
        self.assertEqual((1, 2, 1, 1.0), (entry["min_unit"], entry["max_unit"], entry["step_size"],
                                          entry["allocation_ratio"]))

    def test_nothing_changes_the_second_time(self) -> None:
        self.update()
        before = {name: self.tree.data(name) for name in (NAME_A, NAME_B)}
        self.update()
        for name, data in before.items():
            self.assertFalse(self.tree.has_inventory_changed(name, data.inventory))
            self.assertEqual(data.traits, self.tree.data(name).traits)

    def test_slices_nobody_can_have_are_reserved(self) -> None:
        self.update(unusable=[f"{GPU_A}/gi2/ci0"])
        self.assertEqual({SMALL: (2, 1), LARGE: (1, 0)}, self.counts(NAME_A))

    def test_a_slice_of_unknown_profile_is_not_told(self) -> None:
        self.update(gpu(GPU_A), part(GPU_A, 1, None))
        self.assertFalse(self.tree.exists(NAME_A))

    def test_inventory_stays_reserved_while_profiles_are_unknown(self) -> None:
        self.update()
        self.update(gpu(GPU_A), part(GPU_A, 1, None), part(GPU_A, 2, None), part(GPU_A, 5, "3g.20gb"), gpu(GPU_B),
                    part(GPU_B, 7, None))
        self.assertEqual(({SMALL: (2, 2), LARGE: (1, 0)}, {SMALL: (1, 1)}), (self.counts(NAME_A), self.counts(NAME_B)))
        self.update()
        self.assertEqual(({SMALL: (2, 0), LARGE: (1, 0)}, {SMALL: (1, 0)}), (self.counts(NAME_A), self.counts(NAME_B)))

    def test_what_vanished_goes_when_nobody_has_it(self) -> None:
        self.update()
        self.update(gpu(GPU_A), part(GPU_A, 1))
        self.assertEqual({SMALL: (1, 0)}, self.counts(NAME_A))
        self.assertFalse(self.tree.exists(NAME_B))

    def test_what_vanished_is_reserved_while_somebody_has_it(self) -> None:
        self.update()
        self.used = {UUID_A: {LARGE: 1}, UUID_B: {SMALL: 1}}
        self.update(gpu(GPU_A), part(GPU_A, 1))
        self.assertEqual(({SMALL: (1, 0), LARGE: (1, 1)}, {SMALL: (1, 1)}), (self.counts(NAME_A), self.counts(NAME_B)))
        self.used = {}
        self.update(gpu(GPU_A), part(GPU_A, 1))
        self.assertEqual({SMALL: (1, 0)}, self.counts(NAME_A))
        self.assertFalse(self.tree.exists(NAME_B))

    def test_a_gpu_that_comes_back_is_the_same_provider(self) -> None:
        self.update()
        self.update(gpu(GPU_A), part(GPU_A, 1))
        self.update()
        self.assertEqual(UUID_B, self.tree.data(NAME_B).uuid)

    def test_others_providers_and_traits_stay(self) -> None:
        self.tree.new_child(f"{NODE}_0000:3B:00.0", NODE, uuid=uuids.pci)
        self.tree.new_child("node10_mig_x", NODE, uuid=uuids.other)
        self.update()
        self.tree.add_traits(NAME_A, "CUSTOM_RACK_7", "CUSTOM_NUMA_NODE_3")
        self.update(gpu(GPU_A), part(GPU_A, 1))
        self.assertTrue(self.tree.exists(uuids.pci))
        self.assertTrue(self.tree.exists(uuids.other))
        self.assertEqual({"CUSTOM_NUMA_NODE_0", "CUSTOM_GPU_NVIDIA_A100_SXM4_40GB", "CUSTOM_RACK_7"},
                         self.tree.data(NAME_A).traits)
