# SPDX-License-Identifier: Apache-2.0
"""Parse the operator's file into the wanted GPU instances. Pure.

::

    0000:3b:00.0: [1g.5gb, 1g.5gb, 2g.10gb, 3g.20gb]
    0000:3c:00.0: [1c.3g.20gb, 2c.3g.20gb, 4g.20gb]   # two slices of one GPU instance
    0000:3d:00.0: []                                  # not cut: the whole GPU
"""

from collections.abc import Mapping, Sequence
from typing import Any

from containerhost.devices import migprofile
from containerhost.errors import SpecError
from containerhost.vendors.nvidia.mig.geometry import Geometry, Piece

MOST = 64  # slices in a list; a GPU has at most 7


def lists(content: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the profiles of each GPU.

    :raises SpecError: a value is not a list of profiles
    """
    return {address: _profiles(address, value) for address, value in content.items()}


def _profiles(address: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST:
        raise SpecError(f"GPU {address}: {value!r} is not a list of profiles such as [1g.5gb, 2g.10gb]; an empty list "
                        "leaves the GPU whole")
    for name in value:
        if not isinstance(name, str) or not migprofile.PATTERN.fullmatch(name):
            raise SpecError(f"GPU {address}: {name!r} is not a profile of a slice, such as 1g.5gb or 1c.3g.20gb")
    return tuple(value)


def pieces(geometry: Geometry, names: Sequence[str]) -> tuple[Piece, ...]:
    """Return the GPU instances of a list of profiles.

    Slices that are parts of a GPU instance (``1c.…``) are assigned to the first one with room.

    :raises SpecError: the GPU has no such profile, or no room for all
    """
    found: list[tuple[str, list[int]]] = []
    for name in names:
        match = migprofile.PATTERN.fullmatch(name)
        if match is None:
            raise SpecError(f"{name!r} is not a profile of a slice")
        whole = geometry.profile(match["whole"])
        part = int(match["part"] or whole.slices)
        if part > whole.slices:
            raise SpecError(f"GPU {geometry.address}: {name} would be {part} of {whole.slices} compute slices")
        place = next((parts for profile, parts in found
                      if profile == whole.name and sum(parts) + part <= whole.slices), None)
        if place is None:
            found.append((whole.name, [part]))
        else:
            place.append(part)
    _require_room(geometry, [profile for profile, _ in found])
    return tuple(Piece(profile, tuple(sorted(parts))) for profile, parts in found)


def _require_room(geometry: Geometry, names: Sequence[str]) -> None:
    """Refuse pieces that exceed the GPU in any placement; the plan, or the driver, detects other conflicts."""
    needed = sum(geometry.profile(name).slices for name in names)
    if needed > geometry.slices:
        raise SpecError(f"GPU {geometry.address} ({geometry.model}) has {geometry.slices} compute slices; "
                        f"{', '.join(names)} need {needed}")
    for name in sorted(set(names)):
        if names.count(name) > geometry.profile(name).most:
            raise SpecError(f"GPU {geometry.address} ({geometry.model}) can have {geometry.profile(name).most} GPU "
                            f"instances {name}, not {names.count(name)}")
