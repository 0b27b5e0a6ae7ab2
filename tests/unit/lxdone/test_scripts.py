# SPDX-License-Identifier: Apache-2.0
import logging
import os
from pathlib import Path

import testtools

from lxdone import lcm_states
from lxdone.cli import main
from lxdone.vmm import Vmm
from onedriver import actions
from onedriver.monitorconfig import DIRECTORIES
from onedriver.node import measure

DIRECTORY = Path(__file__).parents[3] / "etc/opennebula/remotes/vmm/lxdone"


class ScriptsTest(testtools.TestCase):
    def test_there_is_one_for_every_name_oned_calls(self) -> None:
        self.assertEqual({*actions.ARGUMENTS, *actions.LOCAL_NAMES, *actions.IN_SCRIPTS}, set(os.listdir(DIRECTORY)))

    def test_all_are_the_same_and_can_be_run(self) -> None:
        self.assertEqual(1, len({path.read_text() for path in DIRECTORY.iterdir()}))
        self.assertEqual([], [path.name for path in DIRECTORY.iterdir() if not os.access(path, os.X_OK)])

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
