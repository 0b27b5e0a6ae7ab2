# SPDX-License-Identifier: Apache-2.0
"""The roles for OpenNebula, on a node with the real LXD and a front-end's files; a second run changes nothing."""

import json
import re
import sys
from pathlib import Path

import fixtures
import testtools

from tests.commands import ROOT, script
from tests.functional.overlay import OverlaidMachine
from tests.functional_one.node import Node

RECAP = re.compile(r"^(\S+) +: .*\bchanged=(\d+)", re.M)
TOOLS = Path(sys.executable).parent


class AnsibleTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(Node())
        self.node.datastores.mkdir()
        self.machine = self.useFixture(OverlaidMachine("/etc"))
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.remotes, self.conf, self.called = (self.base / name for name in ("remotes", "conf", "called"))
        for directory in (self.remotes, self.conf, self.conf / "vmm_exec"):
            directory.mkdir()
        for file in ("oned.conf", "monitord.conf"):
            (self.conf / file).write_text('LOG = [ SYSTEM = "file" ]\n')
        (self.conf / "vmm_exec/vmm_execrc").write_text('LIVE_DISK_SNAPSHOTS="kvm-qcow2 kvm-ssh"\n')
        for name in ("restart", "sync"):
            script(self.base / name, f"echo {name} >> {self.called}; true")
        inventory = {"all": {
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                     "opennebula_driver_toml": self.node._conf.read_text(), "opennebula_user": "root",
                     "opennebula_sudoers": "", "opennebula_remotes": str(self.remotes),
                     "opennebula_conf": str(self.conf), "opennebula_restart_command": str(self.base / "restart"),
                     "opennebula_sync_command": str(self.base / "sync")},
            "children": {"opennebula_nodes": {"hosts": {"node1": {}}},
                         "opennebula_frontend": {"hosts": {"front-end": {}}}}}}
        (self.base / "inventory.yaml").write_text(json.dumps(inventory))

    def play(self, *options: str) -> dict[str, int]:
        """Return how many tasks changed something, by host."""
        environment = {**self.node.environment, "PATH": f"{self.node.environment['PATH']}:{TOOLS}",
                       "HOME": str(self.base), "ANSIBLE_NOCOLOR": "1"}
        del environment["LXDONE_CONF"]
        said = self.machine.run(TOOLS / "ansible-playbook", "--inventory", self.base / "inventory.yaml", *options,
                                ROOT / "ansible/site.yml", environment=environment)
        return {host: int(count) for host, count in RECAP.findall(said)}

    def test_roles_change_what_differs_and_nothing_else(self) -> None:
        first = self.play()
        self.assertTrue(all(first.values()), first)
        self.assertEqual("restart\nsync\n", self.called.read_text())
        self.assertIn("lxdone", (self.conf / "oned.conf").read_text())
        self.assertEqual(self.node._conf.read_text(), self.machine.run("cat", "/etc/lxdone.toml"))
        self.assertEqual({"node1": 0, "front-end": 0}, self.play())
        self.assertEqual("restart\nsync\n", self.called.read_text())
        deploy = self.remotes / "vmm/lxdone/deploy"
        deploy.write_text("an older release's")
        self.assertEqual({"front-end": 3}, self.play("--limit", "front-end"))
        self.assertNotIn("older", deploy.read_text())
        self.assertEqual(2, self.called.read_text().count("restart"))
