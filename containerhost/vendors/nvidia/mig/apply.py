# SPDX-License-Identifier: Apache-2.0
"""Partition GPUs: check everything first, apply under a lock, and undo on an error.

Meanwhile the allocation records assign the changing devices to the operator, so that no driver allocates them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceHeld, DeviceNotFound, HostActionFailed, SpecError
from containerhost.inventory.scan import Inventory
from containerhost.linux.lock import FileLock
from containerhost.rollback import Rollback
from containerhost.vendors.nvidia.mig import wanted
from containerhost.vendors.nvidia.mig.geometry import Geometry, Piece, Placement
from containerhost.vendors.nvidia.mig.library import Library
from containerhost.vendors.nvidia.mig.plan import Add, AddPart, Plan, Remove, RemovePart, SetMode, plan

OPERATOR = Consumer("containerhost", "host", "mig-apply", "mig-apply")
LOCK_TIMEOUT = 1.0  # seconds


class Cutter:
    """Partition the host's NVIDIA GPUs into MIG slices, all as wanted or none.

    :param inventory: scans the host; called for each operation
    """

    def __init__(self, library: Library, directory: Path, inventory: Callable[[], Inventory]) -> None:
        self._library = library
        self._store = AllocationStore(directory)
        self._lock = FileLock(directory / ".mig", LOCK_TIMEOUT)
        self._inventory = inventory

    def plans(self, lists: Mapping[str, Sequence[str]]) -> tuple[Plan, ...]:
        """Return the plan for each GPU of the file, in its order.

        :raises DeviceNotFound, DeviceHeld, SpecError: a GPU cannot be partitioned that way; nothing was changed
        """
        known = {geometry.address: geometry for geometry in self._library.read()}
        held = self._held()
        return tuple(plan(geometry, pieces, held) for geometry, pieces in _wanted(known, lists))

    def _held(self) -> frozenset[str]:
        """Return the ids of allocated GPUs and slices; a GPU with an allocated share counts as a whole."""
        return frozenset(name.partition("/share")[0] for name, record in self._store.records().items()
                         if record.consumer != OPERATOR)

    def apply(self, lists: Mapping[str, Sequence[str]]) -> tuple[Plan, ...]:
        """Partition the GPUs as listed.

        :raises DeviceNotFound, DeviceHeld, SpecError: nothing was changed
        :raises HostActionFailed: a step failed, and those before it were undone
        """
        with self._lock.held(lambda told: DeviceHeld(f"GPUs of this host are being cut already: {told}")):
            try:
                plans = self.plans(lists)
                changes = [each for each in plans if each.steps]
                for each in changes:
                    self._claim(each)
                with Rollback("repartitioning GPUs") as undo:
                    for each in changes:
                        self._carry_out(each, undo)
                    self._require_as_wanted(changes, lists)
            finally:  # includes claims of an interrupted command
                for device_id in self._store.held_by(OPERATOR):
                    self._store.release(device_id, OPERATOR)
            return plans

    def _claim(self, each: Plan) -> None:
        """Claim the whole GPU if none of its remaining parts is allocated; otherwise the parts to remove.

        :raises DeviceHeld: one of them was allocated meanwhile
        """
        inventory = self._inventory()
        try:
            self._store.claim([inventory.get(each.address)], OPERATOR, inventory.related)
        except DeviceHeld:
            if each.address in self._held():
                raise
            there = {device.id: device for device in inventory.by_address(each.address)}
            parts = [there[name] for name in each.removed if name in there]
            self._store.claim(parts, OPERATOR, lambda device: ())

    def _carry_out(self, each: Plan, undo: Rollback) -> None:
        address, library = each.address, self._library
        now: dict[int, int] = {}  # numbers of restored instances

        def part_back(gi: int, slices: int) -> None:
            library.create_part(address, now.get(gi, gi), slices)

        def back(gi: int, profile: str, placement: Placement) -> None:
            now[gi] = library.create(address, library.geometry(address).profile(profile), placement)

        for step in each.steps:
            match step:
                case SetMode():
                    library.set_mode(address, step.enabled)
                    undo.on_error(f"MIG mode of {address}", library.set_mode, address, not step.enabled)
                case RemovePart():
                    library.destroy_part(address, step.gi, step.ci)
                    undo.on_error(f"slice {step.name} of {address}", part_back, step.gi, step.slices)
                case Remove():
                    library.destroy(address, step.gi)
                    undo.on_error(f"GPU instance {step.profile} of {address}", back, step.gi, step.profile,
                                  step.placement)
                case Add():
                    gi = library.create(address, library.geometry(address).profile(step.profile), step.placement)
                    undo.on_error(f"new GPU instance {gi} of {address}", library.destroy, address, gi)
                    for slices in step.parts:
                        self._add_part(address, gi, slices, undo)
                case AddPart():
                    self._add_part(address, step.gi, step.slices, undo)

    def _add_part(self, address: str, gi: int, slices: int, undo: Rollback) -> None:
        ci = self._library.create_part(address, gi, slices)
        undo.on_error(f"new slice gi{gi}/ci{ci} of {address}", self._library.destroy_part, address, gi, ci)

    def _require_as_wanted(self, changes: Sequence[Plan], lists: Mapping[str, Sequence[str]]) -> None:
        for each in changes:
            geometry = self._library.geometry(each.address)
            left = plan(geometry, wanted.pieces(geometry, lists[each.address]), ())
            if left.steps:
                raise HostActionFailed(f"GPU {each.address} was partitioned, but not as wanted; missing: "
                                       f"{', '.join(map(str, left.steps))}")


def _wanted(known: Mapping[str, Geometry], lists: Mapping[str, Sequence[str]]
            ) -> Iterator[tuple[Geometry, tuple[Piece, ...]]]:
    for address, names in lists.items():
        if address not in known:
            raise DeviceNotFound(f"NVIDIA's driver does not know GPU {address}: it knows {', '.join(known) or 'none'}")
        geometry = known[address]
        if names and not geometry.profiles:
            raise SpecError(f"GPU {address} ({geometry.model}) cannot be partitioned into slices")
        yield geometry, wanted.pieces(geometry, names)
