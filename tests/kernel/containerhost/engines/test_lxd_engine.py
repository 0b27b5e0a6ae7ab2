# SPDX-License-Identifier: Apache-2.0
import os
import subprocess

import testtools

from containerhost.engines.lxd.engine import LxdEngine
from tests.unit.containerhost.engines.test_lxd_engine import Client


def ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


class FirstProcess(testtools.TestCase):
    def engine(self, client: Client) -> LxdEngine:
        return LxdEngine(client)

    def test_process_that_just_ended_is_not_remembered(self) -> None:
        client = Client(ended(), os.getpid())
        engine = self.engine(client)
        engine.pid("c1")
        self.assertEqual(os.getpid(), engine.pid("c1"))

    def test_process_that_ended_later_is_asked_for_again(self) -> None:
        process = subprocess.Popen(["sleep", "60"])
        engine = self.engine(Client(process.pid, os.getpid()))
        self.assertEqual(process.pid, engine.pid("c1"))
        process.kill()
        process.wait()
        self.assertEqual(os.getpid(), engine.pid("c1"))
