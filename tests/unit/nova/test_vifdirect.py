# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import nova.conf
import testtools
from nova import objects

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.devices.grants import GrantOptions
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import HostView
from nova_lxd_ext import conf
from nova_lxd_ext.hardware import devices
from nova_lxd_ext.network import vifdirect
from nova_lxd_ext.network.vifdirect import DirectPorts
from tests.unit.nova import fakes, ports, records
from tests.unit.nova.hosts import FakeHost
from tests.unit.nova.ports import FIRST, MAC

conf.register()
VF = "0000:5e:00.1"


def with_port(address: str = VF) -> objects.Instance:
    """A server with a GPU of its flavor and a function that nova claimed for a port."""
    server = records.instance(("gpu", fakes.GPU_0), ("port", address))
    server.pci_requests.requests[1].alias_name = None
    server.pci_requests.requests[1].requester_id = FIRST
    return server


class OptionsTest(testtools.TestCase):
    def test_what_a_port_decides(self) -> None:
        table = (
            (ports.direct(), GrantOptions(netdev_name="eth0", memlock="1", mac=MAC, vlan=100)),
            (ports.direct(details={}), GrantOptions(netdev_name="eth0", memlock="1", mac=MAC)),
            (ports.direct(type="hostdev_physical", vnic_type="direct-physical"),
             GrantOptions(netdev_name="eth0", memlock="1")),
            (ports.direct(type="ib_hostdev"), GrantOptions(netdev_name="eth0", memlock="1",
                                                           node_guid="fa16:3e00:004c:2c30",
                                                           port_guid="fa16:3e00:004c:2c30")))
        for port, expected in table:
            with self.subTest(port["type"]):
                self.assertEqual(expected, vifdirect.options(port, "eth0", "1", False))


class DirectPortsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        host = self.useFixture(FakeHost("small")).host
        store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path) / "owners")
        allocator = DeviceAllocator(store, lambda: HostView(host), fakes.NoPrivileges(), host=host)
        self.direct = DirectPorts(nova.conf.CONF, allocator, lambda: records.NODE)

    def test_only_a_function_that_nova_claimed(self) -> None:
        for address in ("0000:5e:00.2", ""):
            error = self.assertRaises(DeviceNotFound, self.direct.attach_all, with_port(),
                                      [ports.direct(address=address)], {FIRST: "eth0"}, self.direct.view())
            self.assertIn("has not claimed", str(error))

    def test_no_ports_take_nothing(self) -> None:
        self.assertEqual({}, self.direct.attach_all(records.instance(), [], {}, self.direct.view()))

    def test_what_the_server_does_not_have(self) -> None:
        self.assertEqual((None, ()), self.direct.held(with_port(), ports.direct(), self.direct.view()))
        self.direct.release(with_port(), ports.direct(), None, self.direct.view())

    def test_a_flavors_devices_are_without_the_ports(self) -> None:
        self.assertEqual((fakes.GPU_0,), devices.claimed(with_port(), records.NODE))
