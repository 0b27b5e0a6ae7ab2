# SPDX-License-Identifier: Apache-2.0
"""Wake idle threads of nova's services when there is something to do, instead of letting each look many times a second.

A cloud in one process has some eighty of them. They took a fifth of a test's processor time, and a message waited up to
50 ms for its receiver.
"""

import threading
import time
from typing import Any

import fixtures
from futurist import _thread
from oslo_messaging._drivers import impl_fake

IDLE = 0.5  # s after which a thread polls; a wake-up may reach another one of its pool


class WakeUps(fixtures.Fixture):
    def _setUp(self) -> None:
        messages = Messages()
        for name, replacement in (
                ("futurist._thread.ThreadWorker.stop", _stop),
                ("futurist._thread.ThreadWorker._wait_for_work", _wait_for_work),
                ("oslo_messaging._drivers.impl_fake.time", messages),
                ("oslo_messaging._drivers.impl_fake.FakeExchange.deliver_message",
                 messages.after(impl_fake.FakeExchange.deliver_message)),
                ("oslo_messaging._drivers.impl_fake.FakeListener.stop",
                 messages.after(impl_fake.FakeListener.stop))):
            self.useFixture(fixtures.MonkeyPatch(name, replacement))


class Nothing:
    """Work that is done at once."""

    def run(self) -> None: ...


def _stop(worker: _thread.ThreadWorker) -> None:
    worker.should_stop = True
    worker.work_queue.put(Nothing())


def _wait_for_work(worker: _thread.ThreadWorker, original: Any = _thread.ThreadWorker._wait_for_work) -> Any:
    worker.MAX_IDLE_FOR = IDLE  # nova's fixtures set that of the class
    return original(worker)


class Messages:
    """The module ``time`` of the message bus in memory: its sleep ends with the next message to anybody."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._seen = threading.local()

    def sleep(self, seconds: float) -> None:
        with self._changed:
            if getattr(self._seen, "count", None) == self._count:
                self._changed.wait(IDLE)
            self._seen.count = self._count

    def after(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            with self._changed:
                self._count += 1
                self._changed.notify_all()
            return result
        return call
