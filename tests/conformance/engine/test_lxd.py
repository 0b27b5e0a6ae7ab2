# SPDX-License-Identifier: Apache-2.0
"""LXD, and Incus where $LXD_PROGRAM is incusd."""

from pathlib import Path

from containerhost.devices.model import Device
from tests.conformance.engine import suite
from tests.functional.containerhost.base import LxdTestCase


class LxdTest(suite.EngineConformance, LxdTestCase):
    last_words = b"The system is going down"

    def someones(self, gpu: Device) -> None:
        self.engine.create(self.spec("someone"))
        self.engine.client.patch_instance("someone", {"devices": {"g": {"type": "gpu", "gputype": "physical"}}})

    def test_server_is_the_daemon_that_was_started(self) -> None:
        self.assertEqual(Path(self.daemon.program).name.removesuffix("d"), self.engine.server().name.removesuffix("d"))
