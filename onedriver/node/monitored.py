# SPDX-License-Identifier: Apache-2.0
"""Pass on to monitoring what the engine answers; its rounds start the driver's ``reconcile`` where there is work."""

import sys
from collections.abc import Callable, Mapping

from containerhost.engines.contract import Containers, ContainerState, Metrics, ServerInfo
from containerhost.linux.run import detached


class MonitoredEngine:
    """Report an engine's containers to monitoring, and start the driver's ``reconcile`` where it has work.

    :param driver: whose command ``reconcile`` is started
    :param has_work: returns whether it has something to do, given all containers
    """

    def __init__(self, driver: str, engine: Containers,
                 has_work: Callable[[tuple[ContainerState, ...]], object] = lambda containers: False) -> None:
        self.name = engine.name
        self._driver = driver
        self._engine = engine
        self._has_work = has_work

    def server(self) -> ServerInfo:
        return self._engine.server()

    def containers(self) -> tuple[ContainerState, ...]:
        """Return the containers as OpenNebula is to see them, and start reconciling where that has work."""
        found = self._engine.containers()
        if self._has_work(found):
            self.start_reconciling()
        return found

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        return self._engine.measured()

    def disks(self, name: str) -> Mapping[str, int] | None:
        return self._engine.disks(name)

    def start_reconciling(self) -> None:
        """Start a background process, as cleaning takes long; a second one finds the VMs locked and leaves them."""
        detached([sys.executable, "-m", self._driver, "reconcile"])
