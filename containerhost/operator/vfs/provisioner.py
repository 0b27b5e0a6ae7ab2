# SPDX-License-Identifier: Apache-2.0
"""Provision virtual functions: check everything first, apply under a lock, and undo on an error.

Meanwhile the allocation records assign the cards that change to the operator, so that no driver allocates their
functions.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceHeld, HostActionFailed
from containerhost.inventory.scan import Inventory
from containerhost.linux.lock import FileLock
from containerhost.operator.vfs.plan import Change, functions_of, plan
from containerhost.privileged import PCI, write
from containerhost.rollback import Rollback

OPERATOR = Consumer("containerhost", "host", "vfs-apply", "vfs-apply")
LOCK_TIMEOUT = 1.0  # seconds


class Provisioner:
    """Give the host's network cards their wanted numbers of virtual functions, on all cards or on none.

    :param inventory: scans the host; called for each operation
    """

    def __init__(self, directory: Path, inventory: Callable[[], Inventory]) -> None:
        self._store = AllocationStore(directory)
        self._lock = FileLock(directory / ".vfs", LOCK_TIMEOUT)
        self._inventory = inventory

    def plans(self, counts: Mapping[str, int]) -> tuple[Change, ...]:
        """Return the planned changes. Changes nothing.

        :raises DeviceNotFound, DeviceHeld, SpecError: as :func:`containerhost.operator.vfs.plan.plan`
        """
        held = {name for name, record in self._store.records().items() if record.consumer != OPERATOR}
        return plan(self._inventory(), counts, held)

    def apply(self, counts: Mapping[str, int]) -> tuple[Change, ...]:
        """Give each card its number of functions. Idempotent.

        :raises DeviceNotFound, DeviceHeld, SpecError: nothing was changed
        :raises HostActionFailed: a step failed, and those before it were undone
        """
        with self._lock.held(lambda told: DeviceHeld(f"virtual functions of this host are being changed: {told}")):
            try:
                plans = self.plans(counts)
                changes = [change for change in plans if change.before != change.after]
                inventory = self._inventory()
                self._store.claim([inventory.get(change.address) for change in changes], OPERATOR, inventory.related)
                with Rollback("providing virtual functions") as undo:
                    for change in changes:
                        undo.on_error(f"virtual functions of {change.address}", self._set, change.address,
                                      change.before)
                        self._set(change.address, change.after)
                    self._require_as_wanted(changes)
            finally:  # includes claims of an interrupted command
                for device_id in self._store.held_by(OPERATOR):
                    self._store.release(device_id, OPERATOR)
            return plans

    def _set(self, address: str, count: int) -> None:
        """Set a physical function's number of virtual functions, first to 0 as the kernel requires."""
        for number in dict.fromkeys((0, count)):
            write(f"{PCI}/devices/{address}/sriov_numvfs", str(number))

    def _require_as_wanted(self, changes: list[Change]) -> None:
        inventory = self._inventory()
        for change in changes:
            there = len(functions_of(inventory, change.address))
            if there != change.after:
                raise HostActionFailed(f"card {change.address} has {there} virtual functions, not {change.after}, "
                                       "although the kernel accepted the number; see its log")
