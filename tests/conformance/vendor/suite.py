# SPDX-License-Identifier: Apache-2.0
"""Test what every vendor plug-in must do, on an emulated host.

A plug-in passes when a test case mixes in :class:`VendorConformance` (:class:`GpuConformance` for accelerators) and
names two of its devices in an emulated host.
"""

import dataclasses
import fnmatch
import re
import sys
import threading
from collections.abc import Collection
from importlib.metadata import entry_points
from typing import Any, ClassVar
from unittest import mock

import testtools

from containerhost import privileged, vendors
from containerhost.allocation import scrub
from containerhost.devices.grants import GPU_CAPABILITIES, Grant, GrantOptions
from containerhost.devices.model import CharNode, Device, Kind, NodeUse
from containerhost.engines import verify
from containerhost.engines.docker import config as docker
from containerhost.engines.docker import held as docker_held
from containerhost.engines.docker.privileged import char_node
from containerhost.engines.lxd import config as lxd
from containerhost.engines.lxd import held as lxd_held
from containerhost.errors import HostActionFailed, ScrubFailed
from containerhost.inventory.scan import HostView, Inventory, scan
from containerhost.privileged import Inside, Privileged
from containerhost.vendors.base import Vendor
from tests.unit.containerhost.hosts import Broken

ALL_ONES = b"\xff" * 64
FOREIGN_CLASS, FOREIGN_ID = "bc05sc80i00", "v0000DEADd0000BEEF"  # a memory controller; an unassigned vendor
#: API extensions of LXD by which libraries come without CDI, and with it.
DAEMONS = (frozenset({"kernel_limits", "nvidia_runtime"}), frozenset({"kernel_limits", "nvidia_runtime", "gpu_cdi"}))


class VendorConformance(testtools.TestCase):
    """:cvar plugin: name of the plug-in
    :cvar first, second: ids of two of its devices, healthy and free, each with a node of its own
    :cvar host_name: the emulated host that has them, or the path of its description
    :cvar any_vendor: whether it describes functions of a class by any vendor
    """

    plugin: ClassVar[str]
    first: ClassVar[str]
    second: ClassVar[str]
    host_name: ClassVar[str] = "mixed"
    any_vendor: ClassVar[bool] = False

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken(self.host_name))

    @property
    def vendor(self) -> type[Vendor]:
        found = {vendor.name: vendor for vendor in vendors.load()}
        self.assertIn(self.plugin, found, "no such plug-in is installed; OutsideVendor installs a package")
        return found[self.plugin]

    def scan(self) -> Inventory:
        return scan(self.tree.host)

    def device(self, name: str | None = None) -> Device:
        return self.scan().get(name or self.first)

    def grant(self, name: str | None = None) -> Grant:
        return vendors.make_grant(self.device(name), GrantOptions())

    def own(self, name: str | None = None) -> tuple[CharNode, ...]:
        """The device's own nodes that it is granted with."""
        found = self.grant(name).own_nodes
        self.assertNotEqual((), found)
        return found

    # Discovery and description

    def test_entry_point_has_the_plugins_name(self) -> None:
        (point,) = (point for point in entry_points(group=vendors.GROUP) if point.name == self.plugin)
        self.assertIs(self.vendor, point.load())

    def test_devices_described_healthy(self) -> None:
        for name in (self.first, self.second):
            device = self.device(name)
            self.assertEqual((self.plugin, (), ()), (device.plugin, device.health, device.host_use))
        self.assertEqual(self.scan().devices, self.scan().devices)

    def test_device_read_alone_is_as_in_a_scan(self) -> None:
        view = HostView(self.tree.host)
        before = view.inventory.devices
        self.assertEqual(before, view.refresh([self.second]).devices)

    def test_devices_of_others_left_alone(self) -> None:
        everything = self.scan().devices
        others = tuple(vendor for vendor in vendors.load() if vendor.name != self.plugin)
        with mock.patch.object(vendors, "load", return_value=others):
            without = self.scan().devices
        self.assertEqual(tuple(device for device in everything if device.plugin != self.plugin), without)

    def test_unknown_class_left_alone(self) -> None:
        address = self.device().address
        self.say(address, r"bc..sc..i..", FOREIGN_CLASS)
        self.assertEqual((), self.scan().by_address(address))

    def test_unknown_vendor_left_alone(self) -> None:
        address = self.device().address
        self.say(address, r"v0000....d0000....", FOREIGN_ID)
        self.assertEqual(self.any_vendor, bool(self.scan().by_address(address)))

    def say(self, address: str, part: str, other: str) -> None:
        """Write another part into a function's modalias."""
        alias = self.tree.function(address) / "modalias"
        alias.write_text(re.sub(part, other, alias.read_text(), count=1))

    # Grant and what a container sees

    def test_grant_has_exactly_the_devices_nodes(self) -> None:
        device, grant = self.device(), self.grant()
        self.assertEqual({node for node in device.nodes if node.use is not NodeUse.MANAGEMENT}, set(grant.nodes))
        self.assertEqual(set(), set(self.own()) & set(self.grant(self.second).nodes))
        for node in device.nodes:
            self.assertTrue(any(fnmatch.fnmatchcase(node.path, f"/dev/{pattern}") for pattern in self.vendor.nodes),
                            f"{node.path} matches none of {self.vendor.nodes}")

    def test_verify_tells_missing_and_foreign_nodes(self) -> None:
        grant, (foreign, *_) = self.grant(), self.own(self.second)
        nodes = {node.path: (node.major, node.minor) for node in grant.nodes}
        netdevs = (grant.netdev.name,) if grant.netdev else ()

        def complaints(seen: dict[str, tuple[int, int]]) -> str:
            return "; ".join(verify.complaints(Inside({"/dev/null": (1, 3)} | seen, netdevs, dict(grant.limits)),
                                               [grant]))

        self.assertEqual("", complaints(nodes))
        for node in self.own():
            rest = {path: number for path, number in nodes.items() if path != node.path}
            self.assertIn(f"{node.path} is missing", complaints(rest))
        self.assertIn(f"it sees {foreign.path}", complaints(nodes | {foreign.path: (foreign.major, foreign.minor)}))

    def test_nodes_are_looked_for_and_made_where_they_are(self) -> None:
        for node in self.grant().nodes:
            directory = tuple(node.path.removeprefix("/dev/").split("/")[:-1])
            self.assertIn(directory, vendors.node_directories())
            self.assertTrue(char_node().fullmatch(node.path), node.path)

    def test_engines_bring_every_node_once(self) -> None:
        grant = self.grant()
        self.assertEqual({(node.path, node.major, node.minor) for node in grant.nodes},
                         {(node.path, node.major, node.minor) for node in docker.part_record(grant).nodes})
        for extensions in DAEMONS:
            devices = lxd.devices_of_grant(grant, extensions)
            brought = lxd.gpu_nodes(grant) if any(device["type"] == "gpu" for device in devices.values()) else ()
            listed = [device["source"] for device in devices.values() if device["type"] == "unix-char"]
            self.assertEqual(sorted(node.path for node in grant.nodes),
                             sorted([*listed, *(node.path for node in brought)]))

    # Who has it

    def test_lxd_instance_with_its_node_holds_it(self) -> None:
        for node in self.own():
            instance = {"name": "c1", "project": "default", "config": {},
                        "expanded_devices": {"n": {"type": "unix-char", "source": node.path}}}
            self.assertEqual({self.first: "c1"}, lxd_held.held([instance], self.scan().devices, "default"))

    def test_docker_container_with_its_node_holds_it(self) -> None:
        for node in self.own():
            self.assertEqual({self.first}, docker_held.held({"Devices": [{"PathOnHost": node.path}]},
                                                            self.scan().devices))

    # Health

    def test_missing_node_is_told(self) -> None:
        (node, *_) = self.own()
        self.tree.path(node.path).unlink()
        self.assertIn(node.path, "; ".join(self.device().health))
        self.assertEqual((), self.device(self.second).health)

    def test_fallen_card_is_sick(self) -> None:
        self.tree.function(self.device().address).joinpath("config").write_bytes(ALL_ONES)
        self.assertIn("fallen off the bus", "; ".join(self.device().health))

    def test_reserving_driver_is_told(self) -> None:
        address = self.device().address
        self.tree.rebind(address, "vfio-pci")
        self.assertIn("vfio-pci", "; ".join(self.device(address).health))


class Resets(Privileged):
    """:ivar made: plug-in and address of each GPU that was to be reset"""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def users(self, nodes: Any) -> tuple[str, ...]:
        return ()

    def mark_reset(self, address: str, counters: Any) -> None:
        raise AssertionError("the device was well")

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
        self.made.append((vendor, address))
        return super().reset_gpu(vendor, address)


class GpuConformance(VendorConformance):
    """:cvar resets: whether the vendor can reset a GPU under its driver
    :cvar resetting: an attribute in the GPU's directory, its value while a reset goes on, and after it. None where the
        kernel or the vendor's tool returns when the reset is complete
    """

    resets: ClassVar[bool] = False
    resetting: ClassVar[tuple[str, str, str] | None] = None

    def release(self, device: Device) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
        """Clean a released GPU; what was done, in words, and the resets that were asked for."""
        privileged, function = Resets(), mock.Mock(spec=[])  # a GPU has no function of a network to clean
        done = scrub.scrub(device, {}, function, privileged, self.tree.host)
        return done, privileged.made

    def test_reset_at_release(self) -> None:
        with mock.patch.object(self.vendor, "reset", side_effect=lambda address: self.resets) as reset:
            done, made = self.release(self.device())
        self.assertEqual([(self.plugin, self.first)], made)
        self.assertEqual(1, reset.call_count)
        self.assertEqual("it was reset" if self.resets else "it offers no reset", done[-1])

    def test_reset_is_the_plugins_own_if_it_has_one(self) -> None:
        self.assertEqual(self.resets, self.vendor.reset.__func__ is not Vendor.reset.__func__)

    def test_reset_returns_when_the_gpu_can_be_used_again(self) -> None:
        """What follows reads its health, and gives it to the next container."""
        if self.resetting is None:
            return
        name, goes_on, done = self.resetting
        attribute = self.tree.function(self.first) / name
        finish = threading.Timer(0.2, attribute.write_text, [f"{done}\n"])

        def begin(*_: object) -> bool:
            attribute.unlink(missing_ok=True)
            attribute.write_text(f"{goes_on}\n")
            finish.start()
            return True

        self.addCleanup(finish.join)
        with mock.patch.object(Privileged, "reset", begin), mock.patch.object(privileged, "write", begin), \
                mock.patch.object(sys.modules[self.vendor.__module__], "Host", lambda: self.tree.host):
            self.assertTrue(self.vendor.reset(self.first))
        self.assertEqual(done, attribute.read_text().strip())

    def test_failed_reset_blocks(self) -> None:
        refused = HostActionFailed("it does not answer")
        with mock.patch.object(self.vendor, "reset", side_effect=refused):
            error = self.assertRaises(ScrubFailed, self.release, self.device())
        self.assertIn("it does not answer", str(error))

    def test_share_is_not_reset(self) -> None:
        share = dataclasses.replace(self.device(), id=f"{self.first}/share0", kind=Kind.GPU_SHARE)
        self.assertEqual([], self.release(share)[1])

    def test_libraries_come_by_one_way(self) -> None:
        """By CDI, by LXD's keys or by a hook; of a vendor without libraries none are asked for."""
        device = self.device()
        grant = vendors.make_grant(device, GrantOptions(gpu_capabilities=frozenset(GPU_CAPABILITIES)))
        runtime, cdi = (lxd.start_config([grant], extensions) for extensions in DAEMONS)
        self.assertEqual(bool(grant.gpu and grant.gpu.libraries), bool(runtime))
        self.assertTrue(not cdi or not self.vendor.cdi_name(device))
        self.assertEqual({}, lxd.start_config([self.grant()], DAEMONS[0]))

    def test_gpu_request_to_docker(self) -> None:
        found = docker_held.held({"DeviceRequests": [{"Count": -1}]}, self.scan().devices)
        self.assertEqual(self.vendor.by_gpu_request, self.first in found)

    def test_environment_tells_only_its_own_devices(self) -> None:
        others = [device for device in self.scan().devices if device.plugin != self.plugin]
        self.assertEqual(self.vendor.environment([]), self.vendor.environment(others))
