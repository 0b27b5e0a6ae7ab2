# SPDX-License-Identifier: Apache-2.0
"""Test the output of `containerhost config nova` as it is: nova's services read it and boot the flavors."""

import json
import shlex
from pathlib import Path
from typing import Any

import fixtures
from click.testing import CliRunner
from oslo_config import cfg

from tests import levels

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from openstackclient.compute.v2.flavor import CreateFlavor

from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["config", "nova", *arguments])
    if done.exit_code:
        raise AssertionError(done.output)
    return done.stdout


class SuggestedTest(base.LxdServers):
    pci_in_placement = True

    def _configure(self) -> None:
        super()._configure()
        path = Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        path.write_text(printed())
        conf = cfg.ConfigOpts()
        # Nova's own objects of these options would have the values that other tests set.
        conf.register_opts([cfg.MultiStrOpt("device_spec"), cfg.MultiStrOpt("alias"),
                            cfg.BoolOpt("report_in_placement")], group="pci")
        conf(["--config-file", str(path)])
        self.flags(device_spec=conf.pci.device_spec, alias=conf.pci.alias,
                   report_in_placement=conf.pci.report_in_placement, group="pci")

    def suggested(self) -> dict[str, Any]:
        """Flavors as the printed commands describe them, by name."""
        parser = CreateFlavor(None, None).get_parser("create")
        lines = printed("--flavors", "openstack", "--disk", "1").splitlines()
        return {flavor.name: flavor for flavor in (parser.parse_args(shlex.split(line)[3:]) for line in lines)}

    def test_server_of_every_suggested_flavor_has_its_devices(self) -> None:
        found = self.suggested()
        self.assertEqual({"hpc.gpu-nvidia-a100-sxm4-40gb.x1", "hpc.gpu-nvidia-a100-sxm4-40gb.x1.infiniband-vf.x1",
                          "hpc.infiniband-vf.x1"}, set(found))
        for name, flavor in levels.some("suggested flavors", sorted(found.items()), (1,)):
            made = self._create_flavor(vcpu=flavor.vcpus, memory_mb=flavor.ram, disk=flavor.disk, ephemeral=0,
                                       extra_spec=flavor.properties)
            server = self.server(made)
            held = sorted(scan().get(device).kind for device in self.held())
            self.assertEqual(sorted([Kind.GPU] * ("gpu" in name) + [Kind.NET] * ("infiniband" in name)), held, name)
            self._delete_server(server)
            self.assert_nothing_left()

    def test_placement_has_the_classes_and_traits(self) -> None:
        told = json.loads(printed("--json"))
        providers = self._get_all_providers()
        classes = {name for provider in providers for name in self._get_provider_inventory(provider["uuid"])}
        traits = {name for provider in providers for name in self._get_provider_traits(provider["uuid"])}
        self.assertEqual(["CUSTOM_INFINIBAND_VF", "CUSTOM_GPU"], sorted(told["resource_classes"], reverse=True))
        self.assertLessEqual(set(told["resource_classes"]), classes)
        self.assertLessEqual(set(told["traits"]), traits)
