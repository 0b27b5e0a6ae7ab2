# SPDX-License-Identifier: Apache-2.0
"""Plan the steps that partition a GPU as wanted, and no others. Pure.

The present geometry is kept as far as possible: allocated instances always, others if the rest still fits. The
search is exhaustive; a GPU has at most seven instances.
"""

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from containerhost.errors import DeviceHeld, SpecError
from containerhost.vendors.nvidia.mig.geometry import (
    ComputeInstance,
    Geometry,
    GpuInstance,
    Piece,
    Placement,
    slice_id,
    slice_name,
)


@dataclasses.dataclass(frozen=True)
class SetMode:
    enabled: bool

    def __str__(self) -> str:
        return f"turn MIG mode {'on' if self.enabled else 'off'}"


@dataclasses.dataclass(frozen=True)
class RemovePart:
    """Describe the step that destroys a compute instance, which is a slice."""

    gi: int
    ci: int
    slices: int
    name: str

    def __str__(self) -> str:
        return f"remove slice gi{self.gi}/ci{self.ci} ({self.name})"


@dataclasses.dataclass(frozen=True)
class Remove:
    """Describe the step that destroys a GPU instance without compute instances."""

    gi: int
    profile: str
    placement: Placement

    def __str__(self) -> str:
        return f"remove GPU instance gi{self.gi} ({self.profile} at {self.placement.start})"


@dataclasses.dataclass(frozen=True)
class Add:
    """Describe the step that creates a GPU instance and its compute instances.

    :ivar placement: None leaves it to the driver
    """

    profile: str
    placement: Placement | None
    parts: tuple[int, ...]

    def __str__(self) -> str:
        where = f" at {self.placement.start}" if self.placement else ""
        cut = "" if len(self.parts) == 1 else f", cut in {len(self.parts)} ({', '.join(f'{n}c' for n in self.parts)})"
        return f"make GPU instance {self.profile}{where}{cut}"


@dataclasses.dataclass(frozen=True)
class AddPart:
    gi: int
    slices: int
    name: str

    def __str__(self) -> str:
        return f"make slice {self.name} in gi{self.gi}"


Step = SetMode | RemovePart | Remove | Add | AddPart


@dataclasses.dataclass(frozen=True)
class Plan:
    """List the steps that partition one GPU as wanted."""

    address: str
    steps: tuple[Step, ...]

    @property
    def removed(self) -> tuple[str, ...]:
        """Return the ids of the slices that are removed."""
        return tuple(slice_id(self.address, step.gi, step.ci) for step in self.steps if isinstance(step, RemovePart))


def plan(geometry: Geometry, wanted: Sequence[Piece], held: Collection[str]) -> Plan:
    """Return the steps that partition a GPU as wanted, and change nothing else.

    :param held: ids of the GPU and its slices that are allocated
    :raises DeviceHeld: a part that must change is allocated
    :raises SpecError: the wanted pieces do not fit together
    """
    if geometry.enabled != geometry.pending:
        raise SpecError(f"GPU {geometry.address} turns MIG mode {'on' if geometry.pending else 'off'} at its next "
                        "reset: reset it (nvidia-smi --gpu-reset) or restart the host first")
    found = Plan(geometry.address, tuple(_steps(geometry, wanted, held)))
    if found.steps and geometry.address in held:
        raise DeviceHeld(f"GPU {geometry.address} is allocated as a whole, and cannot be partitioned: see "
                         "`containerhost list`")
    return found


def _steps(geometry: Geometry, wanted: Sequence[Piece], held: Collection[str]) -> Iterator[Step]:
    if geometry.enabled:
        kept, places = _arranged(geometry, wanted, held)
        yield from _removals(geometry, kept, held)
        yield from _additions(geometry, kept)
        yield from (Add(piece.profile, placement, piece.parts) for piece, placement in places)
        if not wanted:
            yield SetMode(False)
    elif wanted:
        yield SetMode(True)
        # Placements are known only with MIG mode on; all profiles fit if the largest is created first.
        for piece in sorted(wanted, key=lambda one: -geometry.profile(one.profile).slices):
            yield Add(piece.profile, _only_place(geometry, piece), piece.parts)


def _removals(geometry: Geometry, kept: Mapping[int, Piece], held: Collection[str]) -> Iterator[Step]:
    for instance in geometry.instances:
        going = _surplus(geometry, instance, kept[instance.id], held) if instance.id in kept else instance.parts
        for part in going:
            yield RemovePart(instance.id, part.id, part.slices, _name(geometry, instance.profile, part.slices))
        if instance.id not in kept:
            yield Remove(instance.id, instance.profile, instance.placement)


def _additions(geometry: Geometry, kept: Mapping[int, Piece]) -> Iterator[Step]:
    for instance in geometry.instances:
        if instance.id in kept:
            present = collections.Counter(part.slices for part in instance.parts)
            for slices in (collections.Counter(kept[instance.id].parts) - present).elements():
                yield AddPart(instance.id, slices, _name(geometry, instance.profile, slices))


def _only_place(geometry: Geometry, piece: Piece) -> Placement | None:
    placements = geometry.profile(piece.profile).placements
    return placements[0] if len(placements) == 1 else None


def _name(geometry: Geometry, profile: str, slices: int) -> str:
    return slice_name(profile, geometry.profile(profile).slices, slices)


def _surplus(geometry: Geometry, instance: GpuInstance, piece: Piece, held: Collection[str]
             ) -> list[ComputeInstance]:
    """Return the surplus compute instances of a kept GPU instance, never an allocated one."""
    wanted = collections.Counter(piece.parts)
    found = []
    for part in sorted(instance.parts, key=lambda one: slice_id(geometry.address, instance.id, one.id) not in held):
        if wanted[part.slices] > 0:
            wanted[part.slices] -= 1
        else:
            found.append(part)
    return found


def _arranged(geometry: Geometry, wanted: Sequence[Piece], held: Collection[str]
              ) -> tuple[dict[int, Piece], list[tuple[Piece, Placement]]]:
    """Return which instances to keep as which pieces, and where to create the others, removing the fewest.

    :raises DeviceHeld, SpecError: there is no such arrangement
    """
    pinned = [one for one in geometry.instances if _held_parts(geometry, one, held)]
    movable = [one for one in geometry.instances if one not in pinned]
    matched, rest = _match(geometry, pinned, wanted, held)
    for one in pinned:
        if one.id not in matched:
            ids = ", ".join(slice_id(geometry.address, one.id, part.id) for part in _held_parts(geometry, one, held))
            raise DeviceHeld(f"GPU {geometry.address}: {ids} would be removed, but is allocated: see `containerhost "
                             f"list`; keep {one.profile} in the file, or free it first")
    for going in range(len(movable) + 1):
        for gone in itertools.combinations(movable, going):
            staying, others = _match(geometry, [one for one in movable if one not in gone], rest, held)
            if len(staying) < len(movable) - going:
                continue
            taken = [one.placement for one in geometry.instances if one.id in matched | staying]
            places = _places(geometry, others, taken)
            if places is not None:
                return matched | staying, places
    raise SpecError(f"GPU {geometry.address} ({geometry.model}): "
                    f"{', '.join(piece.profile for piece in wanted)} do not fit together"
                    + (f" around the allocated slices ({', '.join(one.profile for one in pinned)})" if pinned else "")
                    + "; `containerhost mig` shows where each profile can be")


def _held_parts(geometry: Geometry, instance: GpuInstance, held: Collection[str]) -> list[ComputeInstance]:
    return [part for part in instance.parts if slice_id(geometry.address, instance.id, part.id) in held]


def _match(geometry: Geometry, instances: Sequence[GpuInstance], pieces: Sequence[Piece], held: Collection[str]
           ) -> tuple[dict[int, Piece], list[Piece]]:
    """Match instances with pieces: those with the same parts first, then those that need other parts."""
    left = list(pieces)
    found: dict[int, Piece] = {}
    for exactly in (True, False):
        for instance in instances:
            present = collections.Counter(part.slices for part in instance.parts)
            kept = collections.Counter(part.slices for part in _held_parts(geometry, instance, held))
            for piece in left if instance.id not in found else ():
                parts = collections.Counter(piece.parts)
                if piece.profile == instance.profile and kept <= parts and (parts == present or not exactly):
                    found[instance.id] = piece
                    left.remove(piece)
                    break
    return found, left


def _places(geometry: Geometry, pieces: Sequence[Piece], taken: Sequence[Placement]
            ) -> list[tuple[Piece, Placement]] | None:
    """Return a placement for each in the order of creation; None if there is no solution."""
    order = sorted(pieces, key=lambda piece: -max((place.size for place in
                                                   geometry.profile(piece.profile).placements), default=0))
    return _placed(geometry, order, list(taken))


def _placed(geometry: Geometry, pieces: Sequence[Piece], taken: list[Placement]
            ) -> list[tuple[Piece, Placement]] | None:
    if not pieces:
        return []
    for place in sorted(geometry.profile(pieces[0].profile).placements):
        if not any(place.overlaps(other) for other in taken):
            rest = _placed(geometry, pieces[1:], [*taken, place])
            if rest is not None:
                return [(pieces[0], place), *rest]
    return None
