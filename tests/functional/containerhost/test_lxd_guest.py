# SPDX-License-Identifier: Apache-2.0
"""A container's console, and what is heard of it: events."""

import contextlib
import threading

from containerhost import errors
from containerhost.engines.contract import Change, Status
from tests import levels
from tests.functional.containerhost.base import LxdTestCase

TIMEOUT = 60  # s
ROUNDS = levels.budget(gate=2, exhaustive=6)


class TestGuest(LxdTestCase):
    def test_what_does_not_run_has_no_console(self):
        self.engine.create(self.spec())
        self.assertIn("not running", str(self.assertRaises(errors.EngineError, self.engine.console, "c1")))

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
