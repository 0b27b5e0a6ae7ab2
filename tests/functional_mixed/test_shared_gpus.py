# SPDX-License-Identifier: Apache-2.0
"""A GPU that several containers have at a time, under every driver and engine."""

from tests.functional.nova.test_live_resize import LiveServers  # isort: skip (decides how nova runs)

from typing import Any

import testtools

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from nova_lxd_ext.hardware.sliceproviders import provider_name, provider_uuid
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.functional.containerhost import test_lxd_devices as devices
from tests.functional.nova.base import HOST
from tests.functional_docker.base import DockerDeviceCase
from tests.functional_mixed.sharing import SharingFile
from tests.functional_one.test_actions import ActionsCase
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase

GPU = "0000:3b:00.0"
TWO = f"{GPU}: {{containers: 2}}\n"
FIRST, SECOND = f"{GPU}/share0", f"{GPU}/share1"
PLACES = "CUSTOM_SHARED_GPU_NVIDIA_A100_SXM4_40GB"
LISTED = "ls -d /dev/nvidia[0-9]* 2>/dev/null || true"


class SharedCase(testtools.TestCase):
    def setUp(self) -> None:
        self.file = self.useFixture(SharingFile(TWO))
        super().setUp()


class EngineTest(SharedCase, devices.DeviceTestCase):
    def test_two_have_it_and_a_third_has_not(self) -> None:
        for name, place in (("c1", FIRST), ("c2", SECOND)):
            self.engine.verify(name, self.acquired(name, (Request(place),)))
        for taken in (FIRST, SECOND, GPU):
            self.assertRaises(errors.DeviceHeld, self.allocator.acquire, (Request(taken),), self.consumer("c3"))
        self.assertRaises(errors.SpecError, self.allocator.acquire, (Request(SECOND),), self.consumer("c1"))
        (grant,) = self.allocator.held(self.consumer("c1"))
        self.engine.detach("c1", grant, [])
        self.assertEqual((), self.allocator.release_device(FIRST, self.consumer("c1"), self.engine.pid("c1")))
        self.engine.verify("c1", [])
        self.engine.verify("c2", self.allocator.held(self.consumer("c2")))
        self.engine.verify("c3", self.acquired("c3", (Request(FIRST),)))


class DockerTest(SharedCase, DockerDeviceCase):
    def test_two_have_it_one_of_them_later(self) -> None:
        (first,) = self.allocator.acquire([Request(FIRST)], self.consumer("c1"))
        self.engine.create(self.spec("c1", parts=(first,)))
        self.engine.create(self.spec("c2"))
        for name in ("c1", "c2"):
            self.engine.start(name)
        (second,) = self.allocator.acquire([Request(SECOND)], self.consumer("c2"))
        self.engine.attach("c2", second)
        self.engine.verify("c1", [first])
        self.engine.verify("c2", [second])
        self.engine.detach("c1", first, [])
        self.engine.verify("c1", [])
        self.engine.verify("c2", [second])


class NovaTest(SharedCase, LiveServers):
    def places(self) -> dict[str, tuple[int, int, int]]:
        """Resource class -> total, reserved and most at once, in Placement."""
        self._run_periodics()
        found = self._get_provider_inventory(provider_uuid(HOST, GPU, Kind.GPU_SHARE))
        return {name: (entry["total"], entry["reserved"], entry["max_unit"]) for name, entry in found.items()}

    def wants(self, count: int, **more: str) -> str:
        return self.flavor(memory_mb=96, **{f"resources__{PLACES}": str(count)}, **more)

    def of(self, server: Any) -> set[str]:
        return {device for device, uuid in self.held().items() if uuid == server["id"]}

    def test_so_many_servers_and_no_more(self) -> None:
        self.assertEqual({PLACES: (2, 0, 1)}, self.places())
        self.assertIn(provider_name(HOST, GPU, Kind.GPU_SHARE), {one["name"] for one in self._get_all_providers()})
        servers = [self.server(self.wants(1)) for _ in range(2)]
        self.assertEqual([{FIRST}, {SECOND}], [self.of(server) for server in servers])
        for server in servers:
            self.assertEqual("/dev/nvidia0", self.inside(server, "sh", "-c", LISTED).output.strip())
        refused = self.server(self.wants(1), expected="ERROR")
        self.assertIn("No valid host", self.fault(refused))
        for server in (refused, *servers):
            self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("one of nova's tests remains")
    def test_a_running_server_gains_and_loses_a_place(self) -> None:
        server = self.counting(self.small)
        self.resize(server, self.wants(1, lxd__live_resize="required"))
        for settle, ids, nodes in ((self.revert, set(), ""), (self._confirm_resize, {FIRST}, "/dev/nvidia0")):
            if not ids:
                self.assertEqual({FIRST}, self.of(server))
            settle(server)
            self.assertEqual(ids, self.of(server))
            self.assertEqual(nodes, self.inside(server, "sh", "-c", LISTED).output.strip())
            self.assert_went_on(server)
            if not ids:
                self.resize(server, self.wants(1, lxd__live_resize="required"))
        self.delete(server)

    @levels.exhaustive("so many servers and no more remain; units have the change")
    def test_a_gpu_that_is_shared_no_more_leaves_placement_with_its_last_server(self) -> None:
        server = self.server(self.wants(1))
        self.file.write("")
        self.assertEqual({PLACES: (2, 2, 1)}, self.places())
        self.file.write(TWO)
        self._delete_server(server)
        self.file.write("")
        self._run_periodics()
        self.assertNotIn(provider_name(HOST, GPU, Kind.GPU_SHARE), {one["name"] for one in self._get_all_providers()})
        self.file.write(TWO)
        self.assert_nothing_left()


class PlaceContract:
    """Under either of OpenNebula's drivers."""

    def test_a_place_comes_and_goes_while_another_vm_has_one(self) -> None:
        first, second = (scan().get(name) for name in (FIRST, SECOND))
        for place in (first, second):
            self.assertIn(f'ADDRESS="{from_device_id(place.id).address}"', self.node.probe("host/system").out)
        self.assertNotIn('ADDRESS="0000:3b:00:0"', self.node.probe("host/system").out)
        other = self.deployed(Machine(2, devices=(first,)))
        machine = self.deployed()
        more = machine.changed(devices=(second,), attach="pci")
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        for one in (machine, other):
            self.assertEqual("/dev/nvidia0", self.inside(one, "sh", "-c", LISTED).strip())
        taken = machine.changed(devices=(first,), attach="pci")
        self.refused("two shares of GPU", "attach_nic", taken, machine.mac(9), "-", "-", "dummy", "one-1-9")
        self.ok("detach_nic", more, machine.mac(9))
        self.refused("/one-2 (", "attach_nic", taken, machine.mac(9), "-", "-", "dummy", "one-1-9")
        self.assertEqual("", self.inside(machine, "sh", "-c", LISTED).strip())
        self.assertEqual("/dev/nvidia0", self.inside(other, "sh", "-c", LISTED).strip())
        self.assertEqual({FIRST}, set(AllocationStore(self.node.owners).records()))


class LxdoneTest(PlaceContract, SharedCase, ActionsCase):
    pass


@levels.exhaustive("lxdone has it by the same actions", tests=("test_a_place_comes_and_goes_while_another_vm_has_one",))
class OnedockTest(PlaceContract, SharedCase, OnedockCase):
    inline = False
