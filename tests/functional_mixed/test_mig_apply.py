# SPDX-License-Identifier: Apache-2.0
"""``containerhost mig apply`` on the emulated host: containers get the new slices, and Placement is told."""

from tests.functional.nova import base  # isort: skip

from pathlib import Path
from typing import Any

import fixtures
import testtools
from click.testing import CliRunner

from containerhost.allocation.refusals import Request
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from nova_lxd_ext.hardware.sliceproviders import provider_name, provider_uuid
from tests.fakehost.control import FakeHostControl
from tests.fakehost.nvml import Nvml
from tests.functional.containerhost import test_lxd_devices as devices

WHOLE, CUT = "0000:3b:00.0", "0000:3c:00.0"
GPUS = {WHOLE: None, CUT: [(1, 0, "1g.5gb", (1,)), (2, 1, "1g.5gb", (1,)), (5, 2, "2g.10gb", (1, 1))]}


class MigCase(testtools.TestCase):
    def setUp(self) -> None:
        control = FakeHostControl.from_environment()
        self.nvml = self.useFixture(Nvml(GPUS, control.set_mig))
        before = {address: self.nvml.gpu(address).pairs() for address in GPUS}
        super().setUp()
        for address, pairs in before.items():
            self.addCleanup(control.set_mig, address, pairs)

    def apply(self, owners: Path, text: str, status: int = 0) -> str:
        file = Path(self.useFixture(fixtures.TempDir()).path, "gpus.yaml")
        file.write_text(text)
        result = CliRunner().invoke(main, ["mig", "apply", str(file), "--owners", str(owners)])
        self.assertEqual(status, result.exit_code, result.output)
        return result.output


class EngineTest(MigCase, devices.DeviceTestCase):
    def test_a_gpu_is_cut_and_containers_have_its_slices(self) -> None:
        directory = self.store._root
        self.apply(directory, f"{WHOLE}: [3g.20gb, 1g.5gb]")
        slices = scan().by_address(WHOLE)[1:]
        self.assertEqual({"3g.20gb", "1g.5gb"}, {one.slice.profile for one in slices})
        self.assertEqual([()] * 2, [one.health for one in slices])
        grants = self.acquired("c1", (Request(slices[0].id),))
        self.engine.verify("c1", grants)
        self.assertIn("would be removed", self.apply(directory, f"{WHOLE}: []", status=1))
        kept = slices[0].slice.profile
        self.apply(directory, f"{WHOLE}: [{kept}, 2g.10gb]")
        self.engine.verify("c1", grants)
        self.assertEqual({kept, "2g.10gb"}, {one.slice.profile for one in scan().by_address(WHOLE)[1:]})
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.apply(directory, f"{WHOLE}: []")
        self.assertEqual([WHOLE], [one.id for one in scan().by_address(WHOLE)])


class NovaTest(MigCase, base.LxdServers):
    def inventory(self, gpu: str) -> dict[str, int]:
        self._run_periodics()
        names = {one["name"] for one in self._get_all_providers()}
        if provider_name(base.HOST, gpu) not in names:
            return {}
        found: dict[str, Any] = self._get_provider_inventory(provider_uuid(base.HOST, gpu))
        return {name: entry["total"] for name, entry in found.items()}

    def test_placement_follows(self) -> None:
        directory = self.state / "owners"
        self.assertEqual(({}, {"CUSTOM_MIG_1G_5GB": 2, "CUSTOM_MIG_1C_2G_10GB": 2}),
                         (self.inventory(WHOLE), self.inventory(CUT)))
        self.apply(directory, f"{WHOLE}: [3g.20gb, 3g.20gb]\n{CUT}: [1g.5gb, 1g.5gb]\n")
        self.assertEqual(({"CUSTOM_MIG_3G_20GB": 2}, {"CUSTOM_MIG_1G_5GB": 2}),
                         (self.inventory(WHOLE), self.inventory(CUT)))
        server = self.server(self.flavor(resources__CUSTOM_MIG_3G_20GB="1"))
        self.assertIn("would be removed", self.apply(directory, f"{WHOLE}: [1g.5gb]\n{CUT}: []\n", status=1))
        self.assertEqual({"CUSTOM_MIG_1G_5GB": 2}, self.inventory(CUT))
        self._delete_server(server)
        self.apply(directory, f"{WHOLE}: []\n")
        self.assertEqual({}, self.inventory(WHOLE))
        # assert_nothing_left compares devices with those before.
        self.apply(directory, f"{CUT}: [1g.5gb, 1g.5gb, 1c.2g.10gb, 1c.2g.10gb]\n")
