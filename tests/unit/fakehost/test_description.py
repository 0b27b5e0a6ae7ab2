# SPDX-License-Identifier: Apache-2.0
import copy
import pathlib
import tempfile
from typing import Any

import testtools

from tests.fakehost import description
from tests.fakehost.description import DescriptionError, Fault, Kind

GPU = {"address": "0000:3b:00.0", "vendor": "nvidia", "product": "20b0", "model": "A100", "numa_node": 0}
CARD = {"address": "0000:5e:00.0", "kind": "infiniband", "netdev": "ib0", "numa_node": 0, "total_vfs": 2}
HOST = {"name": "test", "nodes": [{"cores": 2, "memory": "1GiB"}], "gpus": [GPU], "cards": [CARD]}


def changed(part: str, **values: Any) -> dict[str, Any]:
    """HOST with keys of its only node, GPU or card changed; None takes a key away."""
    host = copy.deepcopy(HOST)
    section = host if part == "host" else host[part][0]
    section.update(values)
    for key in [key for key, value in values.items() if value is None]:
        del section[key]
    return host


class TestParse(testtools.TestCase):
    def test_defaults_follow_from_vendor_and_kind(self):
        host = description.parse(HOST)
        self.assertEqual(
            ("10de", "030200", "nvidia"), (host.gpus[0].vendor_id, host.gpus[0].class_code, host.gpus[0].driver)
        )
        self.assertEqual(
            ("15b3", "020700", "mlx5_core"), (host.cards[0].vendor_id, host.cards[0].class_code, host.cards[0].driver)
        )
        self.assertEqual("ib0", host.cards[0].fabric)

    def test_sizes(self):
        for text, octets in (("1GiB", 2**30), ("40 GiB", 40 * 2**30), ("2MiB", 2**21), ("4096", 4096), (4096, 4096)):
            self.assertEqual(octets, description.parse(changed("nodes", memory=text)).nodes[0].memory)

    def test_cpus_are_numbered_as_linux_does(self):
        node = {"cores": 2, "threads": 2, "memory": "1GiB"}
        nodes = description.parse(changed("host", nodes=[node, node])).nodes
        self.assertEqual(((0, 4), (1, 5)), nodes[0].cores)
        self.assertEqual(((2, 6), (3, 7)), nodes[1].cores)
        self.assertEqual((2, 3, 6, 7), nodes[1].cpus)

    def test_faults_and_slices(self):
        host = description.parse(changed("gpus", mig={2: [0], 1: [0, 1]}, faults=["no-nodes"]))
        self.assertEqual(((1, 0), (1, 1), (2, 0)), host.gpus[0].mig)
        self.assertEqual({Fault.NO_NODES}, host.gpus[0].faults)
        host = description.parse(changed("cards", vf_faults={1: ["no-driver"]}))
        self.assertEqual({1: {Fault.NO_DRIVER}}, dict(host.cards[0].vf_faults))

    def test_refusals_name_place_and_remedy(self):
        for data, *words in (
            ("text", "expected keys and values"),
            (changed("host", name=None), "file.yaml", "'name' is missing"),
            (changed("host", nodes=[]), "at least one NUMA node"),
            (changed("host", colour="red"), "unknown key 'colour'", "known here: name, nodes, gpus, cards"),
            (changed("nodes", memory="lots"), "nodes[0].memory", "'lots'", "40GiB"),
            (changed("nodes", cores=-1), "nodes[0].cores", "0 or more"),
            (changed("nodes", cores=True), "nodes[0].cores", "0 or more"),
            (changed("nodes", hugepages=[1]), "nodes[0].hugepages", "{2MiB: 1024}"),
            (changed("gpus", address="3b:00.0"), "gpus[0].address", "0000:3b:00.0"),
            (changed("gpus", address="0000:3B:00.0"), "lower case"),
            (changed("gpus", product=2330), "gpus[0].product", "quotes"),
            (changed("gpus", vendor="voodoo"), "gpus[0].vendor", "nvidia, amd, intel"),
            (changed("gpus", numa_node=1), "0000:3b:00.0", "NUMA node 1", "1 nodes"),
            (changed("gpus", vendor="amd", mig={1: [0]}), "only an NVIDIA GPU"),
            (changed("gpus", mig=[1]), "gpus[0].mig", "{1: [0], 2: [0]}"),
            (changed("gpus", faults=["bored"]), "gpus[0].faults", "fallen-off-bus"),
            (changed("gpus", speed=1), "gpus[0]", "unknown key 'speed'"),
            (changed("cards", kind="tokenring"), "cards[0].kind", "infiniband, roce, ethernet"),
            (changed("cards", netdev="a/b"), "cards[0].netdev", "1 to 15 characters"),
            (changed("cards", netdev="abcdefghijklmno"), "leaves no room"),
            (changed("cards", enabled_vfs=3), "3 VFs are enabled", "total_vfs is 2"),
            (changed("cards", address="0000:3b:00.0"), "address 0000:3b:00.0 is used twice"),
            (changed("host", cards=[CARD, {**CARD, "address": "0000:5f:00.0"}]), "netdev ib0 is used twice"),
        ):
            error = self.assertRaises(DescriptionError, description.parse, data, "file.yaml")
            for word in words:
                self.assertIn(word, str(error))


class TestLoad(testtools.TestCase):
    def test_every_host_of_the_project_can_be_used(self):
        names = sorted(path.stem for path in description.HOSTS.glob("*.yaml"))
        self.assertEqual(["broken", "cards", "dgx", "fabrics", "mixed", "small"], names)
        for name in names:
            self.assertEqual(name, description.load(name).name)

    def test_mixed_has_one_of_everything(self):
        host = description.load("mixed")
        self.assertEqual({"nvidia", "amd", "intel", "example"}, {gpu.vendor for gpu in host.gpus})
        self.assertEqual(set(Kind), {card.kind for card in host.cards})

    def test_unknown_names_tell_the_known_ones(self):
        error = self.assertRaises(DescriptionError, description.load, "smal")
        self.assertIn("broken, cards, dgx, fabrics, mixed, small", str(error))

    def test_what_is_not_yaml(self):
        with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
            pathlib.Path(file.name).write_text("name: [")
            error = self.assertRaises(DescriptionError, description.load, file.name)
        self.assertIn("not YAML", str(error))
