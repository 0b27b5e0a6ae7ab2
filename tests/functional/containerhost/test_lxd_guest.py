# SPDX-License-Identifier: Apache-2.0
"""What reaches into a container: commands and its console; and what is heard of it: events."""

import contextlib
import threading

from containerhost import errors
from containerhost.engines import Change, Executed, Status
from tests.functional.containerhost.base import LxdTestCase
from tests.waiting import await_that

TIMEOUT = 60  # s
ROUNDS = 6


class TestGuest(LxdTestCase):
    def test_commands_with_standard_input(self):
        self.running()
        for command, stdin, expected in (
            (["cat"], b"hello\0\n", Executed(0, b"hello\0\n")),
            (["cat"], b"", Executed(0, b"")),
            (["sh", "-c", "echo out; echo err >&2; exit 3"], b"", Executed(3, b"out\n", b"err\n")),
            (["no-such-program"], b"", Executed(127, b"")),
            (["/etc/hostname"], b"", Executed(126, b"")),
        ):
            with self.subTest(command):
                self.assertEqual(expected, self.engine.execute("c1", command, stdin, timeout=TIMEOUT))
        large = self.engine.execute("c1", ["sh", "-c", "yes | head -c 1000000; yes | head -c 1000000 >&2"], b"",
                                    timeout=TIMEOUT)
        self.assertEqual((0, 2 * 64 * 1024), (large.status, len(large.output)))

    def test_a_command_that_does_not_end_is_killed(self):
        self.running()
        error = self.assertRaises(errors.EngineTimeout, self.engine.execute, "c1", ["sleep", "1000"], b"", timeout=1)
        self.assertIn("killed", str(error))
        await_that(lambda: self.inside("c1", "pidof", "sleep")[0] != 0, "the end of the command")

    def test_command_that_never_reads_its_input_is_killed_in_time(self):
        self.running()
        found = []

        def run():
            try:
                self.engine.execute("c1", ["sleep", "1000"], bytes(16 << 20), timeout=2)
            except errors.EngineTimeout as error:
                found.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(30)
        self.addCleanup(self.inside, "c1", "killall", "sleep")
        self.assertIn("not done within 2 s; it is killed", str(found))
        await_that(lambda: self.inside("c1", "pidof", "sleep")[0] != 0, "the end of the command")

    def test_large_input_of_a_command_that_writes_it_out_again(self):
        """It writes before it has read all."""
        self.running()
        done = self.engine.execute("c1", ["cat"], bytes(16 << 20), timeout=TIMEOUT)
        self.assertEqual((0, 64 * 1024), (done.status, len(done.output)))

    def test_what_does_not_run_has_neither(self):
        self.engine.create(self.spec())
        for ask in (lambda: self.engine.console("c1"), lambda: self.engine.execute("c1", ["true"], b"", timeout=1)):
            self.assertIn("not running", str(self.assertRaises(errors.EngineError, ask)))

    def test_the_daemon_outlives_clients_who_go_and_containers_that_end_under_them(self):
        """LXD 5.0 panicked at one in forty of the latter while clients went in another order."""
        self.running()
        daemon = self.lxd.daemon.pid
        for force in (True, False) * ROUNDS:
            self.engine.start("c1")
            self.inside("c1", "sh", "-c", "while usleep 3000; do echo a line; done > /dev/console 2>&1 &")
            goes = self.engine.console("c1")
            self.assertIn(b"a line", goes.receive() + goes.receive())
            goes.close()
            stays = self.engine.console("c1")
            reading = threading.Thread(target=self.read_to_the_end, args=(stays,))
            reading.start()
            self.engine.stop("c1", timeout=TIMEOUT, force=force)
            reading.join(TIMEOUT)
            self.assertFalse(reading.is_alive())
        self.assertEqual(daemon, self.lxd.daemon.pid)

    @staticmethod
    def read_to_the_end(console):
        with contextlib.closing(console):
            while console.receive() is not None:
                pass

    def test_events(self):
        events = self.engine.events()
        self.addCleanup(events.close)
        self.running()
        self.engine.freeze("c1")
        self.engine.unfreeze("c1")
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        told = [events.receive(TIMEOUT) for _ in range(4)]
        self.assertEqual([Change("c1", status) for status in (
            Status.RUNNING, Status.FROZEN, Status.RUNNING, Status.STOPPED)], told)
        self.assertRaises(errors.EngineTimeout, events.receive, 0.1)
        self.lxd.daemon.stop()
        try:
            self.assertRaises(errors.EngineUnavailable, events.receive, TIMEOUT)
            self.assertRaises(errors.EngineUnavailable, self.engine.events)
        finally:
            self.lxd.daemon.start()
