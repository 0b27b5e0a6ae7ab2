# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

from containerhost.operator.selftest.steps import NAME
from tests.functional.containerhost.test_lxd_devices import DeviceTestCase
from tests.functional.lxd import POOL
from tests.functional.selftestcontract import TIMEOUT, SelfTestContract


class LxdSelfTest(SelfTestContract, DeviceTestCase):
    def options(self) -> tuple[str, ...]:
        name = "incus" if Path(self.daemon.program or "").name == "incusd" else "lxd"
        return ("--engine", f"{name}={self.daemon.socket}", "--pool", POOL)

    def has_image(self) -> bool:
        return self.lxd.store.find(NAME) is not None

    def test_pool_or_project_that_is_not_there_is_refused_before_anything_begins(self) -> None:
        for option, name in (("--pool", "nowhere"), ("--project", "nobody")):
            for dry in (("--dry-run",), ()):
                refused = subprocess.run(self.command(option, name, *dry), capture_output=True, text=True,
                                         timeout=TIMEOUT, check=False)
                self.assertEqual((1, ""), (refused.returncode, refused.stdout))
                self.assertIn(name, refused.stderr)
        self.assert_nothing_left()
