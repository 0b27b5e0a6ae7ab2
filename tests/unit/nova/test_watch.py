# SPDX-License-Identifier: Apache-2.0
import queue
import threading
from typing import Any

import testtools
from nova.virt import event

from containerhost import errors
from containerhost.engines.contract import Change, Status
from nova_lxd_ext.instance import states
from nova_lxd_ext.server import watch
from tests.unit.nova.guestfakes import FakeEvents, GuestEngine
from tests.waiting import await_that

TIMEOUT = 30  # s
STARTED, STOPPED, PAUSED = (event.EVENT_LIFECYCLE_STARTED, event.EVENT_LIFECYCLE_STOPPED,
                            event.EVENT_LIFECYCLE_PAUSED)


class WatchTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.patch(watch, "POLL_INTERVAL", 0.01)
        self.engine = GuestEngine()
        for name in ("c1", "c2"):
            self.engine.add(name, {"nova.uuid": f"uuid-{name}"}, Status.RUNNING)
        self.engine.add("mine", {}, Status.RUNNING)
        self.told: queue.Queue[event.LifecycleEvent] = queue.Queue()

    def watching(self, delay: float = 0.0) -> watch.Watch:
        made = watch.Watch(self.engine, states.States(self.engine), self.told.put, delay)
        self.addCleanup(made.stop)
        made.start()
        self.await_connection(1)
        return made

    def await_connection(self, number: int) -> FakeEvents:
        """The watch's ``number``-th connection, once it has looked at all containers after it was made."""
        await_that(lambda: len(self.engine.listeners) >= number and self.engine.asked[-1] != "events", "a connection")
        return self.engine.listeners[number - 1]

    def becomes(self, name: str, status: Status) -> None:
        self.engine.statuses[name] = status
        self.engine.listeners[-1].changes.put(Change(name, status))

    def assert_told(self, *expected: tuple[str, int]) -> None:
        told = [self.told.get(timeout=TIMEOUT) for _ in expected]
        self.assertEqual(list(expected), [(each.get_instance_uuid(), each.get_transition()) for each in told])

    def test_what_happens_to_novas_containers_is_told(self) -> None:
        self.watching()
        self.becomes("mine", Status.STOPPED)
        for status, transition in ((Status.STOPPED, STOPPED), (Status.RUNNING, STARTED), (Status.FROZEN, PAUSED)):
            self.becomes("c1", status)
            self.assert_told(("uuid-c1", transition))
        self.assertTrue(self.told.empty())

    def test_a_reboot_is_no_stop(self) -> None:
        self.watching(delay=600)
        self.becomes("c1", Status.STOPPED)
        self.becomes("c1", Status.RUNNING)
        self.assert_told(("uuid-c1", STARTED))
        self.assertTrue(self.told.empty())

    def test_news_that_are_not_true_any_more_are_not_told(self) -> None:
        self.watching()
        self.engine.listeners[-1].changes.put(Change("c1", Status.STOPPED))
        self.engine.listeners[-1].changes.put(Change("deleted", Status.STOPPED))
        self.becomes("c2", Status.STOPPED)
        self.assert_told(("uuid-c2", STOPPED))
        self.assertTrue(self.told.empty())

    def test_what_changed_while_the_daemon_was_away_is_told(self) -> None:
        self.watching()
        self.engine.fail["events"] = errors.EngineUnavailable("no daemon")
        self.engine.listeners[0].close()
        await_that(lambda: self.engine.asked.count("events") > 2, "tries to connect")
        self.engine.statuses["c1"] = Status.STOPPED
        del self.engine.fail["events"]
        self.await_connection(2)
        # Before any event: nothing else would wake the watch.
        self.assert_told(("uuid-c1", STOPPED))
        self.assertTrue(self.told.empty())

    def test_it_ends_in_every_state(self) -> None:
        for trouble in (False, True):
            with self.subTest(trouble=trouble):
                made = self.watching()
                if trouble:
                    self.engine.fail["events"] = errors.EngineUnavailable("no daemon")
                    self.engine.listeners[-1].close()
                made.stop()
                made.stop()
                self.assertEqual([], watchers())
                made.start()
                made.stop()
                self.assertEqual([], watchers())


def watchers() -> list[Any]:
    return [thread for thread in threading.enumerate() if thread.name == "watch"]
