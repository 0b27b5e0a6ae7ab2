# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from onedriver import actions
from tests.commands import script
from tests.unit.onedriver.scriptscontract import ETC, REMOTES

ACTIONS = ("shutdown", "reboot", "deploy", "restore", "attach_nic")


class ScriptsTest(testtools.TestCase):
    def test_command_prints_usage_when_arguments_are_missing(self) -> None:
        for driver in ("lxdone", "onedock"):
            done = subprocess.run([sys.executable, "-m", driver, "vmm"], env={"PYTHONPATH": str(ETC.parent)},
                                  capture_output=True, text=True, check=False)
            self.assertEqual((2, ""), (done.returncode, done.stdout))
            self.assertIn(f"usage: {driver}", done.stderr)

    def test_what_is_over_in_its_script_starts_no_program(self) -> None:
        for driver in ("lxdone", "onedock"):
            for action in actions.IN_SCRIPTS:
                done = subprocess.run([REMOTES / "vmm" / driver / action, "one-1", "sdb", "1", "node1"], check=False,
                                      capture_output=True, env={"PATH": "/nonexistent"}, stdin=subprocess.DEVNULL)
                self.assertEqual((0, b"", b""), (done.returncode, done.stdout, done.stderr))

    def test_no_vm_starts_whose_interfaces_network_drivers_do_not_know(self) -> None:
        """Security groups would permit all traffic."""
        base = Path(self.useFixture(fixtures.TempDir()).path)
        shutil.copytree(REMOTES, base / "remotes")
        nics = base / "remotes/vnm/nic.rb"
        nics.parent.mkdir()
        (base / "bin").mkdir()
        for driver in ("lxdone", "onedock"):
            for name in (driver, "sudo"):
                script(base / "bin" / name, "echo called; :")
            for text, called in (("HYPERVISORS['lxc'] = self\n", ["shutdown", "reboot"]),
                                 (f"HYPERVISORS['{driver}'] = NicLXC\n", list(ACTIONS))):
                nics.write_text(text)
                found = {action: subprocess.run([base / "remotes/vmm" / driver / action], check=False, text=True,
                                                capture_output=True, env={"PATH": f"{base}/bin:/usr/bin:/bin"})
                         for action in ACTIONS}
                self.assertEqual(called, [action for action, done in found.items() if done.stdout == "called\n"])
                for action in set(ACTIONS) - set(called):
                    self.assertEqual(1, found[action].returncode)
                    self.assertRegex(found[action].stderr, rf"^{action}: .*{driver}-install front-end.*\.\n$")
