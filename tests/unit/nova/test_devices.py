# SPDX-License-Identifier: Apache-2.0
import re
from typing import Any

import testtools

from containerhost import errors
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.inventory.scan import Inventory
from nova_lxd_ext.hardware import devices
from nova_lxd_ext.hardware.devices import Policy
from tests.unit.nova import records


def gpu(address: str) -> Device:
    return Device(address, address, Kind.GPU, "10de", "20b0", "030200", "nvidia")


def vf(address: str, link_layer: LinkLayer = LinkLayer.INFINIBAND, role: Role = Role.VF) -> Device:
    return Device(address, address, Kind.NET, "15b3", "101c", "020700", "net", role=role, link_layer=link_layer)


ETHERNET = LinkLayer.ETHERNET
GPU_A, GPU_B, IB_A, IB_B, ETH = ("0000:3b:00.0", "0000:86:00.0", "0000:3c:00.1", "0000:87:00.1", "0000:5e:10.2")
POLICY = Policy()
INVENTORY = Inventory((gpu(GPU_A), gpu(GPU_B), vf(IB_A), vf(IB_B), vf(ETH, ETHERNET)))


class ClaimedTest(testtools.TestCase):
    def test_the_flavors_order_comes_first_then_the_address(self) -> None:
        server = records.instance(("ib", IB_B), ("gpu", GPU_B), ("ib", IB_A), ("gpu", GPU_A))
        self.assertEqual((IB_A, IB_B, GPU_A, GPU_B), devices.claimed(server, records.NODE))

    def test_what_a_moving_server_has_on_its_other_host_is_not_here(self) -> None:
        server = records.instance(("gpu", GPU_A), ("gpu", GPU_B))
        server.pci_devices.objects[0].compute_node_id = records.NODE + 1
        self.assertEqual((GPU_B,), devices.claimed(server, records.NODE))
        self.assertEqual((GPU_A,), devices.claimed(server, records.NODE + 1))

    def test_what_a_resized_server_has_by_its_other_flavor_does_not_count(self) -> None:
        server = records.instance(("gpu", GPU_A), ("ib", IB_A))
        del server.pci_requests.requests[0]
        self.assertEqual((IB_A,), devices.claimed(server, records.NODE))

    def test_a_direct_port_brings_its_function_itself(self) -> None:
        server = records.instance(("gpu", GPU_A), ("port", IB_A))
        server.pci_requests.requests[1].alias_name = None
        self.assertEqual((GPU_A,), devices.claimed(server, records.NODE))


def requests(server: Any, inventory: Inventory = INVENTORY, policy: Policy = POLICY, **options: Any) -> Any:
    return devices.requests(server.uuid, devices.claimed(server, records.NODE), inventory, policy, **options)


class RequestsTest(testtools.TestCase):
    def test_interfaces_are_counted_by_kind_in_request_order(self) -> None:
        server = records.instance(("ib", IB_B), ("eth", ETH), ("gpu", GPU_A), ("other-ib", IB_A))
        found = {request.address: request.options.netdev_name for request in
                 requests(server, first_ethernet=2)}
        self.assertEqual({IB_B: "ib0", ETH: "eth2", GPU_A: None, IB_A: "ib1"}, found)

    def test_each_device_gets_what_concerns_it(self) -> None:
        policy = Policy(frozenset({"compute"}), memlock="8388608", management_nodes=True, own_guids=False,
                        max_tx_rate=100)
        server = records.instance(("gpu", GPU_A), ("ib", IB_A))
        self.assertEqual(
            [GrantOptions(gpu_capabilities=frozenset({"compute"})),
             GrantOptions(netdev_name="ib0", memlock="8388608", management_nodes=True, max_tx_rate=100)],
            [request.options for request in requests(server, policy=policy)])

    def test_only_infiniband_vfs_get_guids(self) -> None:
        pf = "0000:3c:00.0"
        inventory = Inventory((vf(IB_A), vf(pf, role=Role.PF), vf(ETH, ETHERNET)))
        server = records.instance(("vf", IB_A), ("pf", pf), ("eth", ETH))
        options = [request.options for request in requests(server, inventory)]
        self.assertEqual([True, False, False], [option.node_guid is not None for option in options])
        self.assertEqual([True, False, False], [option.port_guid is not None for option in options])

    def test_guids_belong_to_the_server_and_the_place_not_to_the_vf(self) -> None:
        here = requests(records.instance(("ib", IB_A)))[0].options
        elsewhere = requests(records.instance(("ib", IB_B)))[0].options
        other = requests(records.instance(("ib", IB_A), uuid=records.IMAGE))[0].options
        self.assertEqual((here.node_guid, here.port_guid), (elsewhere.node_guid, elsewhere.port_guid))
        self.assertEqual(4, len({here.node_guid, here.port_guid, other.node_guid, other.port_guid}))

    def test_a_device_that_vanished_after_the_claim_is_refused(self) -> None:
        server = records.instance(("gpu", "0000:99:00.0"))
        self.assertRaises(errors.DeviceNotFound, requests, server)

    def test_no_device_no_request(self) -> None:
        self.assertEqual((), requests(records.instance()))


    def test_a_slice_goes_by_its_id(self) -> None:
        part = Device(f"{GPU_A}/gi1/ci0", GPU_A, Kind.GPU_SLICE, "10de", "20b0", "030200", "nvidia", parent=GPU_A)
        (found,) = devices.requests("u", [part.id], Inventory((gpu(GPU_A), part)), Policy(frozenset({"compute"})))
        self.assertEqual((part.id, frozenset({"compute"})), (found.address, found.options.gpu_capabilities))


class GuidTest(testtools.TestCase):
    def test_is_locally_administered_and_written_as_the_kernel_does(self) -> None:
        for seed in map(str, range(200)):
            guid = devices.guid(seed)
            self.assertTrue(re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", guid), guid)
            self.assertEqual(0b10, int(guid[:2], 16) & 0b11, guid)
