# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver.node.options import BadOptions, NodeOptions, read
from onedriver.node.pcifilter import PciFilter

IDS, ADDRESS, NAME = ("10de", "20b0", "0302"), "3b:00.0", "NVIDIA A100-SXM4-40GB"


class PciFilterTest(testtools.TestCase):
    def test_ids_as_in_pci_conf(self) -> None:
        for wanted, expected in (
            ("*:*:*", True), ("*:*", True), ("10de:*", True), ("10DE:20B0", True), ("*:20b0", True),
            ("10de::0302", True), ("15b3:*,10de:*", True), ("10de:20b? : 0302", True), ("0:0", False),
            ("10de::0207", False), ("8086", False)):
            self.assertEqual(expected, PciFilter([wanted]).passes(IDS, ADDRESS, NAME), wanted)
        self.assertFalse(PciFilter([]).passes(IDS, ADDRESS, NAME))

    def test_addresses_and_names_restrict_further(self) -> None:
        for more, expected in (
            ({"short_addresses": [ADDRESS]}, True), ({"short_addresses": ["3c:00.0"]}, False),
            ({"names": ["a100.*40gb"]}, True), ({"names": ["^A100"]}, False), ({"names": ["MI100", "^nvidia"]}, True),
            ({"short_addresses": [ADDRESS], "names": ["MI100"]}, False)):
            self.assertEqual(expected, PciFilter(**more).passes(IDS, ADDRESS, NAME), more)

    def test_options_of_a_node(self) -> None:
        found = read(NodeOptions, {"pci_filter": ["10de:*"], "pci_short_address": ["3b:00.0"],
                                   "pci_device_name": ["a"]})
        self.assertEqual(PciFilter(("10de:*",), ("3b:00.0",), ("a",)), found.pci)
        error = self.assertRaises(BadOptions, read, NodeOptions, {"pci_device_name": ["a("]})
        self.assertIn("pci_device_name", str(error))
