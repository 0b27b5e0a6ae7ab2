# SPDX-License-Identifier: Apache-2.0
import shutil

import testtools

from containerhost.devices import rdmaports
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import LinkLayer
from containerhost.devices.rdmaports import Gid, NamespaceMode
from containerhost.engines.network import rdma_netns
from containerhost.errors import HostActionFailed
from containerhost.inventory.scan import scan
from containerhost.privileged import Privileged
from containerhost.vendors import make_grant
from tests.unit.containerhost.hosts import Broken, shared

INFINIBAND, ROCE, ETHERNET = "0000:5e:00.1", "0000:d8:00.2", "0000:31:10.0"
MODE = "/sys/module/ib_core/parameters/netns_mode"


class TestPorts(testtools.TestCase):
    def ports(self, address, host=None):
        host = host or shared("mixed")
        return rdmaports.ports(host, scan(host).get(address))

    def test_infiniband(self):
        (port,) = self.ports(INFINIBAND)
        self.assertEqual((1, "active", "200 Gb/sec (4X HDR)", "0x2", ("0xffff",)),
                         (port.number, port.state, port.rate, port.lid, port.pkeys))
        self.assertEqual([0], [gid.index for gid in port.gids])  # the table's other entry is zeros

    def test_roce_has_each_address_in_two_versions(self):
        (port,) = self.ports(ROCE)
        self.assertEqual([(0, "IB/RoCE v1"), (1, "RoCE v2")], [(gid.index, gid.kind) for gid in port.gids])
        self.assertEqual({"ens4f0np0v0"}, {gid.netdev for gid in port.gids})

    def test_none_without_rdma(self):
        self.assertEqual((), self.ports(ETHERNET))

    def test_odd_content_is_left_out(self):
        tree = self.useFixture(Broken("mixed"))
        directory = next((tree.function(INFINIBAND) / "infiniband").iterdir()) / "ports"
        for name, text in (("1/pkeys/2", "everything"), ("1/pkeys/3", "0x7fff"), ("1/gids/5", "fe80::1"),
                           ("1/gids/x", "fe80"), ("nonsense/state", "4: ACTIVE")):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(text)
        (directory / "1/state").unlink()
        (port,) = self.ports(INFINIBAND, tree.host)
        self.assertEqual((("0xffff", "0x7fff"), [0], None),
                         (port.pkeys, [gid.index for gid in port.gids], port.state))

    def test_addresses_as_people_know_them(self):
        for gid, expected in (("0000:0000:0000:0000:0000:ffff:c0a8:0105", "192.168.1.5"),
                              ("fe80:0000:0000:0000:b8ce:f603:d800:0001", "fe80::b8ce:f603:d800:1")):
            self.assertEqual(expected, Gid(0, gid, None, None).address)


class Recorder(Privileged):
    def __init__(self):
        self.moved = []

    def move_rdma(self, ibdev, pid):
        self.moved.append((ibdev, pid))


class TestNamespaces(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))
        self.privileged = Recorder()

    def test_modes(self):
        for text, expected in (("Y\n", NamespaceMode.SHARED), ("N\n", NamespaceMode.EXCLUSIVE), ("?\n", None)):
            self.tree.path(MODE).write_text(text)
            self.assertEqual(expected, rdmaports.namespace_mode(self.tree.host))
        self.tree.path(MODE).unlink()
        self.assertIsNone(rdmaports.namespace_mode(self.tree.host))

    def enter(self, *addresses):
        inventory = scan(self.tree.host)
        grants = [make_grant(inventory.get(address), GrantOptions()) for address in addresses]
        rdma_netns.enter(self.privileged, self.tree.host, 4711, grants)

    def test_shared_devices_stay(self):
        self.enter(INFINIBAND, ROCE)
        self.assertEqual([], self.privileged.moved)

    def test_exclusive_ones_go_with_their_functions(self):
        self.tree.path(MODE).write_text("N\n")
        self.enter(INFINIBAND, ETHERNET, "0000:3b:00.0", ROCE)
        self.assertEqual([("mlx5_1", 4711), ("mlx5_6", 4711)], self.privileged.moved)

    def test_one_that_is_away_is_known_by_its_verbs_node_and_stays(self):
        self.tree.path(MODE).write_text("N\n")
        whole = scan(self.tree.host).get(INFINIBAND)
        shutil.rmtree(self.tree.function(INFINIBAND) / "infiniband")
        device = scan(self.tree.host).get(INFINIBAND)
        self.assertEqual(("mlx5_1", True, None), (device.rdma.ibdev, device.rdma.away, device.rdma.port_state))
        self.assertEqual([node for node in whole.nodes if "umad" not in node.path and "issm" not in node.path],
                         list(device.nodes))
        self.assertEqual(((), LinkLayer.INFINIBAND), (device.health, device.link_layer))
        self.enter(INFINIBAND)
        self.assertEqual([], self.privileged.moved)

    def test_a_process_of_the_host_is_none_of_a_container(self):
        error = self.assertRaises(HostActionFailed, Privileged().move_rdma, "mlx5_0", 1)
        self.assertIn("not that of a running container", str(error))
