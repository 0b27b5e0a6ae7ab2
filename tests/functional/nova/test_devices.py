"""Devices by flavor through nova's API: exactly those, on the right NUMA node, and given back clean."""

import threading
from typing import Any

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from nova import objects
from nova.tests.functional.api.client import OpenStackApiException
from oslo_utils import uuidutils

from containerhost import errors, topology
from containerhost.devices.model import Device, Kind
from containerhost.devices.scan import scan
from containerhost.engines import Status
from containerhost.owners import Owner, Owners
from containerhost.spec import ContainerSpec, Cpu, Memory, RootDisk
from nova_lxd_ext import devices
from tests.fakehost.control import FakeHostControl
from tests.functional.lxd import POOL
from tests.functional.nova.base import GPU_ALIAS, VF_ALIAS
from tests.unit.nova import records

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
        # What is not the container's cannot even be made in it.
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
        for act in (lambda: self._reboot_server(server, hard=True), lambda: self.stop_and_start(server),
                    lambda: self._reboot_server(server)):
            self.notifier.reset()
            act()
            self.assertEqual(held, self.held())
            self.check_inside_again(server)
        self._delete_server(server)
        self.assert_nothing_left()

    def stop_and_start(self, server: Any) -> None:
        self._stop_server(server)
        self._start_server(server)

    def check_inside_again(self, server: Any) -> None:
        self.assertEqual(Status.RUNNING, self.container(server).status)
        self.assertIn("ib0", self.inside(server, "ls", "/sys/class/net").output.split())
        self.assertEqual(0, self.inside(server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)

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


class FlavorWithPlacementTest(FlavorTest):
    pci_in_placement = True

    def test_placement_counts_devices(self) -> None:
        server = self.server(self.flavor(**BOTH))
        used = [name for allocation in self._get_allocations_by_server_uuid(server["id"]).values()
                for name in allocation["resources"] if name.startswith("CUSTOM_PCI_")]
        self.assertEqual(2, len(used))


class TroubleTest(DeviceServers):
    """Nova's claim says yes, the host says no: the server fails with the reason, and nothing is changed."""

    def refused(self, alias: str) -> str:
        server = self.server(self.flavor(**self.only(alias)), expected="ERROR")
        (reason,) = self.reasons(server)
        self._delete_server(server)
        self.assertEqual([], [state.name for state in self.lxd.engine.containers() if "nova.uuid" in state.labels])
        return reason

    def each(self, alias: str) -> list[Device]:
        """All devices of an alias, so that whichever nova claims is one of them."""
        kinds = {GPU_ALIAS: lambda device: device.kind is Kind.GPU, VF_ALIAS: self._is_ib_vf}
        return [device for device in self.devices_before if kinds[alias](device)]

    def test_what_is_wrong_with_a_device_is_said(self) -> None:
        control = self.control
        table = [
            ("vanished", GPU_ALIAS, control.remove, control.restore, "has no device"),
            ("fallen off the bus", GPU_ALIAS, control.set_fallen, lambda address: control.set_fallen(address, False),
             "not healthy"),
            ("no nodes", GPU_ALIAS, lambda address: control.set_nodes(address, False),
             lambda address: control.set_nodes(address, True), "not healthy"),
            ("no driver", VF_ALIAS, control.unbind, control.bind, "driver"),
            ("interface elsewhere", VF_ALIAS, control.move_abroad, control.bring_home, "another network namespace"),
        ]
        for name, alias, harm, mend, words in table:
            with self.subTest(name):
                harmed = [device.address for device in self.each(alias)]
                for address in harmed:
                    harm(address)
                try:
                    self.assertIn(words, self.refused(alias))
                finally:
                    for address in harmed:
                        mend(address)
        self.assert_nothing_left()

    def test_a_device_another_container_uses_is_refused(self) -> None:
        self.lxd.engine.create(ContainerSpec("mine", self.lxd.imported(), Cpu(1), Memory(64 * 2**20), RootDisk(POOL)))
        client = self.lxd.engine.client
        client.patch_instance("mine", {"devices": {
            f"g{place}": {"type": "gpu", "gputype": "physical", "pci": gpu.address}
            for place, gpu in enumerate(self.each(GPU_ALIAS))}})
        self.assertIn("mine", self.refused(GPU_ALIAS))
        self.assertEqual({}, self.held())

    def test_a_device_another_driver_holds_is_refused(self) -> None:
        owners = Owners(self.state / "owners")
        owners.claim(self.each(GPU_ALIAS), Owner("lxdone", "lxd", "one-7", "7"), lambda device: ())
        self.assertIn("one-7", self.refused(GPU_ALIAS))

    def test_boots_race_for_one_device(self) -> None:
        """Nova's claim keeps them apart; the host must when nova cannot (two clouds, an old claim)."""
        lifecycle = self.driver._backend.lifecycle
        image = objects.ImageMeta.from_dict(self.glance.show(None, self.image()))
        gpu = self.each(GPU_ALIAS)[0].address
        racers = [records.instance(("gpu", gpu), id=number, uuid=uuidutils.generate_uuid())
                  for number in range(100, 104)]
        outcome: dict[str, Exception | None] = {}

        def race(racer: objects.Instance) -> None:
            try:
                outcome[racer.uuid] = lifecycle.spawn(None, racer, image, (), None, None, None, True)
            except errors.DeviceHeld as error:
                outcome[racer.uuid] = error
        threads = [threading.Thread(target=race, args=(racer,)) for racer in racers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = (uuid for uuid, error in outcome.items() if error is None)
        self.assertEqual(3, sum(isinstance(error, errors.DeviceHeld) for error in outcome.values()))
        self.assertEqual({gpu: winner}, self.held())
        self.assert_nothing_left([{"id": winner}])
        lifecycle.remove(next(racer for racer in racers if racer.uuid == winner))
        self.assert_nothing_left()

    def test_a_device_that_breaks_in_use_is_not_used_again(self) -> None:
        server = self.server(self.flavor(**self.only(GPU_ALIAS)))
        gpu = self.devices(server)[Kind.GPU]
        self.control.set_fallen(gpu.address)
        self._delete_server(server)
        self._run_periodics()
        (record,) = Owners(self.state / "owners").records().values()
        self.assertIn("off the bus", record.blocked)
        reported = self.driver.get_available_resource(base.HOST)["pci_passthrough_devices"]
        self.assertNotIn(gpu.address, reported)
        self.control.set_fallen(gpu.address, False)
        self.restart_compute_service(self.computes[base.HOST])
        self.assert_nothing_left()
