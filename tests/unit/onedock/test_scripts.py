# SPDX-License-Identifier: Apache-2.0
import logging
import os
from pathlib import Path

import fixtures
import testtools

from onedock import conf, lcm_states
from onedock.cli import main
from onedock.conf import Options
from onedock.vmm import Vmm
from onedriver import actions
from onedriver.node import measure

ETC = Path(__file__).parents[3] / "etc"
DIRECTORY = ETC / "opennebula/remotes/vmm/onedock"


class ScriptsTest(testtools.TestCase):
    def test_there_is_one_for_every_name_oned_calls(self) -> None:
        self.assertEqual({*actions.ARGUMENTS, *actions.LOCAL_NAMES, *actions.IN_SCRIPTS}, set(os.listdir(DIRECTORY)))

    def test_all_are_the_same_and_can_be_run(self) -> None:
        self.assertEqual(1, len({path.read_text() for path in DIRECTORY.iterdir()}))
        self.assertEqual([], [path.name for path in DIRECTORY.iterdir() if not os.access(path, os.X_OK)])
        self.assertNotIn("lxdone", next(DIRECTORY.iterdir()).read_text())

    def test_every_action_is_done_or_refused(self) -> None:
        done = {name for name in actions.ARGUMENTS if hasattr(Vmm, name)}
        self.assertEqual(set(actions.ARGUMENTS), done | set(lcm_states.UNSUPPORTED))
        self.assertEqual(set(), done & set(lcm_states.UNSUPPORTED))

    def test_there_is_a_script_for_every_probe(self) -> None:
        directory = DIRECTORY.parents[1] / "im/onedock-probes.d"
        found = {str(path.parent.relative_to(directory)): path for path in directory.rglob("onedock")}
        self.assertEqual({*measure.PROBES, "vm/execution", "host/beacon"}, set(found))
        for name, path in ((name, path) for name, path in found.items() if name != "host/beacon"):
            self.assertTrue(os.access(path, os.X_OK))
            self.assertRegex(path.read_text(), rf"\nexec sudo .*onedock.* probe {name}( \"\$@\")?\n")

    def test_a_wrong_call_of_the_command_tells_its_use(self) -> None:
        handlers = logging.getLogger().handlers[:]
        self.addCleanup(setattr, logging.getLogger(), "handlers", handlers)
        for words in (["--help"], ["vmm", "--help"]):
            self.assertEqual(0, main(words))
        for words in ([], ["vmm"], ["other", "x"], ["probe"], ["drop"], ["leave", "1"], ["command", "x"]):
            self.assertEqual(2, main(words))


class ConfTest(testtools.TestCase):
    def test_the_sample_names_every_option_with_its_default(self) -> None:
        lines = [line.removeprefix("#") for line in (ETC / "onedock.toml.sample").read_text().splitlines()
                 if line.startswith("#") and not line.startswith("# ")]
        path = Path(self.useFixture(fixtures.TempDir()).path) / "onedock.toml"
        path.write_text("\n".join(lines))
        self.assertEqual(Options(), conf.load(path))
        self.assertEqual(set(Options.__dataclass_fields__), {line.partition(" = ")[0] for line in lines})
