# SPDX-License-Identifier: Apache-2.0
"""Let the rounds of monitoring recover devices that killed actions left."""

from containerhost.engines.contract import ContainerState
from containerhost.engines.docker.engine import DockerEngine
from onedriver.node import monitored
from onedriver.node.device_recovery import DeviceRecovery


class MonitoredEngine(monitored.MonitoredEngine):
    def __init__(self, engine: DockerEngine, devices: DeviceRecovery) -> None:
        super().__init__("onedock", engine)
        self._devices = devices

    def containers(self) -> tuple[ContainerState, ...]:
        found = self._engine.containers()
        if self._devices.pending(found):
            self.start_reconciling()
        return found
