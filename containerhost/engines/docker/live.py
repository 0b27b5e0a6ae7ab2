# SPDX-License-Identifier: Apache-2.0
"""Change cores and memory of a running container; its labels, fixed in Docker, change in the engine's record."""

from collections.abc import Mapping
from typing import NamedTuple

from containerhost import errors
from containerhost.engines.capabilities import LiveSizes, Size
from containerhost.engines.contract import Status
from containerhost.engines.docker import config
from containerhost.engines.docker.engine import DockerEngine
from containerhost.linux.idlist import id_list, id_text
from containerhost.linux.sysfs import Host


class LiveState(NamedTuple):
    """Describe a container as returned by one request.

    :ivar id: Docker's
    """

    id: str
    labels: Mapping[str, str]

    def label(self, key: str) -> str | None:
        return self.labels.get(key)


class Live:
    def __init__(self, engine: DockerEngine, host: Host | None = None) -> None:
        self._engine = engine
        self._host = host or Host()

    def read(self, name: str) -> LiveState:
        return self._state(name)[0]

    def resize(self, current: LiveState, size: Size, labels: Mapping[str, str]) -> None:
        """Set the running container's cores and memory, then its labels, so that a killed call can be repeated."""
        found, status = self._state(current.id)
        if status is not Status.RUNNING or found != current:
            raise errors.EngineConflict(f"container {current.id[:12]} was stopped or changed meanwhile, so it is not "
                                        "resized")
        missing = size.cores - id_list(self._host.text("/sys/devices/system/cpu/online"))
        if missing:
            raise errors.UnsupportedOnHost(f"container {current.id[:12]} must run on cores "
                                           f"{id_text(size.cores)}, of which {id_text(missing)} are "
                                           "offline")
        self._engine.client.update(current.id, config.live(size))
        self._engine.relabel(current.id, labels)

    def _state(self, name: str) -> tuple[LiveState, Status]:
        container, state = self._engine.own(name)
        return LiveState(container, state.labels), state.status


_: type[LiveSizes[LiveState]] = Live
