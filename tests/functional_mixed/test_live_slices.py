# SPDX-License-Identifier: Apache-2.0
"""Slices of a GPU come to a running container and go again, under every driver; its processes go on."""

from tests.functional.nova.test_live_resize import LiveServers  # isort: skip (decides how nova runs)

from typing import Any, ClassVar

from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import scan
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.functional.containerhost import test_lxd_devices as devices
from tests.functional.nvml import Nvml
from tests.functional_mixed.test_slice_flavors import FIRST, GPU, LARGE, PROFILES, SMALL
from tests.functional_one.test_actions import POWEROFF, RESUME, ActionsCase
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase

THIRD, FOURTH = f"{GPU}/gi5/ci0", f"{GPU}/gi5/ci1"
LISTED = "ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/* 2>/dev/null || true"


def own_nodes(*ids: str) -> set[str]:
    """The nodes by which slices are told apart, and their GPU's."""
    inventory = scan()
    return {node.path for name in ids for node in inventory.get(name).nodes
            if node.path.startswith(("/dev/nvidia-caps/", "/dev/nvidia1"))}


class EngineTest(devices.DeviceTestCase):
    def test_two_of_one_gpu_come_and_go_one_by_one(self) -> None:
        self.running("c1")
        first, second = self.allocator.acquire([Request(THIRD), Request(FOURTH)], self.consumer("c1"))
        for comes, there in ((first, [first]), (second, [first, second])):
            self.engine.attach("c1", comes)
            self.engine.verify("c1", there)
        self.engine.detach("c1", first, [second])
        self.engine.verify("c1", [second])
        (complaint,) = self.allocator.release_device(THIRD, self.consumer("c1"), self.engine.pid("c1"))
        self.assertIn("may still be in use by lxd/c1", complaint)
        self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(THIRD)], self.consumer("c2"))
        # The container itself may have it back.
        self.engine.attach("c1", *self.allocator.acquire([Request(THIRD)], self.consumer("c1")))
        self.engine.verify("c1", [first, second])
        self.engine.detach("c1", second, [first])
        self.engine.verify("c1", [first])

    def test_one_that_came_hot_is_there_after_a_restart(self) -> None:
        self.running("c1")
        grants = self.allocator.acquire([Request(FIRST)], self.consumer("c1"))
        self.engine.attach("c1", grants[0])
        self.engine.stop("c1", timeout=20, force=True)
        self.engine.start("c1")
        self.engine.verify("c1", grants)


class NovaTest(LiveServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        self.useFixture(Nvml(PROFILES))
        super().setUp()
        self.one, self.two = self.sized(**{SMALL: 1}), self.sized(**{LARGE: 2})

    def sized(self, **resources: int) -> str:
        return self.flavor(memory_mb=96, lxd__live_resize="required",
                           **{f"resources__{name}": str(count) for name, count in resources.items()})

    def assert_has(self, server: Any, *ids: str) -> None:
        """The host's records, what the container sees and what Placement counts agree, and it was never stopped. What
        it has lost is blocked, because no driver revokes a slice."""
        records = AllocationStore(self.state / "owners").records().values()
        self.assertEqual({server["id"]}, {record.consumer.uuid for record in records} | {server["id"]})
        self.assertEqual(set(ids), {record.device_id for record in records if record.blocked is None})
        self.assertEqual(own_nodes(*ids), set(self.inside(server, "sh", "-c", LISTED).output.split()))
        self.assert_went_on(server)

    def used(self, server: Any) -> dict[str, int]:
        found = self._get_allocations_by_server_uuid(server["id"])
        return {name: count for provider in found.values() for name, count in provider["resources"].items()
                if name.startswith("CUSTOM_MIG_")}

    def test_a_running_server_gains_changes_and_loses_slices(self) -> None:
        server = self.counting(self.small)
        for flavor, ids, used in ((self.one, (FIRST,), {SMALL: 1}), (self.two, (THIRD, FOURTH), {LARGE: 2}),
                                  (self.small, (), {})):
            self.resize(server, flavor)
            self.assert_has(server, *ids)
            self._confirm_resize(server)
            self.assert_has(server, *ids)
            self.assertEqual(used, self.used(server))
        self.delete(server)


class SliceContract:
    """Under either of OpenNebula's drivers."""

    def seen(self, machine: Machine) -> set[str]:
        return set(self.inside(machine, "sh", "-c", LISTED).split())

    def test_exactly_the_chosen_ones_from_the_start(self) -> None:
        first, second, third = [device for device in scan().devices if device.kind is Kind.GPU_SLICE][:3]
        machine = self.deployed(Machine(devices=(first, third)))
        self.assertEqual(own_nodes(first.id, third.id), self.seen(machine))
        other = self.deployed(Machine(2, devices=(second,)))
        self.assertEqual(own_nodes(second.id), self.seen(other))
        taken = other.changed(devices=(second, first), attach="pci")
        self.refused("/one-1 (", "attach_nic", taken, other.mac(9), "-", "-", "dummy", "one-2-9")
        self.ok("reset", machine)
        self.assertEqual(own_nodes(first.id, third.id), self.seen(machine))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(devices=(third,)), lcm=RESUME)
        self.assertEqual(own_nodes(third.id), self.seen(machine))
        self.assertEqual({second.id, third.id}, set(AllocationStore(self.node.owners).records()))

    def test_nic_attach_and_detach(self) -> None:
        first, second = [device for device in scan().devices if device.kind is Kind.GPU_SLICE][:2]
        machine = self.deployed()
        before = self.pid(machine)
        place = machine.changed(devices=(first, second), attach="pci")
        self.assertIn(f"<ADDRESS>{from_device_id(second.id).address}</ADDRESS>", place.message(3))
        only = machine.changed(devices=(first,), attach="pci")
        for change, there in ((only, (first,)), (place, (first, second))):
            for _ in range(2):
                self.ok("attach_nic", change, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.assertEqual({device.id for device in there}, set(AllocationStore(self.node.owners).records()))
            self.assertEqual(own_nodes(*(device.id for device in there)), self.seen(machine))
        for change, there in ((place, (first,)), (only, ())):
            for _ in range(2):
                self.ok("detach_nic", change, machine.mac(9))
            self.assertEqual(own_nodes(*(device.id for device in there)), self.seen(machine))
        self.assertEqual(before, self.pid(machine))


@levels.exhaustive("an attached slice remains", tests=(
    "test_exactly_the_chosen_ones_from_the_start", "test_nic_attach_and_detach"))
class OnedockTest(SliceContract, OnedockCase):
    inline = False


@levels.exhaustive("an attached slice remains", tests=("test_exactly_the_chosen_ones_from_the_start",))
class LxdoneTest(SliceContract, ActionsCase):
    @levels.exhaustive("an attached slice remains")
    def test_ready_for_one_that_comes_later(self) -> None:
        """With the driver's libraries, which NVIDIA's toolkit brings only when a container starts."""
        part = next(device for device in scan().devices if device.kind is Kind.GPU_SLICE)
        self.node.configure('gpu_capabilities = ["utility"]\n')
        plain = self.deployed()
        more = plain.changed(devices=(part,), attach="pci")
        arguments = (plain.mac(9), "-", "-", "dummy", "one-1-9")
        self.refused("while it is stopped", "attach_nic", more, *arguments)
        ready = self.deployed(Machine(2, more="<LXD_GPU_CAPABILITIES>compute,utility</LXD_GPU_CAPABILITIES>"))
        self.assertEqual("", self.inside(ready, "sh", "-c", LISTED))
        self.assertIn("libcuda.so.1", self.inside(ready, "sh", "-c", "ls /usr/lib/x86_64-linux-gnu"))
        self.ok("attach_nic", ready.changed(devices=(part,), attach="pci"), *arguments)
        self.assertEqual(own_nodes(part.id), set(self.inside(ready, "sh", "-c", LISTED).split()))
