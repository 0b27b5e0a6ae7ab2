# SPDX-License-Identifier: Apache-2.0
"""Announce changes to containers, wait for their guests, and record them: one change per container at a time."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.elastic.plan import Running
from containerhost.elastic.state import State, StateFile, Step
from containerhost.elastic.usage import age
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.sysfs import Host

LOG = logging.getLogger(__name__)

START_TIME = 120.0  # s that a container may take to start
SEEN_INTERVAL = 60  # s between writes of the observed state when nothing changes
BACK_OFF = 60.0  # s between two attempts of a change or a notification that failed
FAILURES = (errors.ContainerHostError, OSError)


class Changes:
    """Track announced changes of containers, and persist them so that a restarted service continues.

    :param notice: seconds that a guest has to release resources
    :param locks: the directory that all drivers of the host share: one that changes a container writes its files
        alone
    :param clock: seconds since 1970
    :param monotonic: seconds of a clock that is never set
    :ivar steps: changes that are under way, by engine and container
    :ivar done: number of operations by kind and outcome, for the metrics
    :ivar seen: state observed by the last round
    """

    def __init__(self, notices: Mapping[str, GuestNotice], notice: float, locks: Path, file: StateFile, host: Host,
                 clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._notices = notices
        self._time = notice
        self._locks = locks
        self._file = file
        self._host = host
        self._clock = clock
        self._monotonic = monotonic
        self._told: dict[str, tuple[int, int]] = {}  # pid of the first process, and generation
        self._announced: set[str] = set()  # announced by this process
        self._untold: dict[str, float] = {}  # time at which a failed notification is given up
        self._back_offs: dict[str, float] = {}  # time of the next attempt
        self._written: tuple[Any, Mapping[str, Step]] = (None, {})
        self._written_at = 0
        state = file.read()
        self.steps: dict[str, Step] = dict(state.steps) if state.boot_id == host.boot_id else {
            key: dataclasses.replace(step, deadline=None) for key, step in state.steps.items()}
        self.seen: Mapping[str, Any] = state.seen
        self.done: dict[tuple[str, str], int] = {}

    def is_ready(self) -> bool:
        """Return whether a change in progress can continue."""
        return any(self.is_over(key, step) for key, step in self.steps.items() if not self.is_backing_off(key))

    def is_backing_off(self, key: str) -> bool:
        """Return whether this failed recently."""
        return self._monotonic() < self._back_offs.get(key, 0.0)

    def back_off(self, key: str) -> None:
        """Delay the next attempt after a failure."""
        self._back_offs = {each: until for each, until in self._back_offs.items() if self._monotonic() < until}
        self._back_offs[key] = self._monotonic() + BACK_OFF

    def announce(self, container: Running, step: Step) -> bool:
        """Announce a change. Idempotent.

        :returns: whether to wait for the guest: it listens, another process changes its container, or the engine
            failed, within the time limit of guests
        """
        key, now = container.key, self._monotonic()
        deadline = now + self._time if step.deadline is None else step.deadline
        try:
            with resizing(self._locks, container.name, 0):
                awaited = self._notice(key).begin(container.name, container.document or "", step.document,
                                                  self._clock() + deadline - now)
        except errors.EngineUnavailable:
            raise
        except errors.EngineBusy:
            return True  # while another process changes the container, its size cannot change
        except errors.EngineError as error:
            LOG.warning("Container %s cannot be notified yet of its coming loss: %s", key, error)
            return now < self._untold.setdefault(key, now + self._time)
        if awaited is None:
            return False
        LOG.info("Container %s is asked to release resources, generation %d", key, awaited)
        self._announced.add(key)
        self.put(key, dataclasses.replace(step, deadline=deadline, awaited=awaited))
        return True

    def outcome(self, container: Running, step: Step) -> str | None:
        """Return the result of the wait for a guest; None while it continues. A former process's is announced again."""
        if self.is_over(container.key, step):
            return "acknowledged" if self.is_acknowledged(container.key, step) else "timed out"
        return None if container.key in self._announced or self.announce(container, step) else "unheard"

    def is_over(self, key: str, step: Step) -> bool:
        """Return whether the wait is over: the guest has acknowledged, its time has expired, or no guest listens."""
        return (step.applying or (step.deadline is not None and self._monotonic() >= step.deadline)
                or self.is_acknowledged(key, step))

    def is_acknowledged(self, key: str, step: Step) -> bool:
        return step.awaited is not None and self._notice(key).acknowledged(key.partition("/")[2]) >= step.awaited

    def put(self, key: str, step: Step) -> None:
        self.steps[key] = step
        self._write()

    def forget(self, key: str) -> None:
        """Remove a step, so that the guest is notified again of its resources."""
        self.steps.pop(key, None)
        self._announced.discard(key)
        self._untold.pop(key, None)
        self._told.pop(key, None)

    def count(self, kind: str, outcome: str) -> None:
        self.done[kind, outcome] = self.done.get((kind, outcome), 0) + 1

    def fail(self, container: Running, outcome: str) -> None:
        self.back_off(container.key)
        self.withdraw(container, outcome)

    def withdraw(self, container: Running, outcome: str) -> None:
        """Cancel a change, and notify the guest."""
        self.count("change", outcome)
        self.forget(container.key)
        self.tell(container)

    def tell(self, container: Running) -> None:
        """Write a container's resource document into it, once for each start and each change."""
        if container.document is None or container.key in self.steps or self.is_backing_off(telling(container)):
            return
        notice = self._notice(container.key)
        now = container.pid, resources.generation(resources.parse(container.document))
        if self._told.get(container.key) != now or (self._is_starting(container)
                                                    and not notice.has_document(container.name)):
            try:
                with resizing(self._locks, container.name, 0):
                    told = notice.notify(container.name, container.document)
            except errors.EngineBusy:
                return  # until the next round
            if told:
                self._told[container.key] = now
            else:
                self.back_off(telling(container))

    def _is_starting(self, container: Running) -> bool:
        """Return whether its init may still mount over the written document."""
        found = age(self._host, container.pid)
        return found is not None and found < START_TIME

    def see(self, seen: Mapping[str, Any]) -> None:
        """Record the observed state; write it to disk if sizes have changed or a minute has passed."""
        self.seen = seen
        sizes = [{key: value for key, value in each.items() if key != "used"} for each in seen["containers"]]
        if (sizes, self.steps) != self._written or seen["time"] >= self._written_at + SEEN_INTERVAL:
            self._written, self._written_at = (sizes, dict(self.steps)), seen["time"]
            self._write()

    def _write(self) -> None:
        self._file.write(State(dict(self.steps), self.seen, self._host.boot_id))

    def _notice(self, key: str) -> GuestNotice:
        return self._notices[key.partition("/")[0]]


def telling(container: Running) -> str:
    """Return the key that delays the next notification of a container, separate from that of its changes."""
    return f"{container.key} is told"
