# SPDX-License-Identifier: Apache-2.0
"""Every entry point that the package registers, used as its owner uses it."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import testtools

BIN = Path(sys.executable).parent
PACKAGE = "nova-lxd-ext"
#: Of the OCI runtime, which hands every word on to runc.
RUNTIME = "containerhost-ociruntime"

LOAD_OS_VIF = """
import os_vif
os_vif.initialize()
print(sorted(plugin.plugin_name for plugin in os_vif.host_info().plugin_info))
"""
LOAD_VALIDATORS = """
from nova.api.validation.extra_specs import validators
validators.load_validators()
print(sorted(name for name in validators.VALIDATORS if name.startswith("lxd:")))
validators.validate("lxd:nested_allowed", "true")
"""
LOAD_VENDORS = """
from stevedore import ExtensionManager
def failed(manager, point, error):
    raise error
found = ExtensionManager("containerhost.vendors", on_load_failure_callback=failed)
print(sorted(f"{vendor.name}={vendor.plugin.name}" for vendor in found))
"""


class EntryPointsTest(testtools.TestCase):
    def call(self, *words: str) -> str:
        done = subprocess.run(words, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def load(self, code: str) -> str:
        return self.call(sys.executable, "-W", "ignore", "-c", code).splitlines()[-1]

    def test_sample_configuration_of_every_plugin_of_os_vif(self) -> None:
        self.assertIn("[os_vif_ovs]", self.call(str(BIN / "oslo-config-generator"), "--namespace", "os_vif"))

    def test_sample_configuration_of_the_driver(self) -> None:
        sample = self.call(str(BIN / "oslo-config-generator"), "--namespace", "nova_lxd_ext", "--namespace", "os_vif")
        self.assertIn("[lxd]", sample)
        self.assertIn("#storage_pool", sample)

    def test_os_vif_initializes_and_lists_all_plugins(self) -> None:
        found = self.load(LOAD_OS_VIF)
        for name in ("nova_lxd_ext", "ovs"):
            self.assertIn(f"'{name}'", found)

    def test_nova_api_loads_the_validators_of_flavor_keys(self) -> None:
        self.assertIn("'lxd:gpu_capabilities'", self.load(LOAD_VALIDATORS))

    def test_stevedore_loads_the_vendors_by_their_own_names(self) -> None:
        self.assertEqual("['amd=amd', 'intel=intel', 'net=net', 'nvidia=nvidia']", self.load(LOAD_VENDORS))

    def test_every_command_explains_itself(self) -> None:
        commands = [point.name for point in distribution(PACKAGE).entry_points if point.group == "console_scripts"]
        self.assertLessEqual({"containerhost", "lxdone", "onedock"}, set(commands))
        for name in sorted(set(commands) - {RUNTIME}):
            with self.subTest(name):
                self.assertIn("sage: ", self.call(str(BIN / name), "--help"))
        self.assertIn("runc version", self.call(str(BIN / RUNTIME), "--version"))

    def test_containerhost_offers_the_configuration_of_both_clouds(self) -> None:
        for cloud in ("nova", "opennebula"):
            self.assertIn(f"sage: containerhost config {cloud}",
                          self.call(str(BIN / "containerhost"), "config", cloud, "--help"))

    def test_stevedore_loads_the_engines(self) -> None:
        self.assertEqual("['docker', 'incus', 'lxd']", self.load(
            "from stevedore import ExtensionManager\nprint(sorted(ExtensionManager('containerhost.engines').names()))"))

    def test_containerhost_offers_the_commands_of_vendors(self) -> None:
        self.assertIn("sage: containerhost mig", self.call(str(BIN / "containerhost"), "mig", "--help"))

    def test_every_entry_point_is_tried_here(self) -> None:
        groups = {point.group for point in distribution(PACKAGE).entry_points}
        self.assertEqual({"console_scripts", "containerhost.commands", "containerhost.config", "containerhost.engines",
                          "containerhost.vendors",
                          "nova.api.extra_spec_validators", "oslo.config.opts", "os_vif"}, groups)
