# SPDX-License-Identifier: Apache-2.0
"""A function with several ports is given and cleaned as one: all its interfaces, or none."""

import shutil

import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.netfunction import NetFunction
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, LinkLayer
from containerhost.engines.docker.config import part_record
from containerhost.engines.lxd.config import devices_of_grant
from containerhost.engines.verify import missing
from containerhost.errors import HostActionFailed, SpecError
from containerhost.inventory.scan import HostView, scan
from containerhost.privileged import Inside
from containerhost.vendors import make_grant
from tests.unit.containerhost.allocation.allocatorcase import Willing, consumer
from tests.unit.containerhost.hosts import Broken

CARD, VF = "0000:5e:00.0", "0000:5e:00.1"


class Renaming(Willing):
    """Obeys; the interfaces have other names after the driver was bound anew, as the kernel gives them."""

    def __init__(self, tree: Broken) -> None:
        self.tree = tree
        self.downed: list[str] = []

    def unbind(self, address, driver):
        pass

    def reset(self, address):
        return True

    def bind(self, address, driver):
        for number, interface in enumerate(sorted((self.tree.function(address) / "net").iterdir())):
            interface.rename(interface.with_name(f"dev{number}"))

    def rename_netdev(self, name, new):
        interface = self.tree.function(VF) / "net" / name
        interface.rename(interface.with_name(new))

    def link_down_and_flush(self, name):
        self.downed.append(name)


class PortsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("cards"))
        self.interfaces = self.tree.function(VF) / "net"
        shutil.copytree(self.interfaces / "ibs1v0", self.interfaces / "ibs1v0d1", symlinks=True)
        (self.interfaces / "ibs1v0d1/dev_port").write_text("1\n")
        self.privileged = Renaming(self.tree)
        self.store = AllocationStore(self.tree.path("/records"))
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.privileged,
                                         host=self.tree.host)

    def device(self) -> Device:
        return scan(self.tree.host).get(VF)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.interfaces.iterdir())

    def test_grant_has_all_interfaces(self):
        for options, expected in (
            (GrantOptions(), ["ibs1v0", "ibs1v0d1"]), (GrantOptions(netdev_name="ib0"), ["ib0", "ib0d1"])):
            netdevs = make_grant(self.device(), options).netdevs
            self.assertEqual((["ibs1v0", "ibs1v0d1"], expected, {LinkLayer.INFINIBAND}), (
                [netdev.host_name for netdev in netdevs], [netdev.name for netdev in netdevs],
                {netdev.link_layer for netdev in netdevs}))

    def test_engines_get_all_interfaces(self):
        grant = make_grant(self.device(), GrantOptions(netdev_name="ib0"))
        nics = {name: device for name, device in devices_of_grant(grant, ()).items() if device["type"] == "nic"}
        self.assertEqual({"net-0000-5e-00-1": ("ibs1v0", "ib0"), "net-0000-5e-00-1-d1": ("ibs1v0d1", "ib0d1")},
                         {name: (device["parent"], device["name"]) for name, device in nics.items()})
        self.assertEqual({("ibs1v0", "ib0"), ("ibs1v0d1", "ib0d1")},
                         {(netdev.host_name, netdev.name) for netdev in part_record(grant).netdevs})

    def test_half_a_function_is_missing(self):
        grant = make_grant(self.device(), GrantOptions(netdev_name="ib0"))
        seen = Inside({node.path: (node.major, node.minor) for node in grant.nodes}, ("lo", "ib0"), grant.limits)
        self.assertEqual([f"{VF}: interface ib0d1 is missing"], list(missing(seen, [grant])))

    def test_settings_of_one_port_are_refused_before_anything_changes(self):
        for options in (GrantOptions(mac="02:00:00:00:00:01"), GrantOptions(node_guid="0200:0000:0000:0001")):
            error = self.assertRaises(SpecError, self.allocator.acquire, [Request(VF, options)], consumer("c1"))
            self.assertIn("has 2 ports (ibs1v0, ibs1v0d1)", str(error))
        self.assertEqual({}, self.store.records())

    def test_names_of_two_functions_that_meet_are_refused(self):
        requests = [Request(VF, GrantOptions(netdev_name="ib0")),
                    Request("0000:5e:00.2", GrantOptions(netdev_name="ib0d1"))]
        self.assertRaises(SpecError, self.allocator.acquire, requests, consumer("c1"))

    def test_release_restores_all_interfaces(self):
        self.allocator.acquire([Request(VF)], consumer("c1"))
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.assertEqual((["ibs1v0", "ibs1v0d1"], ["ibs1v0", "ibs1v0d1"]), (self.names(), self.privileged.downed))

    def test_consumer_that_starts_again_gets_all_interfaces(self):
        self.allocator.acquire([Request(VF)], consumer("c1"))
        for interface in list(self.interfaces.iterdir()):
            shutil.rmtree(interface)
        (grant,) = self.allocator.grants([Request(VF)], consumer("c1"))
        self.assertEqual(["ibs1v0", "ibs1v0d1"], [netdev.host_name for netdev in grant.netdevs])

    def test_one_port_with_a_link_is_enough(self) -> None:
        second = []
        for address in (VF, CARD):
            ports = next((self.tree.function(address) / "infiniband").iterdir()) / "ports"
            shutil.copytree(ports / "1", ports / "2", symlinks=True)
            (ports / "1/phys_state").write_text("2: Polling\n")
            (ports / "1/state").write_text("1: DOWN\n")
            second.append(ports / "2/phys_state")
        self.assertEqual(((), "active"), (self.device().health, self.device().rdma.port_state))
        for state in second:
            state.write_text("2: Polling\n")
        self.assertIn("has no link to its switch (phys_state polling)", self.device().health[0])

    def test_waits_for_all_interfaces(self):
        function = NetFunction(self.device(), ("ibs1",), self.privileged, self.tree.host)
        self.assertEqual(("ibs1v0", "ibs1v0d1"), function.await_netdevs(2, 0.1))
        shutil.rmtree(self.interfaces / "ibs1v0d1")
        error = self.assertRaises(HostActionFailed, function.await_netdevs, 2, 0.1)
        self.assertIn("1 of 2 interfaces", str(error))
