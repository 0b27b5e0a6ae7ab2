# SPDX-License-Identifier: Apache-2.0
"""Notify a running container of its resources; before it loses some, wait until its guest acknowledges.

The wait is only for a guest that listens, which has acknowledged its current generation. A guest's files determine
only the duration of the wait, and a container whose files cannot be written is resized nevertheless.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence

from containerhost import errors
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 0.1  # s between two polls
NOT_TOLD = "Container %s cannot be notified of its resources: %s"
LARGEST = 1 << 53  # largest accepted generation; Python refuses to print integers of more than 4300 digits
FAULTS = "faults.json"  # {"schema": 1, "faults": ["0000:3b:00.0: tainted by the operator: ...", ...]}


class GuestNotice:
    """Notify a container's guest of its resources and of their loss, and wait until it acknowledges a loss.

    :param timeout: seconds that a listening guest has to release resources
    :param clock: seconds since 1970
    :param monotonic: seconds of a clock that is never set
    """

    def __init__(self, files: GuestFiles, timeout: float, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._files = files
        self._timeout = timeout
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep

    def announce(self, name: str, before: str | None, coming: str) -> bool:
        """Announce a loss to the container, and wait for its guest.

        :param before, coming: its documents (:mod:`containerhost.guest.resources`)
        :returns: whether a loss was announced: :meth:`notify` withdraws it
        """
        if before is None or not resources.shrinks(before, coming):
            return False
        awaited: int | None = None
        deadline = self._monotonic() + self._timeout
        while True:
            try:
                if awaited is None:
                    awaited = self.begin(name, before, coming, self._clock() + self._timeout)
                    if awaited is None:
                        return False
                    deadline = self._monotonic() + self._timeout
                if self.acknowledged(name) >= awaited:
                    return True
            except errors.EngineUnavailable:
                raise
            except errors.EngineError as error:
                LOG.info("Container %s is notified again of its coming loss: %s", name, error)
            if self._monotonic() >= deadline:
                break
            self._sleep(POLL_INTERVAL)
        LOG.warning("Container %s did not acknowledge generation %s within %g s", name, awaited, self._timeout)
        return awaited is not None

    def begin(self, name: str, before: str, coming: str, until: float) -> int | None:
        """Announce a loss to the container without waiting.

        :param until: seconds since 1970
        :returns: the generation that its guest must acknowledge; None if it does not listen, or cannot be notified
        :raises EngineError: the engine failed, so this is unknown. The tenant's actions are not failures of the
            engine, and a container that is not running has no guest
        """
        awaited = resources.generation(resources.parse(coming))
        try:
            earlier = self._acknowledged(name)
            if earlier < resources.generation(resources.parse(before)):
                return None
            if earlier >= awaited:  # acknowledges an announcement that was withdrawn, not this one
                awaited = earlier + 1
                coming = resources.renumbered(coming, awaited)
            self._write(name, resources.announcing(before, coming, int(until)))
        except errors.EngineBusy:
            raise  # another operation uses the container: nothing is known of its guest
        except (errors.HostActionFailed, errors.EngineConflict, errors.EngineNotFound) as error:
            LOG.warning(NOT_TOLD, name, error)
            return None
        return awaited

    def notify(self, name: str, document: str) -> bool:
        """Write the document into the container."""
        try:
            self._write(name, document)
        except errors.EngineUnavailable:
            raise
        except (errors.EngineError, errors.HostActionFailed) as error:
            LOG.warning(NOT_TOLD, name, error)
            return False
        return True

    def _write(self, name: str, document: str) -> None:
        self._files.write(name, resources.FILE, document.encode() + b"\n")

    def has_document(self, name: str) -> bool:
        """Return whether the container has a document: while it starts, something may be mounted over it."""
        try:
            return self._files.read(name, resources.FILE) is not None
        except errors.EngineUnavailable:
            raise
        except (errors.EngineError, errors.HostActionFailed):
            return True  # the tenant replaced the file

    def tell_faults(self, name: str, faults: Sequence[str]) -> bool:
        """Write the faults of the container's devices into it. Idempotent.

        Without faults, only an earlier notice is overwritten.

        :param faults: of :func:`containerhost.allocation.faults.of`
        :returns: whether the container is up to date
        """
        wanted = json.dumps({"schema": resources.SCHEMA, "faults": list(faults)}).encode()
        try:
            if self._files.read(name, FAULTS) not in (wanted, *([] if faults else [None])):
                self._files.write(name, FAULTS, wanted)
        except (errors.EngineError, errors.HostActionFailed) as error:
            LOG.info("Container %s cannot be notified of its devices' faults: %s", name, error)
            return False
        return True

    def acknowledged(self, name: str) -> int:
        """Return the generation that the guest has acknowledged; -1 if no guest listens."""
        try:
            return self._acknowledged(name)
        except errors.EngineUnavailable:
            raise
        except (errors.EngineError, errors.HostActionFailed) as error:
            LOG.debug("The answer of container %s cannot be read: %s", name, error)
            return -1

    def _acknowledged(self, name: str) -> int:
        found = resources.parse(self._files.read(name, resources.ACKNOWLEDGED))
        number = resources.generation(found) if found else -1
        return number if number <= LARGEST else -1
