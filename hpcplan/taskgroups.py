# SPDX-License-Identifier: Apache-2.0
"""Place the members of an MPI or ML job on hosts: task groups, all or nothing.

The members are divided into groups of equal size, one group for each host of the job. A group stays
together, groups keep apart, and ranks follow the tree of the network, so that near ranks are on near hosts.

Source: P. Liu, "Convergence of HPC, Big Data and ML applications on containerized infrastructures", PhD thesis, UPC
2023, section 6.3.2, algorithms 4 (``divide``) and 5 (``score``). In algorithm 4 of the thesis a container joins the
group with the most requested so far, which would put all of them into one group; the group with the least is meant.
This project adds the selection of hosts by network and best fit; algorithm 5 applies if groups do not fit as a
whole.
"""

import bisect
import collections
import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from hpcplan import networktree
from hpcplan.errors import NoPlacement, PlanError

Resources = Mapping[str, int]
"""Amounts by name; the caller chooses names and units, the same for members and hosts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """Describe a container of the job without a host. ``rank`` counts the job's members from 0."""

    rank: int
    group: int
    request: Resources


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """Describe a host: its free resources, the network above it from the root, and the job's members on it by group.

    :ivar unusable: its free devices that members of the job cannot use, because they request none, or the host lacks
        the cores
    """

    name: str
    free: Resources
    path: tuple[str, ...] = ()
    held: Mapping[int, int] = dataclasses.field(default_factory=dict)
    unusable: int = 0


def divide(requests: Sequence[Resources], groups: int) -> list[int]:
    """Return the group of each member, from 0: algorithm 4.

    The largest member first, each joins the group with the least requested so far, where a member's size is the sum of
    its shares of what the whole job requests of each resource. Members with equal requests are then exchanged so that a
    group has successive ranks: 16 equal members in 4 groups are the ranks 0-3, 4-7, 8-11 and 12-15.

    :raises PlanError: fewer than one group, more groups than members, or a negative amount
    """
    if not 1 <= groups <= len(requests):
        raise PlanError(f"{len(requests)} members cannot be divided into {groups} groups: request 1 to {len(requests)}")
    sizes = _sizes(requests)
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank, request in enumerate(requests):
        alike.setdefault(tuple(sorted(request.items())), []).append(rank)
    loads = [(0, group) for group in range(groups)]
    result = [0] * len(requests)
    for ranks in sorted(alike.values(), key=lambda ranks: (-sizes[ranks[0]], ranks[0])):
        joined = []
        for rank in ranks:
            load, group = loads[0]
            heapq.heapreplace(loads, (load + sizes[rank], group))
            joined.append(group)
        for rank, group in zip(ranks, sorted(joined), strict=True):
            result[rank] = group
    return result


def _sizes(requests: Sequence[Resources]) -> list[int]:
    """Return the sum of each member's shares of the job's total, times a common denominator so that ties are exact."""
    totals: dict[str, int] = {}
    for request in requests:
        for name, amount in request.items():
            if amount < 0:
                raise PlanError(f"a member requests {amount} of {name}; request 0 or more")
            totals[name] = totals.get(name, 0) + amount
    weights = {name: prod(other for key, other in totals.items() if other and key != name) for name in totals}
    # A member without a request has weight 1.
    return [sum(amount * weights[name] for name, amount in request.items()) or 1 for request in requests]


def fits(free: Resources, request: Resources) -> int:
    """Return how many members with this request fit into the free resources; one if it requests nothing."""
    counts = [free.get(name, 0) // amount for name, amount in request.items() if amount > 0]
    return max(0, min(counts)) if counts else _UNBOUNDED


_UNBOUNDED = 1 << 30


def score(host: Host, group: int, remaining: Iterable[Resources]) -> int:
    """Return how well the host suits the next member of a group: algorithm 5.

    That is the number of the group's members on the host, plus those of ``remaining`` (the requests of the group's
    members that have no host, the next one among them) that fit there too, minus the number of other groups there.
    """
    return _score(host, group, _runs(remaining), {})


def _runs(requests: Iterable[Resources]) -> list[tuple[Resources, int]]:
    """Group equal consecutive requests, with their number."""
    return [(request, len(list(of))) for request, of in itertools.groupby(requests)]


def _score(host: Host, group: int, remaining: Iterable[tuple[Resources, int]], least: Resources) -> int:
    """Return algorithm 5's score.

    :param least: for each resource, the minimum request of ``remaining``, below which none fits
    """
    fitting, free = 0, dict(host.free)
    for request, count in remaining:
        if not fits(free, least):
            break
        here = min(count, fits(free, request))
        fitting += here
        _take(free, request, here)
    others = sum(1 for other, count in host.held.items() if count and other != group)
    return host.held.get(group, 0) + fitting - others


def place(members: Sequence[Member], hosts: Sequence[Host], nodes: int, *, strict: bool = False) -> dict[int, str]:
    """Return the host of each member by its rank, or raise: all or nothing.

    Groups that have a host already stay there. Each other group gets a separate host that has room for all of it:
    the nearest hosts in the network to those that the job has and to each other, of those the ones with the fewest
    unusable devices, then best fit, in the order of the tree. If there are not enough such hosts, and unless
    ``strict``, members are placed one by one on at most ``nodes`` hosts by algorithm 5, and groups share hosts. No
    host gets more than is free on it. Deterministic: the order of ``hosts`` does not matter. With equal groups,
    placing some ranks first and then the others, given the hosts of the first result, yields the same hosts.

    :param hosts: also those that hold members of the job and have no room left
    :param nodes: maximum number of hosts of the job, including those that already hold members
    :raises NoPlacement: the hosts have no room for all members; nothing is placed
    """
    groups: dict[int, list[Member]] = {}
    for member in sorted(members, key=lambda member: member.rank):
        groups.setdefault(member.group, []).append(member)
    used = sorted((host for host in hosts if any(host.held.values())), key=lambda host: networktree.order(_leaf(host)))
    unused = [host for host in hosts if not any(host.held.values())]
    limit = max(0, nodes - len(used))
    plan = _continue(groups, used)
    whole = _whole({group: total(member.request for member in of) for group, of in groups.items()
                    if group not in (plan or {})}, unused, limit, [host.path for host in used])
    if plan is not None and whole is not None:
        homes = plan | whole
        return {member.rank: homes[member.group] for member in members}
    split = None if strict else _split(groups, [*used, *_largest(unused, limit, members)])
    if split is None:
        raise NoPlacement(_refusal(groups, hosts, limit + len(used), strict))
    return split


def total(requests: Iterable[Resources]) -> dict[str, int]:
    """Return the sum of the requests."""
    result: dict[str, int] = {}
    for request in requests:
        for name, amount in request.items():
            result[name] = result.get(name, 0) + amount
    return result


def _take(free: dict[str, int], request: Resources, count: int = 1) -> None:
    for name, amount in request.items():
        free[name] = free.get(name, 0) - count * amount


def _leaf(host: Host, demand: Resources | None = None) -> networktree.Leaf:
    """Return the host for the network's tree, ordered by preference (best fit).

    Hosts with fewer unusable devices come first, so that jobs that need those find cores near them; then those with
    the least free resources afterwards, relative to the demand."""
    remain = sum((host.free.get(name, 0) - amount) / amount for name, amount in (demand or {}).items() if amount > 0)
    return networktree.Leaf(host.name, host.path, (host.unusable, remain))


def _continue(groups: Mapping[int, Sequence[Member]], used: Sequence[Host]) -> dict[int, str] | None:
    """Return the hosts of groups that already have one, or None if one lacks room for the rest of its group."""
    plan: dict[int, str] = {}
    free = {host.name: dict(host.free) for host in used}
    for group, members in groups.items():
        homes = [host for host in used if host.held.get(group)]
        if not homes:
            continue
        home = max(homes, key=lambda host: host.held[group])
        demand = total(member.request for member in members)
        if not fits(free[home.name], demand):
            return None
        _take(free[home.name], demand)
        plan[group] = home.name
    return plan


def _whole(demands: Mapping[int, dict[str, int]], unused: Sequence[Host], limit: int, beside: list[tuple[str, ...]]
           ) -> dict[int, str] | None:
    """Return a different host for each group, or None if a group cannot be placed as a whole.

    :param beside: paths of the job's present hosts
    """
    if len(demands) > limit:
        return None
    if not demands:
        return {}
    largest = {name: max(demand.get(name, 0) for demand in demands.values())
               for name in {name for demand in demands.values() for name in demand}}
    classes = [(largest, sorted(demands))]
    if sum(1 for host in unused if fits(host.free, largest)) < len(demands):
        classes = _by_demand(demands)
    plan: dict[int, str] = {}
    for demand, of in classes:
        leaves = [_leaf(host, demand) for host in unused if fits(host.free, demand)]
        if len(leaves) < len(of):
            return None
        selected = networktree.nearest(leaves, len(of), beside)
        plan |= {group: leaf.name for group, leaf in zip(of, selected, strict=True)}
        beside = [*beside, *(leaf.path for leaf in selected)]
        chosen = set(plan.values())
        unused = [host for host in unused if host.name not in chosen]
    return plan


def _by_demand(demands: Mapping[int, dict[str, int]]) -> list[tuple[dict[str, int], list[int]]]:
    """Group the groups by equal demands, largest demand first."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for group in sorted(demands):
        alike.setdefault(tuple(sorted(demands[group].items())), []).append(group)
    sizes = dict(zip(alike, _sizes([dict(key) for key in alike]), strict=True))
    return [(dict(key), alike[key]) for key in sorted(alike, key=lambda key: (-sizes[key], key))]


def _largest(unused: Sequence[Host], limit: int, members: Sequence[Member]) -> list[Host]:
    """Return the hosts with room for the most members."""
    names = {name for member in members for name in member.request}
    largest = {name: max(member.request.get(name, 0) for member in members) for name in names}
    return heapq.nsmallest(limit, unused, key=lambda host: (-fits(host.free, largest), networktree.order(_leaf(host))))


def _split(groups: Mapping[int, Sequence[Member]], hosts: Sequence[Host]) -> dict[int, str] | None:
    """Return a host for each member by algorithm 5, the group with the largest demand first, or None.

    Of equivalent hosts only the first in the tree is compared. If all remaining members are equal, the best host
    stays the best until it is full, so it gets them at once.
    """
    rooms = sorted(hosts, key=lambda host: networktree.order(_leaf(host)))
    alike: dict[Any, list[int]] = collections.defaultdict(list)
    homes: dict[int, set[int]] = collections.defaultdict(set)
    for at, host in enumerate(rooms):
        alike[_traits(host)].append(at)
        for group in host.held:
            homes[group].add(at)
    demands = {group: total(member.request for member in members) for group, members in groups.items()}
    plan: dict[int, str] = {}
    for group in itertools.chain.from_iterable(order for _, order in _by_demand(demands)):
        remaining = sorted(groups[group], key=lambda member: -sum(member.request.values()))
        runs = _runs(member.request for member in remaining)
        least = {name: min(request.get(name, 0) for request, _ in runs) for name in runs[0][0]}
        while remaining:
            request = remaining[0].request
            feasible = [at for at in {*homes[group], *(of[0] for of in alike.values() if of)}
                        if fits(rooms[at].free, request)]
            if not feasible:
                return None
            best = min(feasible, key=lambda at: (-_score(rooms[at], group, runs, least),
                                                 _leaf(rooms[at], request).cost, at))
            count = min(fits(rooms[best].free, request), len(remaining)) if len(runs) == 1 else 1
            plan |= {member.rank: rooms[best].name for member in remaining[:count]}
            del remaining[:count]
            runs[:1] = [(request, runs[0][1] - count)] if runs[0][1] > count else []
            alike[_traits(rooms[best])].remove(best)
            rooms[best] = _with_members(rooms[best], group, request, count)
            bisect.insort(alike[_traits(rooms[best])], best)
            homes[group].add(best)
    return plan


def _traits(host: Host) -> tuple[object, ...]:
    """Return everything that determines a host's rank for a group without members on it, except its position."""
    return tuple(sorted(host.free.items())), host.unusable, sum(map(bool, host.held.values()))


def _with_members(host: Host, group: int, request: Resources, count: int) -> Host:
    free = dict(host.free)
    _take(free, request, count)
    return dataclasses.replace(host, free=free, held={**host.held, group: host.held.get(group, 0) + count})


def _refusal(groups: Mapping[int, Sequence[Member]], hosts: Sequence[Host], nodes: int, strict: bool) -> str:
    members = [member for of in groups.values() for member in of]
    demand = _by_demand({group: total(member.request for member in of) for group, of in groups.items()})[0][0]
    ample = sum(1 for host in hosts if fits(host.free, demand))
    found = f"a group needs {_words(demand)}, for which {ample} of {len(hosts)} hosts have room"
    if not strict:
        request = max((member.request for member in members), key=lambda request: sum(request.values()))
        room = heapq.nlargest(nodes, (min(fits(host.free, request), len(members)) for host in hosts))
        found += (f"; a member needs {_words(request)}, and the largest {len(room)} hosts have room for {sum(room)} of "
                  f"{len(members)} members")
    return (f"{len(members)} members in {len(groups)} groups do not fit on {nodes} hosts: {found}. Ask for fewer or "
            f"smaller members or more groups, or wait until hosts are free")


def _words(resources: Resources) -> str:
    return ", ".join(f"{name}={amount}" for name, amount in sorted(resources.items())) or "nothing"
