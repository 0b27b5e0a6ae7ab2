# SPDX-License-Identifier: Apache-2.0
"""The upgrade check as an operator runs it, against the real daemon."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

import json
import subprocess
import sys
from pathlib import Path

from tests import levels

ROOT = Path(__file__).parents[3]
COMMAND = "import sys; from nova_lxd_ext.status import main; sys.exit(main())"


@levels.exhaustive("tests/unit/nova/test_status has it", tests=("test_host_with_a_server_may_be_upgraded",))
class StatusTest(base.LxdServers):
    def check(self, pool: str) -> tuple[int, dict[str, tuple[int, str]]]:
        file = self.state / "nova.conf"
        file.write_text(f"[DEFAULT]\ninstances_path = {self.state}/instances\nhost = {base.HOST}\n[lxd]\n"
                        f"endpoint = {self.lxd.socket}\nstorage_pool = {pool}\nowners_dir = {self.state}/owners\n")
        done = subprocess.run([sys.executable, "-c", COMMAND, "--config-file", str(file), "upgrade", "check", "--json"],
                              cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertTrue(done.stdout, done.stderr)
        return done.returncode, {check["check"]: (check["result"], check["details"])
                                 for check in json.loads(done.stdout)["checks"]}

    def test_host_with_a_server_may_be_upgraded(self) -> None:
        server = self.server()
        status, found = self.check(self.lxd.pool)
        self.assertEqual((0, (0, None)), (status, found["LXD"]))
        self.assertEqual((0, None), found["Allocation records"])
        self._delete_server(server)

    @levels.exhaustive("units show it; a start of the command takes seconds")
    def test_missing_pool_is_reported(self) -> None:
        status, found = self.check("nosuchpool")
        self.assertEqual(2, status)
        self.assertIn("nosuchpool", found["LXD"][1])
