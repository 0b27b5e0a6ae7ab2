# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import shlex
from pathlib import Path

import fixtures
import testtools
import yaml
from click.testing import CliRunner
from nova.api.validation.extra_specs import validators
from openstackclient.compute.v2.flavor import CreateFlavor
from oslo_config import cfg

from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.cli import main
from containerhost.operator.suggest.sizes import sizes
from nova_lxd_ext.suggest import flavors
from tests.unit.containerhost.hosts import shared


def suggested(name: str) -> tuple[flavors.Flavor, ...]:
    host = shared(name)
    return flavors.flavors(sizes(scan(host), topology.read(host)), 10)


class FlavorsTest(testtools.TestCase):
    def test_gpu_with_its_function_on_one_node(self) -> None:
        found = {flavor.name: flavor for flavor in suggested("small")}
        self.assertEqual(flavors.Flavor("hpc.gpu-nvidia-a100-sxm4-40gb.x1.infiniband-vf.x1", 16, 54 << 10, 10, {
            "pci_passthrough:alias": "gpu-nvidia-a100-sxm4-40gb:1,infiniband-vf:1", "hw:numa_nodes": "1",
            "hw:pci_numa_affinity_policy": "required"}), found["hpc.gpu-nvidia-a100-sxm4-40gb.x1.infiniband-vf.x1"])

    def test_slices_and_shares_by_their_resource_class(self) -> None:
        host = shared("mixed")
        named = Inventory(tuple(
            dataclasses.replace(device, slice=dataclasses.replace(device.slice, profile="1g.5gb"))
            if device.slice else device for device in scan(host).devices))
        found = {flavor.name: flavor for flavor in flavors.flavors(sizes(named, topology.read(host)), 10)}
        self.assertEqual({"resources:CUSTOM_MIG_1G_5GB": "1"}, found["hpc.slice-1g-5gb.x1"].extra_specs)

    def test_slices_without_a_known_profile_have_no_flavor(self) -> None:
        self.assertEqual([], [flavor.name for flavor in suggested("mixed") if "slice" in flavor.name])

    def test_nova_accepts_every_extra_spec(self) -> None:
        for name in ("small", "mixed", "dgx"):
            for flavor in suggested(name):
                for key, value in flavor.extra_specs.items():
                    validators.validate(key, value)


class WritersTest(testtools.TestCase):
    def test_commands_are_those_of_the_client(self) -> None:
        found = suggested("mixed")
        parser = CreateFlavor(None, None)
        for flavor, line in zip(found, flavors.openstack(found).splitlines(), strict=True):
            words = shlex.split(line)
            self.assertEqual(["openstack", "flavor", "create"], words[:3])
            read = parser.get_parser("create").parse_args(words[3:])
            self.assertEqual(flavor, flavors.Flavor(read.name, read.vcpus, read.ram, read.disk, read.properties))

    def test_ansible_tasks(self) -> None:
        found = suggested("small")
        tasks = [task["openstack.cloud.compute_flavor"] for task in yaml.safe_load(flavors.ansible(found))]
        self.assertEqual([dataclasses.asdict(flavor) | {"state": "present"} for flavor in found], tasks)

    def test_heat_template(self) -> None:
        found = suggested("dgx")
        template = yaml.safe_load(flavors.heat(found))
        self.assertEqual("2021-04-16", template["heat_template_version"])
        resources = template["resources"].values()
        self.assertEqual({"OS::Nova::Flavor"}, {resource["type"] for resource in resources})
        self.assertEqual([dataclasses.asdict(flavor) for flavor in found],
                         [resource["properties"] for resource in resources])


class _Written(fixtures.Fixture):
    """:ivar path: of a file with this content"""

    def __init__(self, content: str) -> None:
        self._content = content

    def _setUp(self) -> None:
        self.path = str(Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf")
        Path(self.path).write_text(self._content)


class CommandTest(testtools.TestCase):
    def run_command(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, ["config", "nova", "--root", str(shared("mixed").root), *arguments])
        self.assertEqual(0, done.exit_code, done.output)
        return done.output

    def test_nova_conf_is_read_by_oslo(self) -> None:
        conf = cfg.ConfigOpts()
        conf.register_opts([cfg.MultiStrOpt("device_spec"), cfg.MultiStrOpt("alias"),
                            cfg.BoolOpt("report_in_placement")], group="pci")
        conf.register_opts([cfg.BoolOpt("pci_in_placement")], group="filter_scheduler")
        path = self.useFixture(_Written(self.run_command())).path
        conf(["--config-file", path])
        told = json.loads(self.run_command("--json"))
        self.assertEqual(told["device_spec"], [json.loads(spec) for spec in conf.pci.device_spec])
        self.assertEqual(told["alias"], [json.loads(alias) for alias in conf.pci.alias])
        self.assertTrue(conf.pci.report_in_placement and conf.filter_scheduler.pci_in_placement)

    def test_cards_without_vfs_are_told(self) -> None:
        self.assertIn("# 0000:d8:00.1 could have 8 virtual functions and has none", self.run_command())
        told = json.loads(self.run_command("--json"))
        self.assertEqual(["0000:d8:00.1"], told["without_vfs"])
        self.assertIn("CUSTOM_INFINIBAND_VF", told["resource_classes"])
        self.assertIn("CUSTOM_GPU_AMD_INSTINCT_MI100", told["traits"])

    def test_flavors_alone(self) -> None:
        lines = self.run_command("--flavors", "openstack", "--disk", "7").splitlines()
        self.assertEqual({"openstack flavor create"}, {" ".join(line.split()[:3]) for line in lines})
        self.assertTrue(all(" --disk 7 " in line for line in lines))
