# SPDX-License-Identifier: Apache-2.0
"""Choose which cores each opted-in container has, for a number of cores each. Pure.

Who has cores keeps them as far as it may; further ones come from the node that it is on, and hardware threads of one
core together. No two containers share a core, unless there are fewer than the least of all.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Cores = frozenset[int]


class Share(NamedTuple):
    """:ivar size: how many cores it is to have
    :ivar allowed: those that it may have
    :ivar present: those that it has
    """

    name: str
    size: int
    allowed: Cores
    present: Cores


def choose(shares: Sequence[Share], hardware: Sequence[tuple[int, Cores]], least: Mapping[str, int]
           ) -> dict[str, Cores]:
    """Return the cores of each.

    :param hardware: the hardware cores of the host with their NUMA nodes, each as its threads
    :param least: cores below which a container shares some rather than having fewer
    """
    place = {cpu: (node, min(core)) for node, core in hardware for cpu in core}
    chosen: dict[str, Cores] = {}
    taken: set[int] = set()
    for share in shares:
        kept = _kept(share, place, taken)
        taken |= kept
        chosen[share.name] = kept
    for share in sorted(shares, key=lambda share: (len(share.allowed), share.name)):
        free = share.allowed - taken
        more = _nearest(chosen[share.name], free, share.size - len(chosen[share.name]), place)
        taken |= more
        chosen[share.name] |= more
    users = dict.fromkeys(taken, 1)
    for share in shares:
        short = least[share.name] - len(chosen[share.name])
        others = sorted(share.allowed - chosen[share.name], key=lambda cpu: (users.get(cpu, 0), cpu))[:max(0, short)]
        for cpu in others:
            users[cpu] = users.get(cpu, 0) + 1
        chosen[share.name] |= frozenset(others)
    return chosen


def _kept(share: Share, place: Mapping[int, tuple[int, int]], taken: set[int]) -> Cores:
    """Return those of its cores that it keeps: most of one node, whole hardware cores."""
    mine = (share.present & share.allowed) - taken
    on_node: dict[int, int] = {}
    for cpu in mine:
        on_node[_at(cpu, place)[0]] = on_node.get(_at(cpu, place)[0], 0) + 1
    ordered = sorted(mine, key=lambda cpu: (-on_node[_at(cpu, place)[0]], *_at(cpu, place), cpu))
    return frozenset(ordered[:share.size])


def _nearest(own: Cores, free: Cores, count: int, place: Mapping[int, tuple[int, int]]) -> Cores:
    """Return free cores: threads of its own hardware cores first, then of its node, whole ones before parts."""
    nodes, cores = {_at(cpu, place)[0] for cpu in own}, {_at(cpu, place) for cpu in own}
    size: dict[tuple[int, int], int] = {}
    for cpu in free:
        size[_at(cpu, place)] = size.get(_at(cpu, place), 0) + 1
    room = {node: sum(1 for cpu in free if _at(cpu, place)[0] == node) for node, _ in size}
    ordered = sorted(free, key=lambda cpu: (
        _at(cpu, place) not in cores, _at(cpu, place)[0] not in nodes, -room[_at(cpu, place)[0]],
        -size[_at(cpu, place)], *_at(cpu, place), cpu))
    return frozenset(ordered[:max(0, count)])


def _at(cpu: int, place: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    return place.get(cpu, (-1, cpu))
