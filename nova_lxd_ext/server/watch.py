# SPDX-License-Identifier: Apache-2.0
"""Notify nova immediately of state changes of its containers, before its next periodic task.

A container that its guest shuts down must become SHUTOFF, but not one that it reboots, which LXD reports as a stop
and a start. So a container counts as stopped only after a delay.
"""

import threading
import time
from collections.abc import Callable, Mapping

from nova.virt import event
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Change, Engine, Events, Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.states import States

LOG = logging.getLogger(__name__)

LIFECYCLE_DELAY = 3.0  # s for which a container is stopped before nova is notified; a restart takes less
POLL_INTERVAL = 1.0  # s between two attempts to connect
END_TIMEOUT = 10.0  # s for the thread to end

TRANSITIONS: Mapping[Status, int] = {
    Status.RUNNING: event.EVENT_LIFECYCLE_STARTED,
    Status.STOPPED: event.EVENT_LIFECYCLE_STOPPED,
    Status.FROZEN: event.EVENT_LIFECYCLE_PAUSED,
}


class Watch:
    """Listen in a thread to the engine's events, and emit nova's lifecycle events for servers.

    :param emit: called with nova's event
    :param delay: seconds by which a stop is delayed
    """

    def __init__(self, engine: Engine, states: States, emit: Callable[[event.LifecycleEvent], None],
                 delay: float = LIFECYCLE_DELAY) -> None:
        self._engine = engine
        self._states = states
        self._emit = emit
        self._delay = delay
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._events: Events | None = None
        self._known: dict[str, Status] | None = None
        self._due: dict[str, tuple[Status, float]] = {}

    def start(self) -> None:
        if self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and its reports."""
        if self._thread is None:
            return
        self._ending.set()
        if self._events is not None:
            self._events.close()
        self._thread.join(END_TIMEOUT)
        self._thread = None

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._events = self._engine.events()
                self._catch_up()
                self._listen(self._events)
            except errors.ContainerHostError as error:
                if not self._ending.is_set():
                    LOG.warning("Nova is not notified of changes of containers until the daemon is back: %s", error)
                    self._ending.wait(POLL_INTERVAL)
            finally:
                if self._events is not None:
                    self._events.close()

    def _catch_up(self) -> None:
        """Report changes since the last connection."""
        found = {state.name: state.status for state in self._states.all()}
        if self._known is not None:
            for name, status in found.items():
                if self._known.get(name) is not status:
                    self._note(Change(name, status))
        self._known = found

    def _listen(self, events: Events) -> None:
        """Receive changes and report them.

        :raises EngineUnavailable: the daemon has stopped, or the watch ends
        """
        while not self._ending.is_set():
            try:
                self._note(events.receive(self._next_due()))
            except errors.EngineTimeout:
                LOG.debug("No further changes of containers")
            self._notify_due()

    def _note(self, change: Change) -> None:
        wait = self._delay if change.status is Status.STOPPED else 0.0
        self._due[change.name] = change.status, time.monotonic() + wait

    def _next_due(self) -> float | None:
        """Return the seconds until the next report is due; None if there is none."""
        moments = [moment for _, moment in self._due.values()]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _notify_due(self) -> None:
        now = time.monotonic()
        for name, (status, moment) in tuple(self._due.items()):
            if moment <= now:
                del self._due[name]
                self._notify(name, status)

    def _notify(self, name: str, status: Status) -> None:
        state = self._states.lookup(name)
        uuid = labels.uuid(state.labels) if state else None
        if state is None or uuid is None or state.status is not status or status not in TRANSITIONS:
            return
        if self._known is not None:
            self._known[name] = status
        self._states.changed()
        self._emit(event.LifecycleEvent(uuid, TRANSITIONS[status]))
