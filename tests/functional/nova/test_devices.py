# SPDX-License-Identifier: Apache-2.0
"""Devices by flavor through nova's API: exactly those, on the right NUMA node, and given back clean."""

from typing import Any

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from nova.tests.functional.api.client import OpenStackApiException

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Device, Kind
from containerhost.engines.contract import Status
from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from nova_lxd_ext.hardware import devices
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional.nova.base import GPU_ALIAS, VF_ALIAS

BOTH = {"pci_passthrough__alias": f"{GPU_ALIAS}:1,{VF_ALIAS}:1", "hw__numa_nodes": "1",
        "hw__pci_numa_affinity_policy": "required"}


class DeviceServers(base.LxdServers):
    def setUp(self) -> None:
        super().setUp()
        self.control = FakeHostControl.from_environment()

    def devices(self, server: Any) -> dict[Kind, Device]:
        """The server's devices as the host's records name them."""
        inventory = scan()
        found = (inventory.get(device) for device, uuid in self.held().items() if uuid == server["id"])
        return {device.kind: device for device in found}

    def only(self, alias: str) -> dict[str, str]:
        return {"pci_passthrough__alias": f"{alias}:1"}


@levels.exhaustive("servers that share the host stay; units fill it up",
                   tests=("test_two_servers_each_on_its_node_and_no_third",))
class FlavorTest(DeviceServers):
    def test_two_servers_each_on_its_node_and_no_third(self) -> None:
        servers = [self.server(self.flavor(**BOTH)) for _ in range(2)]
        nodes = {node.id: node for node in topology.read().nodes}
        held = [self.devices(server) for server in servers]
        used = [{device.numa_node for device in found.values()} for found in held]
        self.assertEqual([{0}, {1}], sorted(used, key=min))
        for server, found, (node,) in zip(servers, held, used, strict=True):
            cores = self.config(server)["config"]["limits.cpu"]
            self.assertEqual(nodes[node].cpus, self.cores(cores), f"NUMA node {node}")
            self.check_inside(server, found)
        third = self.server(self.flavor(**BOTH), expected="ERROR")
        self.assertIn("No valid host", self.fault(third))
        self.assertEqual(4, len(self.held()))
        for server in (*servers, third):
            self._delete_server(server)
        self.assert_nothing_left()

    @staticmethod
    def cores(text: str) -> set[int]:
        """LXD's ``0-1,3-3``."""
        ends = (part.split("-") for part in text.split(","))
        return {core for first, last in ends for core in range(int(first), int(last) + 1)}

    def check_inside(self, server: Any, found: dict[Kind, Device]) -> None:
        gpu, vf = found[Kind.GPU], found[Kind.NET]
        own = {node.path for device in (gpu, vf) for node in device.nodes if node.use == "own"}
        nodes = self.inside(server, "sh", "-c", "find /dev/dri /dev/infiniband /dev/nvidia* -type c").output.split()
        self.assertLessEqual(own, set(nodes))
        others = {node.path for device in self.devices_before if device.id not in (gpu.id, vf.id)
                  for node in device.nodes if node.use != "shared"}
        self.assertEqual(set(), others & set(nodes))
        self.assertEqual([], [node for node in nodes if "umad" in node or "issm" in node])
        self.assertIn("/dev/infiniband/rdma_cm", nodes)
        self.assertIn("ib0", self.inside(server, "ls", "/sys/class/net").output.split())
        # Nodes of other devices cannot even be created in it.
        stranger = next(node for device in self.devices_before if device.kind is Kind.GPU and device.id != gpu.id
                        for node in device.nodes if node.use == "own")
        made = self.inside(server, "mknod", "/root/stolen", "c", str(stranger.major), str(stranger.minor))
        self.assertNotEqual(0, made.status)

    def test_guids_are_the_servers_own_and_go_with_it(self) -> None:
        server = self.server(self.flavor(**self.only(VF_ALIAS)))
        vf = self.devices(server)[Kind.NET]
        self.assertEqual((devices.guid(f"{server['id']}/0/node"), devices.guid(f"{server['id']}/0/port")),
                         (vf.rdma.node_guid, vf.rdma.port_guid))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_devices_stay_through_every_power_action(self) -> None:
        server = self.server(self.flavor(**BOTH))
        held = self.held()
        for act in (lambda: self._reboot_server(server, hard=True), lambda: self._stop_and_start(server),
                    lambda: self._reboot_server(server)):
            self.notifier.reset()
            act()
            self.assertEqual(held, self.held())
            self.check_inside_again(server)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("servers with several devices and a rebuild with one remain")
    def test_a_rebuilt_server_keeps_its_devices(self) -> None:
        server = self.server(self.flavor(**BOTH))
        held = self.held()
        self.inside(server, "touch", "/root/old")
        self._rebuild_server(server, self.image("squashfs"))
        self.assertEqual(held, self.held())
        self.assertNotEqual(0, self.inside(server, "test", "-e", "/root/old").status)
        self.check_inside_again(server)
        self._delete_server(server)
        self.assert_nothing_left()

    def check_inside_again(self, server: Any) -> None:
        self.assertEqual(Status.RUNNING, self.container(server).status)
        self.assertIn("ib0", self.inside(server, "ls", "/sys/class/net").output.split())
        self.assertEqual(0, self.inside(server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)

    @levels.exhaustive("servers with several devices and a rebuild with one remain")
    def test_devices_in_request_order(self) -> None:
        flavor = self.flavor(pci_passthrough__alias=f"{VF_ALIAS}:2")
        server = self.server(flavor)
        self.assertLessEqual({"ib0", "ib1"}, set(self.inside(server, "ls", "/sys/class/net").output.split()))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_an_unknown_alias_is_refused_by_the_api(self) -> None:
        flavor = self.flavor(pci_passthrough__alias="no-such:1")
        body = self._build_server(image_uuid=self.image(), flavor_id=flavor, networks="none")
        error = self.assertRaises(OpenStackApiException, self.api.post_server, {"server": body})
        self.assertEqual(400, error.response.status_code)
        self.assertIn("no-such", str(error))


@levels.exhaustive("FlavorTest, with the devices in Placement, too")
class FlavorWithPlacementTest(FlavorTest):
    pci_in_placement = True


class PlacementTest(DeviceServers):
    pci_in_placement = True

    @levels.exhaustive("test_pci_health and test_placed_devices count in Placement")
    def test_placement_counts_devices(self) -> None:
        server = self.server(self.flavor(**BOTH))
        used = [name for allocation in self._get_allocations_by_server_uuid(server["id"]).values()
                for name in allocation["resources"] if name.startswith("CUSTOM_PCI_")]
        self.assertEqual(2, len(used))


class LibrariesTest(DeviceServers):
    def test_the_flavor_brings_the_drivers_libraries(self) -> None:
        for capabilities, expected in (("compute,utility", "compute,utility"), ("none", None)):
            with self.subTest(capabilities):
                server = self.server(self.flavor(**self.only(GPU_ALIAS), lxd__gpu_capabilities=capabilities))
                config = self.config(server)["config"]
                self.assertEqual(expected, config.get("nvidia.driver.capabilities"))
                self._delete_server(server)
        self.assert_nothing_left()


class TroubleTest(DeviceServers):
    """Nova's claim says yes, the host says no (more of that in test_faults)."""

    def refused(self, alias: str) -> str:
        server = self.server(self.flavor(**self.only(alias)), expected="ERROR")
        (reason,) = self.reasons(server)
        fault = self.fault(server)
        self.assertIn(fault[:200].rstrip("."), reason, "the fault says the same")
        self._delete_server(server)
        self.assertEqual((), self.lxd.engine.containers())
        return fault

    def gpus(self) -> list[Device]:
        return [device for device in self.devices_before if device.kind is Kind.GPU]

    def test_the_reason_is_kept_with_the_server(self) -> None:
        for gpu in self.gpus():
            self.control.remove(gpu.address)
        try:
            self.assertIn("this host has no device", self.refused(GPU_ALIAS))
        finally:
            for gpu in self.gpus():
                self.control.restore(gpu.address)
        self.assert_nothing_left()

    @levels.exhaustive("a device of the other kind; one of them remains")
    def test_a_device_another_driver_holds_is_refused(self) -> None:
        store = AllocationStore(self.state / "owners")
        store.claim(self.gpus(), Consumer("lxdone", "lxd", "one-7", "7"), lambda device: ())
        self.assertIn("one-7", self.refused(GPU_ALIAS))
