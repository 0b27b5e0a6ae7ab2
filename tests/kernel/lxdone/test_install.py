# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner

from lxdone.install import main
from tests.unit.lxdone.test_install import CONTENT, NICS

NOBODY = 65534


class FrontEndTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.remotes, self.conf = base / "remotes", base / "conf"
        for directory in (self.remotes, self.conf):
            directory.mkdir()
        self.oned, self.monitord = self.conf / "oned.conf", self.conf / "monitord.conf"
        for file in (self.oned, self.monitord):
            file.write_text(CONTENT)
            file.chmod(0o640)

    def install(self, *arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, ["front-end", "--remotes", str(self.remotes), "--conf", str(self.conf),
                                           *arguments])
        self.assertEqual(status, result.exit_code, result.output)
        return result.output

    def test_scripts_are_written_as_their_owner(self) -> None:
        """Whose links lead root nowhere."""
        file, beside = self.remotes / "vnm/nic.rb", self.remotes.parent / "beside"
        file.parent.mkdir()
        file.write_text(NICS)
        beside.mkdir()
        self.remotes.parent.chmod(0o755)
        for path in (self.remotes, *self.remotes.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        self.install()
        self.assertEqual({NOBODY}, {path.stat().st_uid for path in self.remotes.rglob("*")})
        self.install("--uninstall")
        (self.remotes / "vmm").symlink_to(beside)
        self.assertIn("Permission denied", self.install(status=1))
        self.assertEqual((0, []), (beside.stat().st_uid, list(beside.iterdir())))
