# SPDX-License-Identifier: Apache-2.0
"""Network functions that the host uses: an interface of theirs, or one stacked on it, is in use."""

import shutil
from pathlib import Path
from unittest import mock

import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.devices.netdev import Netdevs
from containerhost.errors import DeviceHeld
from containerhost.inventory.freedevices import candidates
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.network import stacked
from containerhost.linux.sysfs import Host
from nova_lxd_ext.hardware import pci
from nova_lxd_ext.hardware.pci import Reason
from onedriver.node import probes
from onedriver.node.pcifilter import PciFilter
from tests.unit.containerhost.allocation.allocatorcase import NoHardware, consumer
from tests.unit.containerhost.hosts import Broken

VF, PF = "0000:5e:00.1", "0000:d8:00.1"
ROUTES = "Iface\tDestination\tGateway\n"
ETHERNET, TUNNEL, INFINIBAND = "1", "768", "32"


class HostUse(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("cards"))

    def device(self, name: str) -> Device:
        return scan(self.tree.host).get(name)

    def interfaces(self, address: str) -> Path:
        return self.tree.function(address) / "net"

    def add_port(self, address: str, name: str, port: int) -> Path:
        """Give a function one more interface, as drivers do that have a function for several ports."""
        first = next(self.interfaces(address).iterdir())
        added = first.with_name(name)
        shutil.copytree(first, added, symlinks=True)
        for attribute, value in (("dev_port", str(port)), ("ifindex", str(500 + port)), ("iflink", str(500 + port))):
            (added / attribute).write_text(f"{value}\n")
        self.tree.path(f"/sys/class/net/{name}").symlink_to(added)
        return added

    def add_above(self, name: str, lower: str, kind: str, *, linked: bool) -> None:
        """Add an interface whose iflink is that of ``lower``.

        :param linked: with the link to it that the kernel makes for all stacked interfaces but tunnels
        """
        index = self.tree.path(f"/sys/class/net/{lower}/ifindex").read_text()
        for attribute, value in (("iflink", index), ("ifindex", "900\n"), ("type", f"{kind}\n")):
            self.tree.write(f"/sys/class/net/{name}/{attribute}", value)
        if linked:
            self.tree.path(f"/sys/class/net/{name}/lower_{lower}").symlink_to("anywhere")


class PortsTest(HostUse):
    def test_route_on_second_port_makes_the_card_the_hosts(self):
        (self.interfaces(PF) / "ens4f1np1/flags").write_text("0x1002\n")
        self.add_port(PF, "ens4f9d1", 1)
        self.tree.write("/proc/net/route", ROUTES + "ens4f9d1\t00000000\t010200C0\n")
        self.assertEqual(("ens4f9d1 carries the default route",), self.device(PF).host_use)

    def test_second_port_that_is_up_makes_the_card_the_hosts(self):
        (self.interfaces(PF) / "ens4f1np1/flags").write_text("0x1002\n")
        (self.add_port(PF, "ens4f9d1", 1) / "flags").write_text("0x1003\n")
        self.assertEqual(("ens4f9d1 is up",), self.device(PF).host_use)

    def test_interfaces_are_in_the_order_of_their_ports(self):
        self.add_port(VF, "a0", 1)
        self.assertEqual(("ibs1v0", ("ibs1v0", "a0")), (self.device(VF).netdev, self.device(VF).netdevs))

    def test_representor_of_a_subfunction_makes_the_card_the_hosts(self):
        (self.interfaces(PF) / "ens4f1np1/flags").write_text("0x1002\n")
        (self.interfaces(PF) / "ens4f1np1/phys_port_name").write_text("p1\n")
        (self.add_port(PF, "eth7", 0) / "phys_port_name").write_text("pf1sf88\n")
        device = self.device(PF)
        self.assertEqual((("ens4f1np1",), ("eth7 represents a subfunction of it",)), (device.netdevs, device.host_use))


class StackedTest(HostUse):
    def test_interface_above_makes_the_function_the_hosts(self):
        (self.interfaces(VF) / "ibs1v0/upper_stor.100").symlink_to("anywhere")
        self.assertEqual(("stor.100 stands on ibs1v0",), self.device(VF).host_use)

    def test_interface_above_the_second_port_makes_the_function_the_hosts(self):
        (self.add_port(VF, "ibs1v0d1", 1) / "upper_vlan7").symlink_to("anywhere")
        self.assertEqual(("vlan7 stands on ibs1v0d1",), self.device(VF).host_use)

    def test_master_is_named_once(self):
        for name in ("master", "upper_bond0"):
            (self.interfaces(VF) / f"ibs1v0/{name}").symlink_to("../../bond0")
        self.assertEqual(("ibs1v0 is a port of bond0",), self.device(VF).host_use)

    def test_interface_that_names_it_as_its_lower_makes_the_function_the_hosts(self):
        self.add_above("stor.100", "ibs1v0", ETHERNET, linked=True)
        self.assertEqual(("stor.100 stands on ibs1v0",), self.device(VF).host_use)

    def test_tunnel_bound_to_it_makes_the_function_the_hosts(self):
        self.add_above("tun9", "ibs1v0", TUNNEL, linked=False)
        self.assertEqual(("tun9 stands on ibs1v0",), self.device(VF).host_use)

    def test_veth_with_a_peer_of_that_number_elsewhere_is_nothing(self):
        self.add_above("veth1", "ibs1v0", ETHERNET, linked=False)
        self.assertEqual((), self.device(VF).host_use)

    def test_partition_of_infiniband_is_above_the_function_and_not_its_interface(self):
        # The kernel shows an IPoIB child beside its parent, in the directory of the function.
        index = (self.interfaces(VF) / "ibs1v0/ifindex").read_text()
        child = self.add_port(VF, "a0.8001", 0)
        for attribute, value in (("iflink", index), ("ifindex", "901\n"), ("type", f"{INFINIBAND}\n")):
            (child / attribute).write_text(value)
        device = self.device(VF)
        self.assertEqual((("ibs1v0",), ("a0.8001 stands on ibs1v0",)), (device.netdevs, device.host_use))


class OneAnswerTest(HostUse):
    def test_nothing_gives_or_cleans_what_the_host_uses(self) -> None:
        (self.interfaces(VF) / "ibs1v0/upper_stor.100").symlink_to("anywhere")
        store = AllocationStore(self.tree.path("/records"))
        allocator = DeviceAllocator(store, lambda: HostView(self.tree.host), NoHardware(), host=self.tree.host)
        for act in (lambda: allocator.acquire([Request(VF)], consumer("c1")), lambda: allocator.repair.clean(VF)):
            self.assertIn("stor.100 stands on ibs1v0", str(self.assertRaises(DeviceHeld, act)))
        self.assertEqual({}, store.records())
        inventory = scan(self.tree.host)
        self.assertEqual(["0000:5e:00.2"], [one.id for one in candidates(inventory, self.tree.host, {})])
        self.assertEqual({Reason.ELSEWHERE}, {reason for device, _, reason in pci.reserved(inventory, {})
                                              if device.id == VF})
        self.assertNotIn("5e:00:1", "".join(probes.pci(inventory, (), (), PciFilter())))


class OtherNamespacesTest(HostUse):
    def test_interface_of_another_namespace_makes_the_function_the_hosts(self) -> None:
        index = int((self.interfaces(VF) / "ibs1v0/ifindex").read_text())
        live = Host(self.tree.root)
        live.live = True
        said = "eth0 in network namespace /run/docker/netns/1"
        used = (f"{said} stands on ibs1v0",)
        for user, helper, expected in ((0, None, used), (1000, None, ()), (1000, lambda: {index: (said,)}, used)):
            live.stacked = helper
            with mock.patch.object(stacked, "elsewhere", return_value={index: (said,)}), \
                    mock.patch("os.geteuid", return_value=user):
                found = Netdevs(live).of(str(self.tree.function(VF)).removeprefix(str(self.tree.root)))
                self.assertEqual(expected, found.uses())


class Ipv6RoutesTest(HostUse):
    ROUTE = "{} {:02x} " + "0" * 32 + " 00 fe80{:028d} 00000400 00000001 00000000 {:08x} ibs1v0\n"

    def host_use(self, destination: str, length: int, flags: int) -> tuple[str, ...]:
        self.tree.write("/proc/net/ipv6_route", self.ROUTE.format(destination.ljust(32, "0"), length, 1, flags))
        return self.device(VF).host_use

    def test_routes_without_an_address_make_the_function_the_hosts(self):
        gateway = 0x3
        self.assertEqual(("ibs1v0 carries the default route",), self.host_use("", 0, gateway))
        self.assertEqual(("ibs1v0 has addresses",), self.host_use("20010db8", 64, gateway))

    def test_routes_that_every_interface_has_are_nothing(self):
        local = 0x80200001
        for destination, length, flags in (("fe80", 64, 0x1), ("ff00", 8, 0x1), ("20010db8", 128, local)):
            self.assertEqual((), self.host_use(destination, length, flags), destination)
