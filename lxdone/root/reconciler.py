# SPDX-License-Identifier: Apache-2.0
"""Finish the node's work for stopped VMs after OpenNebula changed them, and restart consoles that ended.

OpenNebula sees a VM as off only when the node has finished with its disks; a VM that it ended or moved without a
script leaves nothing here.

OpenNebula may end, move or copy a VM that it sees as off or suspended, without calling a script. The node's work may
take long, so a separate process does it, and until then a stopped VM is reported as running.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from containerhost.engines.contract import Containers, ContainerState, Status
from containerhost.errors import ContainerHostError
from lxdone.disk.images import Images
from lxdone.root.root_writeback import RootWriteback
from onedriver.errors import DriverError
from onedriver.node import monitored, names, vmlock
from onedriver.node.consoles import Consoles
from onedriver.node.context import Contexts
from onedriver.node.device_recovery import DeviceRecovery
from onedriver.node.names import LABEL

LOG = logging.getLogger(__name__)
AWAY = (Status.STOPPED, Status.FROZEN)
FAILED = "reconcile_failed"  # in the VM's directory: time of the last failure
POLL_INTERVAL = 60  # s between two attempts


class Reconciler:
    """Write back disks of stopped VMs, clean up VMs that OpenNebula moved or ended, and restart dead consoles.

    :param state: the driver's directory
    :param forget: removes the remains of a VM by its id
    """

    def __init__(self, engine: Containers, writeback: RootWriteback, disks: Images, contexts: Contexts,
                 consoles: Consoles, devices: DeviceRecovery, state: Path, forget: Callable[[int], None]) -> None:
        self._engine = engine
        self._writeback = writeback
        self._disks = disks
        self._contexts = contexts
        self._consoles = consoles
        self._devices = devices
        self._state = state
        self._forget = forget

    def pending(self, containers: Iterable[ContainerState]) -> tuple[int, ...]:
        """Return the ids of the VMs that are not running and whose disks are incomplete, or still in use here."""
        return tuple(vm_id for vm_id, state in away(containers)
                     if answered(vm_id, functools.partial(self._is_pending, vm_id, state)))

    def _is_pending(self, vm_id: int, state: ContainerState) -> bool:
        return self._writeback.is_unsaved(self._home(vm_id)) or (
            state.status is Status.STOPPED and bool(self._disks.present(vm_id)))

    def over(self, containers: Iterable[ContainerState]) -> tuple[int, ...]:
        """Return the ids of the VMs that are not running and that OpenNebula ended or moved."""
        return tuple(vm_id for vm_id, _ in away(containers)
                     if answered(vm_id, functools.partial(self._writeback.is_over, self._home(vm_id))))

    def abandoned(self, containers: Iterable[ContainerState]) -> tuple[int, ...]:
        """Return the ids of the VMs that OpenNebula ended and whose containers were removed by others."""
        present = {state.name for state in containers}
        found = (directory.name.removeprefix(names.PREFIX) for directory in self._state.glob(f"{names.PREFIX}*")
                 if directory.name not in present)
        return tuple(vm_id for vm_id in map(int, filter(str.isdecimal, found))
                     if answered(vm_id, functools.partial(self._writeback.is_ended, self._home(vm_id))))

    def orphans(self) -> tuple[ContainerState, ...]:
        """Return the containers that run, or have unsaved data, without their VM's directory, for the administrator."""
        return tuple(state for state in self._engine.containers() if state.labels.get(LABEL, "").isdecimal()
                     and self._writeback.is_ended(home := self._home(int(state.labels[LABEL])))
                     and (state.status is Status.RUNNING or self._writeback.is_unsaved(home)))

    def without_console(self, containers: Iterable[ContainerState]) -> tuple[str, ...]:
        """Return the containers whose consoles have died."""
        return self._consoles.dead({state.name for state in containers if state.status is Status.RUNNING})

    def reconcile(self) -> None:
        """Finish the work for stopped, suspended and ended VMs, in few processes at once, and restart consoles."""
        containers = self._engine.containers()
        self.remove_ended(containers)
        for name in self.without_console(containers):
            self._revive(name)
        with vmlock.worker(self._state) as is_worker:
            for vm_id in self.pending(containers) if is_worker else ():
                self._alone(vm_id, "does not run, but the node is not done with its disks", self._save)

    def _revive(self, name: str) -> None:
        try:
            with vmlock.held(self._state, int(self._engine.container(name).labels[LABEL]), 0):
                self._consoles.revive(name)
        except (ContainerHostError, DriverError) as error:
            LOG.error("%s runs without its console: %s", name, error)

    def _save(self, vm_id: int) -> None:
        state = self._container_away(vm_id)
        if state is None or not self._is_pending(vm_id, state):
            return
        if state.status is Status.FROZEN:
            self._disks.hold_all(vm_id)
        self._writeback.save(state.name, self._home(vm_id))
        if state.status is Status.STOPPED:
            self._disks.release_all(vm_id)

    def remove_ended(self, containers: Iterable[ContainerState] | None = None) -> None:
        """Remove the remains of ended VMs, and free devices of killed actions."""
        seen = tuple(self._engine.containers() if containers is None else containers)
        for vm_id in self.abandoned(seen):
            self._alone(vm_id, "is over, but something of it is left here", self._remove_abandoned)
        for vm_id in self.over(seen):
            self._alone(vm_id, "does not run, but something of it is left here", self._forget_over)
        self._devices.recover(seen)

    def monitored(self) -> tuple[ContainerState, ...]:
        """Return the containers for monitoring, and start :meth:`reconcile` in the background if it has work.

        VMs with unsaved disks are reported as running, and ended ones are left out.
        """
        found = self._engine.containers()
        over = set(self.over(found))
        unsaved = set(self.pending(found)) - over
        if self.has_work(found, over.union(self.abandoned(found)), unsaved):
            monitored.start_reconciling("lxdone")
        busy, gone = set(map(str, unsaved)), set(map(str, over))
        return tuple(dataclasses.replace(state, status=Status.RUNNING) if state.labels.get(LABEL) in busy else state
                     for state in found if state.labels.get(LABEL) not in gone)

    def has_work(self, containers: Collection[ContainerState], over: Iterable[int], unsaved: Iterable[int]) -> bool:
        """Return whether another :meth:`reconcile` should run now, for ended, abandoned or unsaved VMs."""
        return (any(map(self.is_due, over)) or (any(map(self.is_due, unsaved)) and vmlock.may_work(self._state))
                or bool(self.without_console(containers)) or bool(self._devices.pending(containers)))

    def _forget_over(self, vm_id: int) -> None:
        if self._container_away(vm_id) is not None and self._writeback.is_over(self._home(vm_id)):
            LOG.info("VM %s has ended or moved: its remains are removed", vm_id)
            self._forget(vm_id)

    def _remove_abandoned(self, vm_id: int) -> None:
        """Remove an abandoned VM, after confirmation by two witnesses.

        LXD has no container of the VM, and its directory is gone from a datastore that is there."""
        if not self._engine.exists(names.name(vm_id)) and self._writeback.is_ended(self._home(vm_id)):
            LOG.info("VM %s has ended and has no container: its remains are removed", vm_id)
            self._forget(vm_id)

    def _container_away(self, vm_id: int) -> ContainerState | None:
        """Return the container of a VM that is not running; None if it is."""
        state = self._engine.container(names.name(vm_id))
        return state if state.status in AWAY and state.labels.get(LABEL) == str(vm_id) else None

    def _alone(self, vm_id: int, trouble: str, act: Callable[[int], None]) -> None:
        """Act on a VM without a running action; a failure is logged."""
        try:
            with vmlock.held(self._state, vm_id, 0):
                act(vm_id)
        except vmlock.Busy:
            LOG.info("Another process works on VM %s", vm_id)
        except (ContainerHostError, DriverError) as error:
            LOG.error("VM %s %s: %s", vm_id, trouble, error)
            if self._home(vm_id).is_dir():
                (self._home(vm_id) / FAILED).touch()

    def is_due(self, vm_id: int) -> bool:
        """Return whether to try now: no process is working on the VM, and the last failure is not recent."""
        file = self._home(vm_id) / FAILED
        return not vmlock.is_held(self._state, vm_id) and (
            not file.exists() or not 0 <= time.time() - file.stat().st_mtime < POLL_INTERVAL)

    def _home(self, vm_id: int) -> Path:
        return self._contexts.home(names.name(vm_id))


def away(containers: Iterable[ContainerState]) -> Iterator[tuple[int, ContainerState]]:
    """Yield the containers of VMs that are not running, with the VMs' ids."""
    for state in containers:
        number = state.labels.get(LABEL, "")
        if state.status in AWAY and number.isdecimal() and state.name == names.name(int(number)):
            yield int(number), state


def answered(vm_id: int, question: Callable[[], bool]) -> bool:
    """Evaluate a condition of one VM; a failure does not affect the others."""
    try:
        return question()
    except DriverError as error:
        LOG.error("VM %s: %s", vm_id, error)
        return False
