# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost import vendors
from containerhost.devices.grants import GpuGrant, GrantOptions, NetdevGrant
from containerhost.devices.model import Kind, LinkLayer
from containerhost.errors import DeviceError, DeviceHeld, DeviceUnhealthy, SpecError
from containerhost.inventory.scan import scan
from containerhost.vendors import make_grant
from tests.unit.containerhost.hosts import Broken, shared


def paths(nodes) -> set[str]:
    return {node.path for node in nodes}


class GpuGrants(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.inventory = scan(shared("mixed"))

    def test_every_gpu_brings_all_its_nodes_and_no_other_gpus(self):
        for name in ("0000:3b:00.0", "0000:3c:00.0/gi1/ci0", "0000:83:00.0", "0000:4d:00.0"):
            device = self.inventory.get(name)
            grant = make_grant(device, GrantOptions())
            self.assertEqual(device.nodes, grant.nodes)
            self.assertEqual(device, grant.device)
            self.assertIsNone(grant.netdev)
            self.assertEqual({}, dict(grant.limits))
        self.assertEqual(set(), paths(make_grant(self.inventory.get("0000:83:00.0"), GrantOptions()).own_nodes)
                         & paths(make_grant(self.inventory.get("0000:84:00.0"), GrantOptions()).own_nodes))

    def test_libraries_are_nvidias_alone(self):
        wanted = GrantOptions(gpu_capabilities=frozenset({"compute", "utility"}))
        nvidia = make_grant(self.inventory.get("0000:3b:00.0"), wanted)
        self.assertEqual(GpuGrant(frozenset({"compute", "utility"})), nvidia.gpu)
        self.assertEqual(frozenset(), make_grant(self.inventory.get("0000:83:00.0"), wanted).gpu.libraries)

    def test_a_slice_names_its_instances(self):
        grant = make_grant(self.inventory.get("0000:3c:00.0/gi5/ci1"), GrantOptions())
        self.assertEqual({"/dev/nvidia-caps/nvidia-cap185"}, paths(grant.own_nodes))

    def test_a_gpu_without_nodes_is_refused_with_its_complaints(self):
        device = scan(shared("broken")).get("0000:b0:00.0")
        error = self.assertRaises(DeviceUnhealthy, make_grant, device, GrantOptions())
        self.assertIn("no driver is bound", str(error))

    def test_cdi_names_nvidia_gpus_by_uuid(self):
        gpu = self.inventory.get("0000:3b:00.0")
        self.assertEqual(f"nvidia.com/gpu={gpu.uuid}", vendors.of(gpu).cdi_name(gpu))
        for name in ("0000:3c:00.0/gi1/ci0", "0000:83:00.0", "0000:5e:00.1"):
            device = self.inventory.get(name)
            self.assertIsNone(vendors.of(device).cdi_name(device), name)

    def test_programs_are_told_each_gpu_once_or_nothing(self):
        gpu, card = self.inventory.get("0000:3b:00.0"), self.inventory.get("0000:5e:00.1")
        part = dataclasses.replace(gpu, id="0000:3b:00.0/gi1/ci0", kind=Kind.GPU_SLICE, uuid="MIG-1")
        shares = [dataclasses.replace(gpu, id=f"0000:3b:00.0/share{number}", kind=Kind.GPU_SHARE) for number in (0, 1)]
        for devices, expected in (([], ""), ([card], ""), ([gpu, card], gpu.uuid), ([part], "MIG-1"),
                                  (shares, gpu.uuid), ([part, self.inventory.get("0000:83:00.0")], "MIG-1")):
            self.assertEqual({"CUDA_VISIBLE_DEVICES": expected}, vendors.of(gpu).environment(devices))
        self.assertEqual({}, vendors.of(gpu).environment([part, dataclasses.replace(gpu, uuid=None)]))

    def test_a_plug_in_that_is_not_installed(self):
        device = dataclasses.replace(self.inventory.get("0000:3b:00.0"), plugin="tpu")
        self.assertIn("'tpu'", str(self.assertRaises(DeviceError, make_grant, device, GrantOptions())))


class NetworkGrants(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.inventory = scan(shared("mixed"))

    def test_an_infiniband_vf(self):
        options = GrantOptions(netdev_name="ib0", memlock="8388608", node_guid="0200:0000:0000:0001",
                               port_guid="0200:0000:0000:0002")
        grant = make_grant(self.inventory.get("0000:5e:00.1"), options)
        self.assertEqual(NetdevGrant("ibs1v0", "ib0", LinkLayer.INFINIBAND, "0200:0000:0000:0001",
                                     "0200:0000:0000:0002"), grant.netdev)
        self.assertEqual({"/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"}, paths(grant.nodes))
        self.assertEqual({"memlock": "8388608"}, dict(grant.limits))
        self.assertIsNone(grant.gpu)

    def test_management_nodes_are_given_only_when_asked_for(self):
        grant = make_grant(self.inventory.get("0000:5e:00.1"), GrantOptions(management_nodes=True))
        self.assertEqual({"/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad1",
                          "/dev/infiniband/issm1"}, paths(grant.nodes))

    def test_plain_ethernet_needs_no_locked_memory(self):
        grant = make_grant(self.inventory.get("0000:31:10.0"), GrantOptions())
        self.assertEqual(((), {}, "ens9f0v0"), (grant.nodes, dict(grant.limits), grant.netdev.name))

    def test_what_the_host_uses_is_refused(self):
        error = self.assertRaises(DeviceHeld, make_grant, self.inventory.get("0000:5e:00.0"), GrantOptions())
        self.assertIn("4 virtual functions are enabled", str(error))

    def test_a_rate_is_for_virtual_functions_of_ethernet_cards(self):
        limited = GrantOptions(max_tx_rate=100)
        make_grant(self.inventory.get("0000:31:10.0"), limited)
        card = dataclasses.replace(self.inventory.get("0000:31:00.0"), host_use=())
        for device, reason in ((card, "a whole card"), (self.inventory.get("0000:5e:00.1"), "no InfiniBand function")):
            self.assertIn(reason, str(self.assertRaises(SpecError, make_grant, device, limited)))
            make_grant(device, GrantOptions())

    def test_names_the_kernel_would_refuse(self):
        for name in ("a" * 16, "ib 0", "ib/0", "..", "ib:0", "ib0\n", "é"):
            self.assertRaises(SpecError, make_grant, self.inventory.get("0000:5e:00.1"), GrantOptions(netdev_name=name))

    def test_an_interface_in_another_namespace(self):
        tree = self.useFixture(Broken("mixed"))
        tree.take_netdev("0000:5e:00.1")
        device = scan(tree.host).get("0000:5e:00.1")
        error = self.assertRaises(DeviceHeld, make_grant, device, GrantOptions())
        self.assertIn("another network namespace", str(error))
        # Its holder knows its former name on the host, and can be granted it again.
        grant = make_grant(dataclasses.replace(device, netdev="ibs1v0"), GrantOptions(netdev_name="ib0"))
        self.assertEqual(("ibs1v0", "ib0"), (grant.netdev.host_name, grant.netdev.name))

    def test_no_interface_at_all(self):
        device = scan(shared("broken")).get("0000:5e:00.2")
        self.assertIn("no driver is bound", str(self.assertRaises(DeviceUnhealthy, make_grant, device, GrantOptions())))
