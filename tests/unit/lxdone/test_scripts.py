# SPDX-License-Identifier: Apache-2.0
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from lxdone import lcm_states
from lxdone.cli import main
from lxdone.vmm import Vmm
from onedriver import actions
from onedriver.monitorconfig import DIRECTORIES
from onedriver.node import measure
from tests.commands import script

ACTIONS = ("shutdown", "reboot", "deploy", "restore", "attach_nic")
DIRECTORY = Path(__file__).parents[3] / "etc/opennebula/remotes/vmm/lxdone"


class ScriptsTest(testtools.TestCase):
    def test_there_is_one_for_every_name_oned_calls(self) -> None:
        self.assertEqual({*actions.ARGUMENTS, *actions.LOCAL_NAMES, *actions.IN_SCRIPTS}, set(os.listdir(DIRECTORY)))

    def test_command_prints_usage_when_arguments_are_missing(self) -> None:
        root = DIRECTORY.parents[4]
        done = subprocess.run([sys.executable, "-m", "lxdone", "vmm"], env={"PYTHONPATH": str(root)},
                              capture_output=True, text=True, check=False)
        self.assertEqual((2, ""), (done.returncode, done.stdout))
        self.assertIn("usage: lxdone", done.stderr)

    def test_all_are_the_same_and_can_be_run(self) -> None:
        self.assertEqual(1, len({path.read_text() for path in DIRECTORY.iterdir()}))
        self.assertEqual([], [path.name for path in DIRECTORY.iterdir() if not os.access(path, os.X_OK)])

    def test_what_is_over_in_its_script_starts_no_program(self) -> None:
        for driver in ("lxdone", "onedock"):
            for action in actions.IN_SCRIPTS:
                done = subprocess.run([DIRECTORY.parent / driver / action, "one-1", "sdb", "1", "node1"], check=False,
                                      capture_output=True, env={"PATH": "/nonexistent"}, stdin=subprocess.DEVNULL)
                self.assertEqual((0, b"", b""), (done.returncode, done.stdout, done.stderr))

    def test_no_vm_starts_whose_interfaces_network_drivers_do_not_know(self) -> None:
        """Security groups would let everything in."""
        base = Path(self.useFixture(fixtures.TempDir()).path)
        shutil.copytree(DIRECTORY.parents[1], base / "remotes")
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

    def test_every_action_is_done_or_refused(self) -> None:
        done = {name for name in actions.ARGUMENTS if hasattr(Vmm, name)}
        self.assertEqual(set(actions.ARGUMENTS), done | set(lcm_states.UNSUPPORTED))
        self.assertEqual(set(), done & set(lcm_states.UNSUPPORTED))

    def test_there_is_a_script_for_every_probe(self) -> None:
        directory = DIRECTORY.parents[1] / "im/lxdone-probes.d"
        found = {str(path.parent.relative_to(directory)): path for path in directory.rglob("lxdone")}
        self.assertEqual({*measure.PROBES, "vm/execution", "host/beacon"}, set(found))
        self.assertLess(set(found), set(DIRECTORIES.values()))
        for name, path in ((name, path) for name, path in found.items() if name != "host/beacon"):
            self.assertTrue(os.access(path, os.X_OK))
            self.assertRegex(path.read_text(), rf"\nexec sudo .*lxdone.* probe {name}( \"\$@\")?\n")

    def test_a_wrong_call_of_the_command_tells_its_use(self) -> None:
        handlers = logging.getLogger().handlers[:]
        self.addCleanup(setattr, logging.getLogger(), "handlers", handlers)
        for words in (["--help"], ["vmm", "--help"]):
            self.assertEqual(0, main(words))
        for words in ([], ["vmm"], ["other", "x"], ["probe"]):
            self.assertEqual(2, main(words))
