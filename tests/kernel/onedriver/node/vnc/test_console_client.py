# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os
import socket
import time
from typing import NoReturn

import testtools

from onedriver.node import single_instance
from onedriver.node.vnc import console_client

TIMEOUT = 60.0  # s


def unanswered() -> NoReturn:
    time.sleep(10 * TIMEOUT)
    raise AssertionError("nobody ended it")


class ConsoleClientTest(testtools.TestCase):
    def test_it_ends_while_the_engine_does_not_answer(self) -> None:
        name = f"test-{os.getpid()}"
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        process = multiprocessing.get_context("fork").Process(
            target=console_client.serve, args=(ours, name, unanswered, lambda: b""))
        process.start()
        self.addCleanup(process.kill)
        ours.close()
        deadline = time.monotonic() + TIMEOUT
        while not single_instance.is_held(console_client.holder(name)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertTrue(single_instance.end(console_client.holder(name), TIMEOUT))
        process.join(TIMEOUT)
        self.assertEqual(0, process.exitcode)
