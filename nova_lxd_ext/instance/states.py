# SPDX-License-Identifier: Apache-2.0
"""Find nova's containers and their states, for one server or for the whole host.

Nova's periodic tasks query every server of the host in turn. They allow an answer that is a few seconds old
(``use_cache``), so together they cost one request to the engine.
"""

import threading
import time
from collections.abc import Callable, Mapping

from nova import exception, objects
from nova.compute import power_state
from nova.virt.hardware import InstanceInfo
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import ContainerState, Engine, Status
from nova_lxd_ext.instance import labels

LOG = logging.getLogger(__name__)

# Seconds; nova's most frequent periodic task runs every minute.
SNAPSHOT_AGE = 5.0

POWER_STATES: Mapping[Status, int] = {
    Status.RUNNING: power_state.RUNNING,
    Status.STOPPED: power_state.SHUTDOWN,
    # Nova's pause and suspend both freeze a container in memory.
    Status.FROZEN: power_state.PAUSED,
    Status.STARTING: power_state.NOSTATE,
    Status.STOPPING: power_state.RUNNING,
    Status.ERROR: power_state.CRASHED,
}


class States:
    """Find the containers of nova's servers and read their states, cached briefly where nova allows it.

    :param clock: monotonic clock in seconds
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: Mapping[str, ContainerState] = {}
        self._taken = -SNAPSHOT_AGE
        self._changed = 0.0

    def all(self) -> tuple[ContainerState, ...]:
        """Return nova's current containers, without those set aside while their server is rescued (one request)."""
        return tuple(state for state in self._fresh().values() if labels.server_of(state) is None)

    def aside(self) -> Mapping[str, ContainerState]:
        """Return the containers set aside by the name of their server."""
        return {name: state for state in self._fresh().values() if (name := labels.server_of(state))}

    def uuids(self) -> list[str]:
        """Return the uuids of the servers that have a container here (one request)."""
        return [uuid for state in self.all() if (uuid := labels.uuid(state.labels))]

    def find(self, instance: objects.Instance, use_cache: bool = False) -> ContainerState | None:
        """Return the server's container, or None; containers of that name without a server are ignored."""
        state = self._cached(instance.name) if use_cache else self.lookup(instance.name)
        return state if state is not None and labels.uuid(state.labels) == instance.uuid else None

    def aside_of(self, instance: objects.Instance) -> ContainerState | None:
        """Return the server's container that was set aside; None if there is none."""
        state = self.lookup(labels.aside(instance))
        mine = state is not None and labels.uuid(state.labels) == instance.uuid
        return state if state is not None and mine and labels.server_of(state) == instance.name else None

    def is_foreign(self, instance: objects.Instance) -> bool:
        """Return whether the container with the server's name belongs to others, so that it must not be changed."""
        state = self.lookup(instance.name)
        if state is None or labels.uuid(state.labels) == instance.uuid:
            return False
        LOG.warning("Container %s belongs to %s: it is not changed", state.name,
                    labels.uuid(state.labels) or "an unknown owner", instance=instance)
        return True

    def require(self, instance: objects.Instance, use_cache: bool = False) -> ContainerState:
        """Return the server's container.

        :raises InstanceNotFound: the server has no container here
        """
        state = self.find(instance, use_cache)
        if state is None:
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        return state

    def info(self, instance: objects.Instance, use_cache: bool = False) -> InstanceInfo:
        return InstanceInfo(state=POWER_STATES[self.require(instance, use_cache).status])

    def power(self, instance: objects.Instance, use_cache: bool = False) -> InstanceInfo:
        """Return the server's power state for nova's records; no state if the engine does not report it.

        Nova reads it after a boot and before it records the server's host: on an error no one would remove the
        container.
        """
        try:
            return self.info(instance, use_cache)
        except errors.EngineError as error:
            LOG.warning("The server's state is unknown: %s", error, instance=instance)
            return InstanceInfo(state=power_state.NOSTATE)

    def relabel(self, state: ContainerState, changes: Mapping[str, str | None]) -> None:
        """Set labels of a container; None removes one. Idempotent."""
        if found := {name: text for name, text in changes.items() if state.labels.get(name) != text}:
            self._engine.relabel(state.name, found)

    def changed(self) -> None:
        """Drop cached answers after a change of a container."""
        self._changed = self._clock()

    def lookup(self, name: str) -> ContainerState | None:
        """Return a container from the engine; None if it has none of that name."""
        try:
            return self._engine.container(name)
        except errors.EngineNotFound:
            return None

    def _cached(self, name: str) -> ContainerState | None:
        with self._lock:  # one request serves all waiting threads
            if self._taken > self._changed and self._clock() - self._taken < SNAPSHOT_AGE:
                return self._snapshot.get(name)
            return self._take().get(name)

    def _fresh(self) -> Mapping[str, ContainerState]:
        with self._lock:
            return self._take()

    def _take(self) -> Mapping[str, ContainerState]:
        asked = self._clock()
        self._snapshot = {state.name: state for state in self._engine.containers() if labels.uuid(state.labels)}
        self._taken = asked
        return self._snapshot
