# SPDX-License-Identifier: Apache-2.0
"""A mixin: the scripts that oned calls and the command behind them. Import the module, not its class."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import testtools

from onedriver import actions
from onedriver.monitorconfig import DIRECTORIES
from onedriver.node import measure

ETC = Path(__file__).parents[3] / "etc"
REMOTES = ETC / "opennebula/remotes"


class ScriptsContract(testtools.TestCase):
    """:cvar command: the driver's
    :cvar wrong: calls of it that no driver has
    """

    driver: ClassVar[str]
    vmm: ClassVar[type]
    unsupported: ClassVar[Mapping[str, str]]
    command: ClassVar[Callable[[Sequence[str]], int]]
    wrong: ClassVar[Sequence[list[str]]] = ([], ["vmm"], ["other", "x"], ["probe"])

    @property
    def directory(self) -> Path:
        return REMOTES / "vmm" / self.driver

    def test_there_is_one_for_every_name_oned_calls(self) -> None:
        self.assertEqual({*actions.ARGUMENTS, *actions.LOCAL_NAMES, *actions.IN_SCRIPTS},
                         set(os.listdir(self.directory)))

    def test_all_are_the_same_and_can_be_run(self) -> None:
        self.assertEqual(1, len({path.read_text() for path in self.directory.iterdir()}))
        self.assertEqual([], [path.name for path in self.directory.iterdir() if not os.access(path, os.X_OK)])

    def test_every_action_is_done_or_refused(self) -> None:
        done = {name for name in actions.ARGUMENTS if hasattr(self.vmm, name)}
        self.assertEqual(set(actions.ARGUMENTS), done | set(self.unsupported))
        self.assertEqual(set(), done & set(self.unsupported))

    def test_there_is_a_script_for_every_probe(self) -> None:
        directory = REMOTES / f"im/{self.driver}-probes.d"
        found = {str(path.parent.relative_to(directory)): path for path in directory.rglob(self.driver)}
        self.assertEqual({*measure.PROBES, "vm/execution", "host/beacon"}, set(found))
        self.assertLess(set(found), set(DIRECTORIES.values()))
        for name, path in ((name, path) for name, path in found.items() if name != "host/beacon"):
            self.assertTrue(os.access(path, os.X_OK))
            self.assertRegex(path.read_text(), rf"\nexec sudo .*{self.driver}.* probe {name}( \"\$@\")?\n")

    def test_a_wrong_call_of_the_command_tells_its_use(self) -> None:
        handlers = logging.getLogger().handlers[:]
        self.addCleanup(setattr, logging.getLogger(), "handlers", handlers)
        for words in (["--help"], ["vmm", "--help"]):
            self.assertEqual(0, type(self).command(words))
        for words in self.wrong:
            self.assertEqual(2, type(self).command(words))
