# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.allocation.refusals import Request
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, Kind, LinkLayer, Role, Slice
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import Inventory
from lxdone.conf import Options
from onedriver.errors import BadInput, NotSupported
from onedriver.node import devices
from onedriver.pciaddress import from_opennebula
from onedriver.vm import Pci

GPU = Device("0000:17:00.0", "0000:17:00.0", Kind.GPU, "10de", "2330", "030200", "nvidia", uuid="GPU-1")
PART = dataclasses.replace(GPU, id="0000:17:00.0/gi3/ci0", kind=Kind.GPU_SLICE, slice=Slice(3, 0, "1g.10gb"),
                           uuid="MIG-2")
IB = Device("0000:5e:00.1", "0000:5e:00.1", Kind.NET, "15b3", "101c", "020700", "net", role=Role.VF,
            link_layer=LinkLayer.INFINIBAND)
ROCE = dataclasses.replace(IB, id="0000:5e:00.2", address="0000:5e:00.2", class_code="020000",
                           link_layer=LinkLayer.ETHERNET)
INVENTORY = Inventory((GPU, PART, IB, ROCE))


def pci(address: str | None, **more: object) -> Pci:
    return Pci(0, address and from_opennebula(address), None, None, None)._replace(**more)


class RequestsTest(testtools.TestCase):
    def requests(self, *pcis: Pci, options: Options | None = None) -> tuple[Request, ...]:
        return devices.requests(pcis, INVENTORY, options or Options())

    def test_a_gpu_brings_the_libraries_the_administrator_chose(self) -> None:
        found = self.requests(pci("0000:17:00:0", vendor="10de", device="2330", class_code="0302", uuid="GPU-1"),
                              options=Options(gpu_capabilities=("compute",)))
        self.assertEqual((Request(GPU.id, GrantOptions(gpu_capabilities=frozenset({"compute"}))),), found)

    def test_a_slice_by_its_own_product_number(self) -> None:
        (found,) = self.requests(pci("0000:17:00:0:mig3", device="f10a", uuid="mig-2"))
        self.assertEqual(PART.id, found.address)

    def test_interfaces_keep_their_names(self) -> None:
        found = self.requests(pci("0000:5e:00:1", id=4, node_guid="1:1", port_guid="2:2"),
                              pci("0000:5e:00:2", nic_id=3),
                              options=Options(memlock="1024", management_nodes=True))
        self.assertEqual((GrantOptions(netdev_name="ibp4", memlock="1024", management_nodes=True, node_guid="1:1",
                                       port_guid="2:2"),
                          GrantOptions(netdev_name="eth3", memlock="1024", management_nodes=True)),
                         tuple(request.options for request in found))

    def test_a_virtual_function_that_is_a_nic_is_held_to_its_mac_and_vlan(self) -> None:
        nic = {"nic_id": 3, "mac": "02:00:00:00:00:07"}
        for more, expected in (({}, (0, None, None)), ({"vlan_id": 7}, (7, None, None)),
                               ({"spoof_check": True, "trust": False}, (0, True, False))):
            (found,) = self.requests(pci("0000:5e:00:2", **nic, **more))
            self.assertEqual((nic["mac"], *expected), (found.options.mac, found.options.vlan, found.options.spoof_check,
                                                       found.options.trust))
        # InfiniBand's have neither, and one that is no NIC is free.
        for free in (pci("0000:5e:00:1", **nic), pci("0000:5e:00:2")):
            (found,) = self.requests(free)
            self.assertIsNone(found.options.mac)

    def test_a_rate_in_the_units_of_cards(self) -> None:
        for sent, expected in ((None, None), (125, 1), (12_600, 100)):
            (found,) = self.requests(pci("0000:5e:00:2", sent=sent))
            self.assertEqual(expected, found.options.max_tx_rate)
        self.assertIn("125 KB/s", str(self.assertRaises(NotSupported, self.requests, pci("0000:5e:00:2", sent=124))))
        self.requests(pci("0000:17:00:0", sent=1))  # the network of a GPU is a label

    def test_what_is_not_the_device_that_was_asked_for_is_refused(self) -> None:
        for wrong, error in ((pci(None), BadInput), (pci("0000:99:00:0"), DeviceNotFound),
                             (pci("0000:17:00:0", device="20b0"), BadInput),
                             (pci("0000:17:00:0", vendor="1002"), BadInput),
                             (pci("0000:17:00:0", class_code="0207"), BadInput),
                             (pci("0000:17:00:0", uuid="GPU-9"), BadInput),
                             (pci("0000:17:00:0:mig3", device="2330"), BadInput),
                             (pci("0000:5e:00:1", vlan_id=7, mac="02:00:00:00:00:07"), NotSupported),
                             (pci("0000:5e:00:2", vlan_id=7), NotSupported),
                             (pci("0000:5e:00:2", trust=True), NotSupported)):
            self.assertRaises(error, self.requests, wrong)
