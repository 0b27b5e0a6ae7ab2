# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from containerhost.operator.selftest.steps import NAME
from tests.functional.containerhost.test_lxd_devices import DeviceTestCase
from tests.functional.lxd import POOL
from tests.functional.selftestcontract import SelfTestContract


class LxdSelfTest(SelfTestContract, DeviceTestCase):
    def options(self) -> tuple[str, ...]:
        name = "incus" if Path(self.daemon.program or "").name == "incusd" else "lxd"
        return ("--engine", f"{name}={self.daemon.socket}", "--pool", POOL)

    def has_image(self) -> bool:
        return self.lxd.store.find(NAME) is not None
