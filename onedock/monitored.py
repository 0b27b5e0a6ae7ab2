# SPDX-License-Identifier: Apache-2.0
"""Let the rounds of monitoring recover devices that killed actions left."""

import sys

from containerhost.engines import ContainerState, Metrics, ServerInfo
from containerhost.engines.docker.engine import DockerEngine
from containerhost.linux.run import detached
from onedriver.node.device_recovery import DeviceRecovery


class MonitoredEngine:
    name = DockerEngine.name

    def __init__(self, engine: DockerEngine, devices: DeviceRecovery) -> None:
        self._engine = engine
        self._devices = devices

    def server(self) -> ServerInfo:
        return self._engine.server()

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        return self._engine.measured()

    def containers(self) -> tuple[ContainerState, ...]:
        found = self._engine.containers()
        if self._devices.pending(found):
            # Cleaning takes long; a second process beside it finds the VMs locked and leaves them.
            detached([sys.executable, "-m", "onedock", "reconcile"])
        return found
