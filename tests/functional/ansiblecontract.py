# SPDX-License-Identifier: Apache-2.0
"""Test the roles for OpenNebula, on a node with a real engine and a front-end's files: the same for every driver.

Import the module, not its classes: each would else be a test of the importing module.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import fixtures

from tests.commands import ROOT, script
from tests.functional.overlay import OverlaidMachine
from tests.functional_one.node import Node
from tests.unit.onedock.test_install import ONED

RECAP = re.compile(r"^(\S+) +: .*\bchanged=(\d+)", re.M)
TOOLS = Path(sys.executable).parent
USER = "oneadmin"


class AnsibleContract:
    """Mix-in for a test case; ``setUp`` must call :meth:`prepare`."""

    def prepare(self, node: Node, **variables: Any) -> None:
        """Make a front-end's files, a user of OpenNebula's and an inventory.

        :param variables: of the roles, besides those that every driver needs
        """
        self.node, self.driver = node, node.driver
        self.node.datastores.mkdir(exist_ok=True)
        self.machine = self.useFixture(OverlaidMachine("/etc"))
        self.machine.run("sh", "-c", f"echo {USER}:x:9869:9869::/var/lib/one:/bin/sh >> /etc/passwd")
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.remotes, self.conf, self.called = (self.base / name for name in ("remotes", "conf", "called"))
        for directory in (self.remotes, self.conf, self.conf / "vmm_exec"):
            directory.mkdir()
        (self.conf / "oned.conf").write_text(ONED)
        (self.conf / "monitord.conf").write_text('LOG = [ SYSTEM = "file" ]\n')
        (self.conf / "vmm_exec/vmm_execrc").write_text('LIVE_DISK_SNAPSHOTS="kvm-qcow2 kvm-ssh"\n')
        script(self.base / "sysctl", "true")  # the limits are this machine's own
        for name in ("restart", "sync"):
            script(self.base / name, f"echo {name} >> {self.called}; true")
        self.write_inventory(variables)

    def write_inventory(self, variables: dict[str, Any]) -> None:
        inventory = {"all": {
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                     "opennebula_driver": self.driver, "opennebula_user": USER,
                     "opennebula_driver_toml": self.node._conf.read_text(),
                     "opennebula_program": str(self.node._commands / self.driver),
                     "opennebula_remotes": str(self.remotes), "opennebula_conf": str(self.conf),
                     "opennebula_restart_command": str(self.base / "restart"),
                     "opennebula_sync_command": str(self.base / "sync"),
                     "containerhost_sysctl_command": str(self.base / "sysctl"), **variables},
            "children": {"opennebula_nodes": {"hosts": {"node1": {}}},
                         "opennebula_frontend": {"hosts": {"front-end": {}}}}}}
        (self.base / "inventory.yaml").write_text(json.dumps(inventory))

    def play(self, *options: str) -> dict[str, int]:
        """Return how many tasks changed something, by host."""
        environment = {**self.node.environment, "PATH": f"{self.node.environment['PATH']}:{TOOLS}",
                       "HOME": str(self.base), "ANSIBLE_NOCOLOR": "1"}
        del environment[f"{self.driver.upper()}_CONF"]
        said = self.machine.run(TOOLS / "ansible-playbook", "--inventory", self.base / "inventory.yaml", *options,
                                ROOT / "ansible/site.yml", environment=environment)
        return {host: int(count) for host, count in RECAP.findall(said)}

    def test_roles_change_what_differs_and_nothing_else(self) -> None:
        first = self.play()
        self.assertTrue(all(first.values()), first)
        self.assertEqual("restart\nsync\n", self.called.read_text())
        self.assertRegex((self.conf / "oned.conf").read_text(), rf'\bNAME\s*=\s*"{self.driver}"')
        self.configured()
        self.assertEqual({"node1": 0, "front-end": 0}, self.play())
        self.assertEqual("restart\nsync\n", self.called.read_text())
        deploy = self.remotes / f"vmm/{self.driver}/deploy"
        deploy.write_text("an older release's")
        self.assertEqual({"front-end": 3}, self.play("--limit", "front-end"))
        self.assertNotIn("older", deploy.read_text())
        self.assertEqual(2, self.called.read_text().count("restart"))

    def configured(self) -> None:
        """Check what the roles made of the node."""
        self.assertEqual(self.node._conf.read_text(), self.machine.run("cat", f"/etc/{self.driver}.toml"))
        program = str(self.node._commands / self.driver)
        listed = ("sudo", "-n", "-l", "-U", USER)
        self.machine.run(*listed, program, "vmm", "deploy", "one-1")
        for other in ((program, "reconcile"), ("/bin/sh",)):
            self.assertRaises(AssertionError, self.machine.run, *listed, *other)
