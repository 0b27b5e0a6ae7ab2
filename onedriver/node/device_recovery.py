# SPDX-License-Identifier: Apache-2.0
"""Finish or undo the interrupted changes of VMs' devices and shared memory by killed actions.

An action holds its VM's lock, so an unfinished record of a VM whose lock is free was left by a killed process. Only
records of this driver and engine are processed, not those of the other driver or of other clouds.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import SharedMemories
from containerhost.allocation.store import Consumer
from containerhost.engines.contract import ContainerState
from containerhost.errors import AllocationsUnreadable, ContainerHostError
from onedriver.errors import DriverError
from onedriver.node import vmlock
from onedriver.node.vm_ids import complain, consumer

LOG = logging.getLogger(__name__)


class DeviceRecovery:
    """Finish or undo changes to VMs' devices and shared memory that a killed action left incomplete.

    :param driver, engine: of the VMs, as the allocation records name them
    :param has_container: whether a VM has a container, or had one by this driver's own records, independent of the
        engine: the second witness
    :param state: the driver's directory
    """

    def __init__(self, driver: str, engine: str, has_container: Callable[[int], bool], allocator: DeviceAllocator,
                 memories: SharedMemories, state: Path) -> None:
        self._driver = driver
        self._engine = engine
        self._has_container = has_container
        self._allocator = allocator
        self._memories = memories
        self._state = state

    def pending(self, containers: Iterable[ContainerState]) -> tuple[int, ...]:
        """Return the ids of the VMs for which :meth:`recover` has work. Reads no device."""
        present = {state.name for state in containers}

        def exists(vm: Consumer) -> bool:
            return vm.container in present or self._may_exist(vm)

        try:
            found = {*self._allocator.reconciler.interrupted(self._driver, self._engine, exists),
                     *(vm for vm in self._memories.members() if not exists(vm))}
        except AllocationsUnreadable as error:
            LOG.error("Devices of killed actions are not recovered: %s", error)
            return ()
        return tuple(vm_id for vm_id in sorted(int(vm.uuid) for vm in found)
                     if not vmlock.is_held(self._state, vm_id))

    def _may_exist(self, vm: Consumer) -> bool:
        try:
            return self._has_container(int(vm.uuid))
        except (ContainerHostError, DriverError) as error:
            LOG.error("%s keeps its devices, because it is unknown whether it exists: %s", vm, error)
            return True

    def recover(self, containers: Iterable[ContainerState]) -> None:
        """Finish or undo pending changes, release devices of ended runs, and unmount unrecorded shared memory.

        A VM that an action is working on is skipped; an error is logged, and does not affect other VMs."""
        for vm_id in self.pending(containers):
            try:
                with vmlock.held(self._state, vm_id, 0):
                    LOG.info("An action on VM %s was killed: its changes of devices are finished or undone", vm_id)
                    vm, exists = consumer(self._driver, self._engine, vm_id), self._has_container(vm_id)
                    complain(self._allocator.reconciler.reconcile_one(vm, exists=exists))
                    if not exists:
                        self._memories.leave(vm)
            except vmlock.Busy:
                LOG.info("Another process works on VM %s", vm_id)
            except (ContainerHostError, DriverError) as error:
                LOG.error("Devices of VM %s remaining from a killed action are not released: %s", vm_id, error)
        try:
            complain(self._allocator.reconciler.reconcile_runs())
            self._memories.unmount_unrecorded()
        except ContainerHostError as error:
            LOG.error("Devices of ended runs, or shared memory without a record, stay: %s", error)
