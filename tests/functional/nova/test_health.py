# SPDX-License-Identifier: Apache-2.0
"""Devices that still answer and are sick all the same: who is given them, who is told, and how they become well."""

from tests.functional.nova.test_pci_health import HealthServers  # isort: skip (decides how nova runs)

import json
from typing import Any

from click.testing import CliRunner

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device, Kind, NodeUse
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from tests import levels
from tests.functional.holder import Holder
from tests.functional.kmsg import xid
from tests.functional.nova.base import HOST, VF_ALIAS


class SickServers(HealthServers):
    def setUp(self) -> None:
        super().setUp()
        self.vfs = [device for device in self.devices_before if self._is_ib_vf(device)]

    def scrub(self, device: str, expected: int = 0) -> Any:
        done = CliRunner().invoke(main, ["scrub", device, "--json", "--owners", str(self.state / "owners")])
        self.assertEqual(expected, done.exit_code, done.output)
        return json.loads(done.stdout) if expected == 0 else done.stderr

    def diagnostics(self, server: Any) -> str:
        return str(self.admin_api.api_get(f"/servers/{server['id']}/diagnostics").body["hypervisor_os"])

    def blocked(self) -> dict[str, str | None]:
        return {name: record.blocked for name, record in AllocationStore(self.state / "owners").records().items()}

    def known_vfs(self) -> set[str]:
        self._run_periodics()
        tracked = {device.address for device in self.computes[HOST].manager.rt.pci_tracker.pci_devs}
        return tracked & {vf.address for vf in self.vfs}

    def holder(self, name: str) -> Holder:
        device = next(device for device in self.devices_before if device.id == name)
        node = next(node for node in device.nodes if node.use is NodeUse.OWN and "/dri/" not in node.path)
        return self.useFixture(Holder(node.path, (node.major, node.minor)))


class GpusTest(SickServers):
    def test_a_free_one_is_offered_to_nobody_until_it_was_reset(self) -> None:
        sick, well = self.gpus
        self.control.say(xid(sick, 31))
        self.assertEqual({sick, well}, self.known())  # the application's fault, not the GPU's
        self.control.say(xid(sick, 48))
        self.assertEqual({well}, self.known())
        self.restart_compute_service(self.computes[HOST])
        self.assertEqual({well}, self.known())
        resets = self.control.resets().count(sick)
        self.assertEqual({"device": sick, "done": ["it was reset"], "was_blocked": None},
                         self.scrub(sick))
        self.assertEqual(resets + 1, self.control.resets().count(sick))
        self.assertEqual({sick, well}, self.known())
        self.assert_nothing_left()

    @levels.exhaustive("test_taints tells the holder")
    def test_its_holder_is_told_and_a_hard_reboot_resets_it(self) -> None:
        server = self.with_gpu()
        (gpu,) = self.held()
        self.assertEqual("linux", self.diagnostics(server))
        self.control.say(xid(gpu, 95))
        self.assertIn(gpu, self.known())
        self.assertIn(f"{gpu}: Xid 95", self.diagnostics(server))
        self.assertIn(f"{gpu}: Xid 95", self.driver.get_diagnostics(self.instance(server))["devicefaults"])
        self.assertIn("holds it", self.scrub(gpu, expected=1))
        resets = self.control.resets().count(gpu)
        self._reboot_server(server, hard=True)
        self.assertEqual(resets + 1, self.control.resets().count(gpu))
        self.assertEqual("linux", self.diagnostics(server))
        self.assertEqual({gpu: server["id"]}, self.held())
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("the allocator does it, whatever the cloud is; units show it")
    def test_one_that_comes_back_sick_is_reset_for_the_next(self) -> None:
        server = self.with_gpu()
        (gpu,) = self.held()
        self.control.say(xid(gpu, 119))
        self._delete_server(server)
        self.assertEqual(set(self.gpus), self.known())
        self.assert_nothing_left()

    @levels.exhaustive("the allocator does it, whatever the cloud is; units show it")
    def test_one_that_cannot_be_cleaned_is_blocked_until_the_operator_has(self) -> None:
        server = self.with_gpu()
        (gpu,) = self.held()
        holder = self.holder(gpu)
        self._delete_server(server)
        self.assertIn("still in use by process", self.blocked()[gpu] or "")
        self.assertNotIn(gpu, self.known())
        self.assertIn("python", self.scrub(gpu, expected=1))
        holder.end()
        self.assertIn("still in use", self.scrub(gpu)["was_blocked"])
        self.assertEqual(set(self.gpus), self.known())
        self.assert_nothing_left()

    @levels.exhaustive("the allocator does it, whatever the cloud is; units show it")
    def test_one_whose_driver_is_unloaded(self) -> None:
        server = self.with_gpu()
        (held,) = self.held()
        (free,) = set(self.gpus) - {held}
        for gpu in self.gpus:
            self.control.unbind(gpu)
        self.assertEqual({held}, self.known())
        self.assertIn(f"{held}: no driver is bound to it", self.diagnostics(server))
        for gpu in self.gpus:
            self.control.bind(gpu)
        self.assertEqual({held, free}, self.known())
        self.assertEqual("linux", self.diagnostics(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("the allocator does it, whatever the cloud is; units show it")
    def test_what_is_not_there_is_not_cleaned(self) -> None:
        self.assertIn("has no device 0000:99:00.0", self.scrub("0000:99:00.0", expected=1))
        pf = next(device for device in self.devices_before if device.host_use and device.kind is Kind.NET)
        self.assertIn("the host uses it", self.scrub(pf.id, expected=1))
        self.assertEqual({}, self.held())


@levels.exhaustive("the same with the devices in Placement, too")
class GpusWithPlacementTest(GpusTest):
    pci_in_placement = True

    def known(self) -> set[str]:
        """Nova's scheduler asks Placement: it must have the same, and the others reserved."""
        known = super().known()
        reserved = {gpu: entry["reserved"] for gpu, entry in self.inventories().items()}
        self.assertEqual({gpu: int(gpu not in known) for gpu in self.gpus}, reserved)
        return known


@levels.exhaustive("units have it; a GPU that gets sick stays", tests=("test_one_that_vanishes_from_under_a_server",))
class FunctionsTest(SickServers):
    def with_vf(self) -> tuple[Any, Device]:
        server = self.server(self.flavor(pci_passthrough__alias=f"{VF_ALIAS}:1"))
        (held,) = self.held()
        return server, next(vf for vf in self.vfs if vf.id == held)

    @levels.exhaustive("one that vanishes remains; units read the state of links")
    def test_those_of_a_card_without_a_cable_are_offered_to_nobody(self) -> None:
        everything = {vf.address for vf in self.vfs}
        parent = self.vfs[0].parent or ""
        beside = {vf.address for vf in self.vfs if vf.parent == parent}
        self.assertEqual(everything, self.known_vfs())
        self.addCleanup(self.control.set_link, parent, True)
        self.control.set_link(parent, False)
        self.assertEqual(everything - beside, self.known_vfs())
        self.control.set_link(parent, True)
        self.assertEqual(everything, self.known_vfs())
        server, held = self.with_vf()
        self.addCleanup(self.control.set_link, held.parent, True)
        self.control.set_link(held.parent or "", False)
        self.assertIn("has no link to its switch", self.diagnostics(server))
        self.assertIn(held.address, self.known_vfs())
        self._reboot_server(server, hard=True)  # it has it already
        self._delete_server(server)
        self.assertEqual({}, self.held())
        self.control.set_link(held.parent or "", True)
        self.assert_nothing_left()

    def test_one_that_vanishes_from_under_a_server(self) -> None:
        server, held = self.with_vf()
        parent = held.parent or ""
        count = sum(vf.parent == parent for vf in self.vfs)
        self.control.set_num_vfs(parent, 0)
        self.assertIn(f"{held.id}: this host has no such device any more", self.diagnostics(server))
        self.assertEqual({vf.address for vf in self.vfs if vf.parent != parent} | {held.address}, self.known_vfs())
        self._delete_server(server)
        self.assertIn("no device", self.blocked()[held.id] or "")
        self.control.set_num_vfs(parent, count)
        self.assertNotIn(held.address, self.known_vfs())
        self.assertIn("its driver was bound anew", self.scrub(held.id)["done"])
        self.assertEqual({vf.address for vf in self.vfs}, self.known_vfs())
        self.assertEqual({}, self.held())
        now = {device.id: (device.netdev, device.health) for device in scan().devices}
        self.assertEqual({device.id: (device.netdev, device.health) for device in self.devices_before}, now)
