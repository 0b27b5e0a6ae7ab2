# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.inventory import pci_topology
from containerhost.inventory.pci_topology import Way
from containerhost.inventory.scan import scan
from tests.unit.containerhost.hosts import Broken, shared

HOST = "/sys/devices/pci0000:16"
PORT, UP = "0000:16:01.0", "0000:17:00.0"
GPU = f"{HOST}/{PORT}/{UP}/0000:18:00.0/0000:1b:00.0"


class TestWays(testtools.TestCase):
    def test_what_lies_between(self):
        for other, one_node, expected in (
                (f"{HOST}/{PORT}/{UP}/0000:18:01.0/0000:1c:00.0", True, Way.PIX),  # another port of the switch
                (f"{HOST}/{PORT}/{UP}/0000:18:01.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0", True, Way.PXB),
                (f"{HOST}/0000:16:02.0/0000:20:00.0", True, Way.PHB),  # another root port
                (f"{HOST}/0000:16:02.0/0000:20:00.0", False, Way.PHB),
                ("/sys/devices/pci0000:30/0000:30:01.0/0000:31:00.0", True, Way.NODE),
                ("/sys/devices/pci0000:30/0000:30:01.0/0000:31:00.0", False, Way.SYS)):
            self.assertEqual(expected, pci_topology.way(GPU, other, one_node))
            self.assertEqual(expected, pci_topology.way(other, GPU, one_node))

    def test_two_functions_of_one_card(self):
        card = f"{HOST}/{PORT}/0000:17:00"
        self.assertEqual(Way.PIX, pci_topology.way(f"{card}.0", f"{card}.1", True))
        self.assertEqual(Way.PHB, pci_topology.way(f"{HOST}/0000:16:00.0", f"{HOST}/0000:16:00.1", True))


class TestConnections(testtools.TestCase):
    def test_by_numa_node(self):
        host = shared("mixed")
        found = pci_topology.connections(scan(host), host)
        ways = {(each.gpu, each.function): each.way for each in found}
        self.assertEqual(Way.NODE, ways["0000:3b:00.0", "0000:5e:00.1"])
        self.assertEqual(Way.SYS, ways["0000:3b:00.0", "0000:d8:00.2"])
        self.assertNotIn("0000:3c:00.0/gi1/ci0", [each.gpu for each in found])
        self.assertEqual(("0000:83:00.0", "0000:84:00.0", "0000:9a:00.0"), pci_topology.nearest(found, "0000:d8:00.2"))
        self.assertEqual((), pci_topology.nearest(found, "0000:ff:00.0"))

    def test_a_gpu_behind_the_switch_of_a_card_is_nearest(self):
        tree = self.useFixture(Broken("mixed"))
        switch = tree.path("/sys/devices/pci0000:5d/0000:5d:00.0/0000:5d:01.0")
        for number, address in enumerate(("0000:84:00.0", "0000:5e:00.1")):
            place = switch / f"0000:5e:0{number}.7" / address
            place.parent.mkdir(parents=True)
            tree.function(address).rename(place)
            link = tree.path(f"/sys/bus/pci/devices/{address}")
            link.unlink()
            link.symlink_to("../../../" + str(place.relative_to(tree.path("/sys"))))
        found = pci_topology.connections(scan(tree.host), tree.host)
        self.assertIn(pci_topology.Connection("0000:84:00.0", "0000:5e:00.1", Way.PIX), found)
        self.assertEqual(("0000:84:00.0",), pci_topology.nearest(found, "0000:5e:00.1"))

    def test_a_host_that_names_no_nodes_has_one(self):
        tree = self.useFixture(Broken("small"))
        for node in tree.path("/sys/devices/system/node").glob("node1"):
            node.rename(tree.root / "away")
        for device in scan(tree.host).devices:
            (tree.function(device.address) / "numa_node").write_text("-1\n")
        self.assertEqual({Way.NODE}, {each.way for each in pci_topology.connections(scan(tree.host), tree.host)})
