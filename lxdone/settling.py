"""VMs that stop by themselves: OpenNebula sees one off only when the node is done with its disks.

OpenNebula may end, move or copy a VM that it sees off, and asks no script before. What the node has to do first may
take long, so that a process of its own does it, and until then the VM is told to run.
"""

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from containerhost.engines import ContainerState, Metrics, ServerInfo, Status
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.errors import ContainerHostError
from lxdone import vmlock
from lxdone.disks import Disks
from lxdone.rootsaves import RootSaves
from onedriver.errors import DriverError
from onedriver.node import names
from onedriver.node.context import Contexts
from onedriver.node.names import LABEL

LOG = logging.getLogger(__name__)


class Settler:
    """:param state: the driver's folder
    """

    def __init__(self, engine: LxdEngine, saves: RootSaves, disks: Disks, contexts: Contexts, state: Path) -> None:
        self._engine = engine
        self._saves = saves
        self._disks = disks
        self._contexts = contexts
        self._state = state

    def unsettled(self, containers: Iterable[ContainerState]) -> tuple[int, ...]:
        """Ids of the VMs whose containers stopped and whose disks the node still uses."""
        stopped = [int(state.labels[LABEL]) for state in containers
                   if state.status is Status.STOPPED and LABEL in state.labels]
        return tuple(vm_id for vm_id in stopped if self._disks.is_in_use(vm_id)
                     or self._saves.is_marked(self._contexts.home(names.name(vm_id))))

    def settle(self) -> None:
        """Do with each of them what an action that stops a VM does."""
        for vm_id in self.unsettled(self._engine.containers()):
            name = names.name(vm_id)
            try:
                with vmlock.held(self._state, vm_id, 0):
                    if self._engine.container(name).status is Status.STOPPED:
                        self._saves.save(name, self._contexts.home(name))
                        self._disks.release(vm_id)
            except (ContainerHostError, DriverError) as error:
                LOG.error("VM %s is off, but the node is not done with its disks: %s", vm_id, error)


class Settling:
    """The engine, as OpenNebula is to see it.

    :param unsettled: ids of the VMs with which the node is not done, of these containers
    """

    name = LxdEngine.name

    def __init__(self, engine: LxdEngine, unsettled: Callable[[Iterable[ContainerState]], tuple[int, ...]]) -> None:
        self._engine = engine
        self._unsettled = unsettled

    def server(self) -> ServerInfo:
        return self._engine.server()

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        return self._engine.measured()

    def containers(self) -> tuple[ContainerState, ...]:
        found = self._engine.containers()
        busy = set(map(str, self._unsettled(found)))
        if busy:
            # Nobody waits for it; a second one beside it finds the VMs locked and leaves them.
            subprocess.Popen([sys.executable, "-m", "lxdone", "settle"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        return tuple(dataclasses.replace(state, status=Status.RUNNING) if state.labels.get(LABEL) in busy else state
                     for state in found)
