# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from onedock import conf, lcm_states
from onedock.cli import main
from onedock.conf import Options
from onedock.vmm import Vmm
from tests.unit.onedriver import scriptscontract
from tests.unit.onedriver.scriptscontract import ETC


class ScriptsTest(scriptscontract.ScriptsContract):
    driver, vmm, unsupported, command = "onedock", Vmm, lcm_states.UNSUPPORTED, staticmethod(main)
    wrong = (*scriptscontract.ScriptsContract.wrong, ["drop"], ["leave", "1"], ["command", "x"])

    def test_none_calls_the_other_driver(self) -> None:
        self.assertNotIn("lxdone", next(self.directory.iterdir()).read_text())


class ConfTest(testtools.TestCase):
    def test_the_sample_names_every_option_with_its_default(self) -> None:
        lines = [line.removeprefix("#") for line in (ETC / "onedock.toml.sample").read_text().splitlines()
                 if line.startswith("#") and not line.startswith("# ")]
        path = Path(self.useFixture(fixtures.TempDir()).path) / "onedock.toml"
        path.write_text("\n".join(lines))
        self.assertEqual(Options(), conf.load(path))
        self.assertEqual(set(Options.__dataclass_fields__), {line.partition(" = ")[0] for line in lines})
