# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import testtools

from containerhost.devices.model import Device, Kind, LinkLayer, Role
from tools.cloud import hardware

GPU = Device(id="", address="", kind=Kind.GPU, vendor_id="10de", product_id="20b0", class_code="030200",
             plugin="nvidia", model="NVIDIA A100-SXM4-40GB", numa_node=0)
VF = Device(id="", address="", kind=Kind.NET, vendor_id="15b3", product_id="101c", class_code="020700", plugin="net",
            role=Role.VF, link_layer=LinkLayer.INFINIBAND, netdev="ibs1v0", numa_node=0)


def at(device: Device, address: str, node: int | None, **changes: object) -> Device:
    return dataclasses.replace(device, id=address, address=address, numa_node=node, **changes)


class ChooseTest(testtools.TestCase):
    def chosen(self, *devices: Device, held: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        return [(pair.gpu.id, pair.vf.id) for pair in hardware.choose(devices, held)]

    def test_one_pair_on_each_node(self) -> None:
        self.assertEqual([("g0", "v0"), ("g2", "v2")], self.chosen(
            at(GPU, "g0", 0), at(GPU, "g1", 0), at(GPU, "g2", 1), at(VF, "v0", 0), at(VF, "v1", 0), at(VF, "v2", 1)))

    def test_two_pairs_on_one_node_when_there_is_no_other(self) -> None:
        self.assertEqual([("g0", "v0"), ("g1", "v1")], self.chosen(
            at(GPU, "g0", 0), at(GPU, "g1", 0), at(VF, "v0", 0), at(VF, "v1", 0)))

    def test_both_servers_get_the_same_kinds(self) -> None:
        self.assertEqual([("g1", "v1"), ("g2", "v2")], self.chosen(
            at(GPU, "g0", 0, product_id="2330"), at(GPU, "g1", 1), at(GPU, "g2", 2), at(VF, "v0", 0), at(VF, "v1", 1),
            at(VF, "v2", 2)))

    def test_refused_with_what_is_there(self) -> None:
        two_gpus = at(GPU, "g0", 0), at(GPU, "g1", 1)
        vf = at(VF, "v0", 0)
        table = [
            ("nothing", (), (), "0 GPUs and 0 InfiniBand"),
            ("no functions", two_gpus, (), "2 GPUs and 0 InfiniBand"),
            ("function on the wrong node", (*two_gpus, vf, at(VF, "v1", 0)), (), "2 GPUs and 2 InfiniBand"),
            ("a physical function", (*two_gpus, vf, at(VF, "v1", 1, role=Role.PF)), (), "and 1 InfiniBand"),
            ("Ethernet", (*two_gpus, vf, at(VF, "v1", 1, link_layer=LinkLayer.ETHERNET)), (), "and 1 InfiniBand"),
            ("ill", (two_gpus[0], at(GPU, "g1", 1, health=("gone",)), vf, at(VF, "v1", 1)), (), "1 GPUs"),
            ("held", (*two_gpus, vf, at(VF, "v1", 1)), ("g1",), "1 GPUs"),
            ("no NUMA node", (at(GPU, "g0", None), at(GPU, "g1", None), at(VF, "v0", None), at(VF, "v1", None)), (),
             "0 GPUs and 0"),
        ]
        for name, devices, held, words in table:
            error = self.assertRaises(hardware.NotEnough, hardware.choose, devices, held)
            self.assertIn(words, str(error), name)


class OfferTest(testtools.TestCase):
    def test_aliases_and_addresses_for_nova(self) -> None:
        pairs = hardware.choose([at(GPU, "0000:3b:00.0", 0, role=Role.PF), at(GPU, "0000:af:00.0", 1, role=Role.PF),
                                 at(VF, "0000:5e:00.1", 0), at(VF, "0000:d8:00.1", 1)])
        gpu, vf = hardware.offers(pairs)
        self.assertEqual({"name": "gpu-a100", "vendor_id": "10de", "product_id": "20b0", "device_type": "type-PF",
                          "numa_policy": "required", "live_migratable": "yes"}, json.loads(gpu.alias_option))
        self.assertEqual(["0000:5e:00.1", "0000:d8:00.1"], [json.loads(spec)["address"] for spec in vf.spec_options])
        self.assertEqual(("type-VF", "CUSTOM_PCI_15B3_101C"), (vf.device_type, vf.resource_class))

    def test_short_model(self) -> None:
        table = [("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA H100 80GB HBM3", "h100"),
                 ("AMD Instinct MI250X", "mi250x"), ("Graphics", "20b0"), (None, "20b0")]
        for model, word in table:
            self.assertEqual(word, hardware.short_model(dataclasses.replace(GPU, model=model)))
