# SPDX-License-Identifier: Apache-2.0
"""Report the present and possible partitioning of GPUs, for a terminal and for programs. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from containerhost.operator.reports.report import printable, table
from containerhost.vendors.nvidia.mig.geometry import Geometry, Placement, slice_id, slice_name
from containerhost.vendors.nvidia.mig.plan import Plan


def show(geometries: Iterable[Geometry], holders: Mapping[str, str]) -> str:
    """Return the partitioning of GPUs as text."""
    return "\n\n".join(_shown(geometry, holders) for geometry in geometries) or "NVIDIA's driver knows no GPU"


def _shown(geometry: Geometry, holders: Mapping[str, str]) -> str:
    holder = f"; held as a whole by {holders[geometry.address]}" if geometry.address in holders else ""
    head = printable(f"{geometry.address} {geometry.model}: {_mode(geometry)}{holder}")
    profiles = table(("profile", "compute slices", "MiB", "most", "free", "where"), [
        (profile.name, str(profile.slices), str(profile.memory), str(profile.most),
         "?" if profile.free is None else str(profile.free), _places(profile.placements))
        for profile in geometry.profiles])
    slices = table(("slice", "profile", "where", "owner"), [
        (one["id"], one["profile"], _places((Placement(one["start"], one["size"]),)), one["owner"] or "")
        for one in _slices(geometry, holders)])
    return "\n".join([head, *([profiles] if geometry.profiles else []), *([slices] if geometry.instances else [])])


def _mode(geometry: Geometry) -> str:
    if not geometry.profiles:
        return "cannot be cut"
    mode = f"MIG mode {'on' if geometry.enabled else 'off'}"
    if geometry.pending != geometry.enabled:
        mode += f", {'on' if geometry.pending else 'off'} after its next reset"
    return mode


def _places(placements: Iterable[Placement]) -> str:
    """Format memory slices as ranges, ``0-1 2-3``."""
    return " ".join(f"{one.start}-{one.start + one.size - 1}" if one.size > 1 else str(one.start)
                    for one in placements) or "?"


def to_dict(geometry: Geometry, holders: Mapping[str, str]) -> dict[str, Any]:
    """Return JSON values; memory in MiB, placements in memory slices."""
    return {
        "address": geometry.address, "model": geometry.model, "mig": bool(geometry.profiles),
        "enabled": geometry.enabled, "pending": geometry.pending, "owner": holders.get(geometry.address),
        "profiles": [{"name": profile.name, "id": profile.id, "slices": profile.slices, "memory": profile.memory,
                      "most": profile.most, "free": profile.free,
                      "placements": [{"start": place.start, "size": place.size} for place in profile.placements]}
                     for profile in geometry.profiles],
        "slices": _slices(geometry, holders)}


def _slices(geometry: Geometry, holders: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for instance in sorted(geometry.instances, key=lambda one: (one.placement, one.id)):
        whole = geometry.profile(instance.profile).slices
        for part in instance.parts:
            name = slice_id(geometry.address, instance.id, part.id)
            found.append({"id": name, "profile": slice_name(instance.profile, whole, part.slices),
                          "start": instance.placement.start, "size": instance.placement.size,
                          "owner": holders.get(name)})
    return found


def steps(plans: Iterable[Plan]) -> str:
    return "\n".join(line for each in plans for line in (
        [f"{each.address}:", *(f"  {step}" for step in each.steps)] if each.steps
        else [f"{each.address}: as wanted, nothing to do"])) or "the file names no GPU: nothing to do"
