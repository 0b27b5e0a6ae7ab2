# SPDX-License-Identifier: Apache-2.0
"""Devices that still answer and are sick all the same: who is given them, who is told, and how they become well."""

from tests.functional.nova.test_pci_health import HealthServers  # isort: skip (decides how nova runs)

import json
from typing import Any

from click.testing import CliRunner

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from tests import levels
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


@levels.exhaustive("units have it; a GPU that gets sick stays", tests=("test_one_that_vanishes_from_under_a_server",))
class FunctionsTest(SickServers):
    def with_vf(self) -> tuple[Any, Device]:
        server = self.server(self.flavor(pci_passthrough__alias=f"{VF_ALIAS}:1"))
        (held,) = self.held()
        return server, next(vf for vf in self.vfs if vf.id == held)

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
        self.assertIn("its driver was rebound", self.scrub(held.id)["done"])
        self.assertEqual({vf.address for vf in self.vfs}, self.known_vfs())
        self.assertEqual({}, self.held())
        now = {device.id: (device.netdev, device.health) for device in scan().devices}
        self.assertEqual({device.id: (device.netdev, device.health) for device in self.devices_before}, now)
