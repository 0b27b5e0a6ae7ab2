# SPDX-License-Identifier: Apache-2.0
import os

from tests.unit.lxdone.test_install import NICS, FrontEndCase

NOBODY = 65534


class FrontEndTest(FrontEndCase):
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
