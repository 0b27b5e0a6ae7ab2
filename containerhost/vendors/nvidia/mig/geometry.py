# SPDX-License-Identifier: Apache-2.0
"""Describe the present and possible partitioning of one GPU in plain records.

Terms and rules are those of NVIDIA's MIG user guide ("Concepts", "Supported MIG Profiles"): a *GPU instance* has a
share of memory and of compute slices, in whole memory slices at a *placement*; it is divided into one or more
*compute instances*, each of which is what a container gets: a slice.
"""

import dataclasses

from containerhost.errors import SpecError


@dataclasses.dataclass(frozen=True, order=True)
class Placement:
    """Locate a GPU instance on the GPU, in memory slices."""

    start: int
    size: int

    def overlaps(self, other: "Placement") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclasses.dataclass(frozen=True)
class Profile:
    """Describe a profile of GPU instances.

    :ivar slices: compute slices
    :ivar memory: MiB
    :ivar free: number that can still be created; None if the driver does not report it
    :ivar placements: possible placements; empty if the driver does not report them (a GPU that is not in MIG mode)
    """

    id: int
    name: str
    slices: int
    memory: int
    most: int
    free: int | None = None
    placements: tuple[Placement, ...] = ()


@dataclasses.dataclass(frozen=True)
class ComputeInstance:
    """Describe a compute instance of a GPU instance, which a container gets as a slice."""

    id: int
    slices: int


@dataclasses.dataclass(frozen=True)
class GpuInstance:
    id: int
    profile: str
    placement: Placement
    parts: tuple[ComputeInstance, ...] = ()


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Describe a GPU's MIG mode, its profiles and its present GPU instances.

    :ivar pending: whether it will be in MIG mode after its next reset
    """

    address: str
    model: str
    enabled: bool
    pending: bool
    profiles: tuple[Profile, ...]
    instances: tuple[GpuInstance, ...] = ()

    def profile(self, name: str) -> Profile:
        """Return the profile of this name.

        :raises SpecError: the GPU has no profile of that name
        """
        found = next((profile for profile in self.profiles if profile.name == name), None)
        if found is None:
            raise SpecError(f"GPU {self.address} ({self.model}) cannot have a slice {name}: it can have "
                            f"{', '.join(profile.name for profile in self.profiles) or 'none at all'}")
        return found

    @property
    def slices(self) -> int:
        """Return the compute slices of the whole GPU."""
        return max((profile.slices for profile in self.profiles), default=0)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Describe a wanted GPU instance."""

    profile: str
    parts: tuple[int, ...]


def slice_id(address: str, gi: int, ci: int) -> str:
    """Return the slice's id in the host's inventory."""
    return f"{address}/gi{gi}/ci{ci}"


def slice_name(profile: str, whole: int, part: int) -> str:
    """Return a slice's name in NVIDIA's tools: ``1c.3g.20gb`` for one of three compute slices of ``3g.20gb``."""
    return profile if part == whole else f"{part}c.{profile}"
