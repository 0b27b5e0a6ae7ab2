# SPDX-License-Identifier: Apache-2.0
"""Test what an action must not load: it is a process, and most of a short one's time is importing modules.

Each action is run until it asks the engine, which is not there.
"""

import json
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from tests import levels
from tests.commands import ROOT
from tests.unit.onedriver.samples import ARGV, FOLDER

#: Runs a command and prints what it loaded.
PROGRAM = """
import importlib, json, sys
name, *sys.argv[1:] = sys.argv[1:]
status = importlib.import_module(name + ".__main__").main()
print(json.dumps([status, sorted(sys.modules)]))
"""
# Of vendors and images, of YAML and ciphers, and of what is for a person or a front-end.
NEVER = ("asyncio", "containerhost.operator.cli", "containerhost.images.metadata", "containerhost.images.rebuild",
         "containerhost.vendors.amd", "containerhost.vendors.intel", "containerhost.vendors.net",
         "containerhost.vendors.nvidia", "lxdone.disk.isofiles",
         "onedriver.node.vnc.session", "PIL", "paramiko", "pkg_resources",
         "pyte", "stevedore", "yaml")
PYLXD = ("cryptography", "dateutil")  # what pylxd loads
FAILED, NOT_ITS_AFFAIR = 1, 3  # exit statuses
ENGINE = ("containerhost.engines.capabilities", "containerhost.engines.contract", "containerhost.engines.docker",
          "containerhost.engines.local", "containerhost.engines.lxd", "docker", "requests", "urllib3")
PROBES = ("lxml", "onedriver.setup", "lxdone.vmm", "onedock.vmm", "onedriver.node.vmm", "lxdone.root.root_images",
          "onedock.root_images")
ROUNDS = (*PROBES, "containerhost.inventory.topology")  # of monitoring: every few seconds
ACTIONS = ("onedriver.node.measure", "onedriver.setup", "containerhost.inventory.topology")


class ImportsTest(testtools.TestCase):
    def loaded(self, driver: str, *words: str, stdin: bytes = b"") -> list[str]:
        base = Path(self.useFixture(fixtures.TempDir()).path)
        conf = base / "options.toml"
        endpoint = f"unix://{base}/none" if driver == "onedock" else f"{base}/none"
        conf.write_text(f'endpoint = "{endpoint}"\nstate = "{base}/state"\nowners = "{base}/owners"\n'
                        f'datastores = "{base}/datastores"\n')
        done = subprocess.run([sys.executable, "-c", PROGRAM, driver, *words], input=stdin, capture_output=True,
                              env={"PYTHONPATH": str(ROOT), f"{driver.upper()}_CONF": str(conf)}, check=False)
        status, modules = json.loads(done.stdout.splitlines()[-1])
        self.assertIn(status, (0, FAILED, NOT_ITS_AFFAIR), done.stderr)
        self.assertNotIn(b"a mistake in the driver", done.stderr)
        return modules

    def assert_without(self, forbidden: tuple[str, ...], modules: list[str], words: object) -> None:
        if "pylxd" not in modules:
            forbidden += PYLXD
        self.assertEqual([], [name for name in modules if name.startswith(tuple(f"{one}." for one in forbidden))
                              or name in forbidden], words)

    def test_actions_of_a_vm(self) -> None:
        documents = {"deploy": "deployment.xml", "attach_nic": "attach_nic.xml"}
        for driver in ("lxdone", "onedock"):
            for action in ("deploy", "shutdown", "attach_nic", "snapshot_create", "exec_cancel"):
                stdin = (FOLDER / documents.get(action, "shutdown.xml")).read_bytes()
                modules = self.loaded(driver, "vmm", action, *ARGV["vmm"][action], stdin=stdin)
                self.assert_without((*NEVER, *ACTIONS), modules, (driver, action))

    @levels.exhaustive("the actions of a VM load the same modules")
    def test_probes(self) -> None:
        for driver in ("lxdone", "onedock"):
            for name, forbidden in (("vm/status", ROUNDS), ("vm/monitor", ROUNDS), ("host/monitor", PROBES),
                                    ("vm/execution", (*ROUNDS, *ENGINE))):
                self.assert_without((*NEVER, *forbidden), self.loaded(driver, "probe", name), (driver, name))

    def test_a_front_end_has_no_engine(self) -> None:
        disk = ("node1:/nonexistent/0/1/disk.0",) * 2
        for driver, action in (("onedock", "context"), ("lxdone", "cpds")):
            self.assert_without((*NEVER, *ENGINE), self.loaded(driver, "tm", action, *disk, "1", "0"), driver)
