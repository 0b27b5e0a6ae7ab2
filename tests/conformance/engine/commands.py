# SPDX-License-Identifier: Apache-2.0
"""Test commands in a container."""

import threading
import time

from containerhost import errors
from containerhost.engines.contract import KEPT, Executed
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import TIMEOUT, MiB
from tests.waiting import await_that


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class Commands(frame.DeviceFrame):
    def test_commands_with_standard_input(self):
        self.running()
        for command, stdin, expected in (
            (["cat"], b"hello\0\n", Executed(0, b"hello\0\n")),
            (["cat"], b"", Executed(0, b"")),
            (["sh", "-c", "echo out; echo err >&2; exit 3"], b"", Executed(3, b"out\n", b"err\n")),
            (["sh", "-c", "kill -9 $$"], b"", Executed(137, b"")),
        ):
            with self.subTest(command):
                self.assertEqual(expected, self.engine.execute("c1", command, stdin, timeout=TIMEOUT))
        for program, status in (("no-such-program", 127), ("/etc", 126)):
            self.assertEqual(status, self.engine.execute("c1", [program], b"", timeout=TIMEOUT).status)

    def test_large_input_and_output_are_read_to_their_end(self):
        """It writes before it has read all."""
        self.running()
        done = self.engine.execute("c1", ["sh", "-c", "cat; yes | head -c 1000000 >&2"], bytes(4 * MiB),
                                   timeout=TIMEOUT)
        self.assertEqual((0, KEPT, KEPT), (done.status, len(done.stdout), len(done.stderr)))

    def test_command_that_does_not_end_is_killed(self):
        self.running()
        for script, stdin in (("exec sleep 599", b""), ("exec > /dev/null 2>&1; exec sleep 599", b""),
                              ("exec sleep 599", bytes(4 * MiB))):
            self.assertRaises(errors.EngineTimeout, self.engine.execute, "c1", ["sh", "-c", script], stdin, timeout=3)
            self._await_killed()

    def test_command_is_killed_by_another_thread(self):
        self.running()
        command = self.engine.command("c1", ["sleep", "599"])
        self.addCleanup(command.close)
        killer = threading.Timer(1, command.kill)
        killer.start()
        began = time.monotonic()
        self.assertNotEqual(0, command.finish(b"", TIMEOUT).status)
        self.assertLess(time.monotonic() - began, TIMEOUT)
        killer.join()
        command.kill()
        self._await_killed()

    def _await_killed(self):
        await_that(lambda: "sleep 599" not in self.inside("c1", "ps")[1], "the command is killed")
