# SPDX-License-Identifier: Apache-2.0
"""Give devices that are NICs the addresses of the context, from the template to the engine's record."""

from pathlib import Path

import fixtures
import testtools

import onedock.conf
from containerhost import vendors
from containerhost.devices.model import LinkLayer
from containerhost.devices.scan import scan
from containerhost.engines.docker import config
from containerhost.engines.docker.record import Netdev
from containerhost.spec import IpConfig
from containerhost.sysfs import Host
from onedock.vmm import with_addresses
from onedriver.node import devices
from onedriver.pciaddress import from_opennebula
from onedriver.vm import Pci
from tests.fakehost import description, tree
from tests.unit.onedock.machines import machine

MAC = "02:00:0a:63:00:07"  # of OpenNebula's address range; no InfiniBand function has it


class DeviceAddressesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        root = Path(self.useFixture(fixtures.TempDir()).path)
        tree.write(description.load("small"), root)
        self.inventory = scan(Host(root))
        self.function = next(device for device in self.inventory.devices
                             if device.link_layer is LinkLayer.INFINIBAND and device.vf_index is not None)

    def setup_of(self, **context: str) -> set[IpConfig | None]:
        vm = machine()._replace(context=context)
        pci = Pci(4, from_opennebula(self.function.id), None, None, None, nic_id=2, mac=MAC)
        (request,) = devices.requests([pci], self.inventory, onedock.conf.Options())
        chosen = with_addresses(vm, pci, request)
        record = config.part_record(vendors.of(self.function).grant(self.function, chosen.options))
        self.assertEqual({Netdev(self.function.netdev or "", "ib2")}, record.netdevs)
        return {netdev.setup for netdev in record.netdevs}

    def test_infiniband_function_gets_the_address_of_its_nic(self) -> None:
        self.assertEqual({IpConfig(("10.9.0.7/16",))},
                         self.setup_of(PCI4_MAC=MAC, PCI4_IP="10.9.0.7", PCI4_MASK="255.255.0.0"))

    def test_device_that_the_context_does_not_know_is_left_to_the_container(self) -> None:
        self.assertEqual({None}, self.setup_of(ETH0_MAC="02:00:0a:63:00:01", ETH0_IP="10.9.0.1"))
