# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import testtools

from containerhost import vendors
from containerhost.devices.grants import GpuGrant, Grant, NetdevGrant
from containerhost.devices.model import CharNode, Device, Kind, LinkLayer, NodeUse
from containerhost.engines.docker.privileged import char_node
from containerhost.engines.verify import complaints
from containerhost.privileged import Inside
from containerhost.vendors.intel.vendor import Intel

VF = Device(id="0000:5e:00.1", address="0000:5e:00.1", kind=Kind.NET, vendor_id="15b3", product_id="101c",
            class_code="020700", plugin="net")
GRANT = Grant(VF, (CharNode("/dev/infiniband/uverbs1", 231, 193), CharNode("/dev/nvidiactl", 195, 255, NodeUse.SHARED)),
              netdev=NetdevGrant("ibs1v0", "ib0", LinkLayer.INFINIBAND), limits={"memlock": "4096"})
NODES = {"/dev/null": (1, 3), "/dev/infiniband/uverbs1": (231, 193), "/dev/nvidiactl": (195, 255)}


def inside(nodes=NODES, netdevs=("lo", "ib0"), memlock="4096"):
    return Inside(nodes, netdevs, {"memlock": memlock})


class TestComplaints(testtools.TestCase):
    def test_exactly_what_was_granted(self):
        for seen in (inside(), inside(memlock="unlimited"), inside(memlock="8192"), inside(netdevs=("ib0", "eth0"))):
            self.assertEqual((), complaints(seen, (GRANT,)))
        self.assertEqual((), complaints(inside({"/dev/null": (1, 3)}), ()))

    def test_too_little(self):
        for seen, word in (
            (inside({"/dev/nvidiactl": (195, 255)}), "uverbs1 is missing"),
            (inside(NODES | {"/dev/infiniband/uverbs1": (231, 194)}), "device 231:194, not 231:193"),
            (inside(netdevs=("lo",)), "interface ib0 is missing"),
            (inside(memlock="4095"), "limit of memlock is 4095"),
        ):
            self.assertIn(word, "; ".join(complaints(seen, (GRANT,))))

    def test_shared_nodes_are_the_toolkits_affair_where_it_brings_the_libraries(self):
        card = Device(id="0000:3b:00.0", address="0000:3b:00.0", kind=Kind.GPU, vendor_id="10de", product_id="20b0",
                      class_code="030200", plugin="nvidia")
        nodes = (CharNode("/dev/nvidia0", 195, 0), CharNode("/dev/nvidia-modeset", 195, 254, NodeUse.SHARED))
        for libraries, own, expected in ((frozenset(), True, 1), (frozenset({"compute"}), True, 0),
                                         (frozenset({"compute"}), False, 1)):
            grant = Grant(card, nodes, gpu=GpuGrant(libraries))
            seen = inside({"/dev/nvidia0": (195, 0)} if own else {})
            self.assertEqual(expected, len(complaints(seen, (grant,))), (libraries, own))

    def test_nodes_of_other_packages_vendors_are_guarded(self):
        other = type("Other", (Intel,), {"name": "other", "nodes": ("habanalabs/hl*", "qaic")})
        with mock.patch.object(vendors, "load", return_value=(*vendors.load(), other)):
            for path, expected in (("/dev/habanalabs/hl0", 1), ("/dev/qaic", 1), ("/dev/habanalabs/x", 0),
                                   ("/dev/qaic0", 0), ("/dev/nvidia1", 1)):
                self.assertEqual(expected, len(complaints(inside(NODES | {path: (1, 200)}), (GRANT,))), path)
            self.assertIn(("habanalabs",), vendors.node_directories())
            self.assertTrue(char_node().fullmatch("/dev/habanalabs/hl0"))
        self.assertFalse(char_node().fullmatch("/dev/habanalabs/hl0"))

    def test_patterns_that_lead_out_of_dev_are_refused(self):
        for pattern in ("../etc/*", "/etc/passwd", "a/../b", "", "a/*/b", "..", "a//b", "x/.."):
            bad = type("Bad", (Intel,), {"nodes": (pattern,)})
            self.assertRaises(ValueError, vendors.checked, bad)
        for vendor in vendors.load():
            self.assertIs(vendor, vendors.checked(vendor))

    def test_too_much(self):
        for path in ("/dev/nvidia1", "/dev/dri/card0", "/dev/infiniband/issm1", "/dev/kfd",
                     "/dev/nvidia-caps/nvidia-cap2"):
            found = complaints(inside(NODES | {path: (1, 200)}), (GRANT,))
            self.assertEqual(1, len(found))
            self.assertIn(path, found[0])
