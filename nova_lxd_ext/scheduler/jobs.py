# SPDX-License-Identifier: Apache-2.0
"""Read the task groups of a job from a request to nova-scheduler.

The tenant creates a server group for the job and gives scheduler hints:

    ``task_groups``   number of groups of the job's servers, each on a separate host
    ``task_members``  number of servers of the job; not needed if one request creates all of them
                      (``--min 16 --max 16``)
    ``task_rank``     the server's rank, from 0, if the servers are created in turn, in the order of their ranks
    ``task_avoid``    the server replaces the one of its rank, on another host than this one: a ``hostId`` of the API,
                      or its first 12 digits, or a name

Flavors have no key for this: the size of a job belongs to the job, and tenants cannot create flavors. Nova's API
accepts any hint (``additionalProperties`` of its schema), so hints are validated here, and the server's fault has
the reason.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from nova import exception, objects, quota
from nova import utils as nova_utils
from nova.scheduler import utils

from hpcplan import taskgroups
from hpcplan.errors import PlanError

GROUPS, MEMBERS, RANK, AVOID = "task_groups", "task_members", "task_rank", "task_avoid"
HOST = re.compile(r"[A-Za-z0-9._-]{1,255}")
LEAST_DIGITS = 12
REQUEST: taskgroups.Resources = {"servers": 1}
"""Resources of one server of the job: all have one flavor, so hosts are measured in how many of them they can hold."""

MOST_MEMBERS = 8192  # placement takes linear time: about 1 s
LARGE = 256  # members; smaller jobs take milliseconds, so their quota is not checked
QUOTAS = ("instances", "server_group_members")
_EARLIER = -1  # a group unknown to the request: its servers exist already


@dataclasses.dataclass(frozen=True)
class Job:
    """Hold the job's unscheduled servers, and how many others of the job each host has, by group.

    :ivar rank: of the server to schedule now, the lowest of the pending ones
    """

    members: int
    groups: int
    rank: int
    pending: Sequence[taskgroups.Member]
    held: Mapping[str, Mapping[int, int]]
    claimed: bool
    strict: bool


@functools.lru_cache(maxsize=64)
def divide(members: int, groups: int) -> tuple[int, ...]:
    """Return the group of each rank."""
    return tuple(taskgroups.divide([REQUEST] * members, groups))


def is_requested(spec: objects.RequestSpec) -> bool:
    """Return whether the request has one of the hints."""
    return any(spec.get_scheduler_hint(hint) is not None for hint in (GROUPS, MEMBERS, RANK))


def is_move(spec: objects.RequestSpec) -> bool:
    """Return whether the server already exists: nova then restricts the request to the server's cell.

    It does so only for migration, evacuation and unshelving (nova/conductor, ``requested_destination.cell``)."""
    destination = spec.requested_destination if "requested_destination" in spec else None
    return destination is not None and "cell" in destination


def is_replacement(spec: objects.RequestSpec) -> bool:
    """Return whether the server replaces the one of its rank, which nova no longer has."""
    return spec.get_scheduler_hint(AVOID) is not None


def avoids(spec: objects.RequestSpec, host: str) -> bool:
    """Return whether a replacement must not go to a host.

    :raises PlanError: the hint is not a host, or the others contradict the request or the server group
    """
    members, groups, _ = numbers(spec)
    _server_group(spec, members, groups)
    avoided = spec.get_scheduler_hint(AVOID)
    if not isinstance(avoided, str) or not HOST.fullmatch(avoided):
        raise PlanError(f"scheduler hint {AVOID}={avoided!r} is not a host: give a server's hostId, or 12 of its "
                        "digits")
    return avoided == host or (
        len(avoided) >= LEAST_DIGITS and nova_utils.generate_hostid(host, spec.project_id).startswith(avoided))


def replaced_rank(spec: objects.RequestSpec, server: str) -> int | None:
    """Return the rank of a server added to the server group after those of the job; None if unknown."""
    try:
        return numbers(objects.RequestSpec.get_by_instance_uuid(spec._context, server))[2]
    except (exception.RequestSpecNotFound, PlanError):
        return None


def read(spec: objects.RequestSpec) -> Job | None:
    """Return the job of a new server; None if it has no task groups, or all of its servers have hosts.

    :raises PlanError: the hints contradict themselves, the server group or the request, with the reason for the
        tenant
    """
    if not is_requested(spec):
        return None
    members, groups, rank = numbers(spec)
    group = _server_group(spec, members, groups)
    strict = group.policy == "anti-affinity"
    if members == spec.num_instances:
        return _of_one_request(spec, group, members, groups, strict)
    return _one_by_one(spec, group, members, groups, rank, strict)


def require_few(spec: objects.RequestSpec) -> None:
    """Refuse a job with more servers than its project's quota before listing them.

    Nova's API has checked only those of the request.

    :raises PlanError: the job is too large, or the hints are wrong
    """
    members, _, _ = numbers(spec)
    if members > max(LARGE, spec.num_instances):
        found = quota.QUOTAS.get_project_quotas(spec._context, spec.project_id, usages=False)
        for name in QUOTAS:
            if 0 <= found[name]["limit"] < members:
                raise PlanError(f"{MEMBERS}={members} is more than the {found[name]['limit']} that the project's quota "
                                f"{name} allows: request fewer servers, or a larger quota")


def numbers(spec: objects.RequestSpec) -> tuple[int, int, int]:
    """Return the number of servers and of groups, and the rank from the hints.

    :raises PlanError: they contradict each other or the request
    """
    groups = _number(spec, GROUPS, 1)
    if groups is None:
        raise PlanError(f"scheduler hint {GROUPS} is missing: it sets into how many groups the servers are divided")
    members = _number(spec, MEMBERS, 1) or spec.num_instances
    rank = _number(spec, RANK, 0)
    if groups > members:
        raise PlanError(f"{GROUPS}={groups} is more than the job's {members} servers: request 1 to {members} groups")
    if members == spec.num_instances:
        if rank:
            raise PlanError(f"{RANK}={rank}, but this request creates all {members} servers: remove {RANK}")
    elif spec.num_instances > 1:
        raise PlanError(f"the request creates {spec.num_instances} of {MEMBERS}={members} servers: create all in one "
                        f"request, or each separately with {RANK}")
    elif rank is None:
        raise PlanError(f"the request creates one of {MEMBERS}={members} servers without its rank: give {RANK}, "
                        f"0 to {members - 1}")
    elif rank >= members:
        raise PlanError(f"{RANK}={rank} is not below {MEMBERS}={members}: ranks count from 0")
    return members, groups, rank or 0


def _number(spec: objects.RequestSpec, hint: str, least: int) -> int | None:
    value = spec.get_scheduler_hint(hint)
    if value is None:
        return None
    if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) <= 6):
        raise PlanError(f"scheduler hint {hint}={value!r} is not a number: give one from {least} to {MOST_MEMBERS}")
    if not least <= int(value) <= MOST_MEMBERS:
        raise PlanError(f"scheduler hint {hint}={value} is not from {least} to {MOST_MEMBERS}")
    return int(value)


def _server_group(spec: objects.RequestSpec, members: int, groups: int) -> objects.InstanceGroup:
    group = spec.instance_group
    if group is None:
        raise PlanError(f"scheduler hint {GROUPS} needs a server group, by which nova finds the job's other servers: "
                        f"create one with policy soft-anti-affinity and give its id as hint group")
    if "project_id" in group and group.project_id != spec.project_id:  # nova accepts any group whose id is known
        raise PlanError(f"server group {group.uuid} belongs to another project: create one for the job")
    largest = -(-members // groups)
    if group.policy == "affinity" and groups > 1:
        raise PlanError(f"{GROUPS}={groups}, but the server group's policy affinity puts all servers on one host: use "
                        f"soft-anti-affinity, or {GROUPS}=1")
    most = (group.rules or {}).get("max_server_per_host", 1)
    if group.policy == "anti-affinity" and most < largest:
        raise PlanError(f"{members} servers in {groups} groups are {largest} on a host, but the server group's policy "
                        f"anti-affinity allows {most}: set its rule max_server_per_host={largest}, or use "
                        f"soft-anti-affinity")
    return group


def _members(members: int, groups: int, first: int) -> list[taskgroups.Member]:
    divided = divide(members, groups)
    return [taskgroups.Member(rank, divided[rank], REQUEST) for rank in range(first, members)]


def _of_one_request(spec: objects.RequestSpec, group: objects.InstanceGroup, members: int, groups: int, strict: bool
                    ) -> Job | None:
    """Return the job of servers of one request.

    Nova adds the host of each server of the request to ``group.hosts`` before it schedules the next one; before the
    first, those are the hosts of other servers of the group.
    """
    position = len(group.hosts)
    own = group.members[-members:]
    if position and own and own[0] == spec.instance_uuid:
        raise PlanError(f"the server group already has servers, on {position} hosts: create a server group for each "
                        "job")
    if position >= members:
        return None
    divided = _members(members, groups, 0)
    held: dict[str, collections.Counter[int]] = {}
    for member, host in zip(divided, group.hosts, strict=False):
        held.setdefault(host, collections.Counter())[member.group] += 1
    return Job(members, groups, position, divided[position:], held, position > 0, strict)


def _one_by_one(spec: objects.RequestSpec, group: objects.InstanceGroup, members: int, groups: int, rank: int,
                strict: bool) -> Job:
    """Return the job of servers that were requested separately.

    Nova lists a group's members in the order of their creation. Its view of other hosts may be older than their last
    servers (``HostState.instances``), so the hosts of the group's servers are read from the database.
    """
    pending = _members(members, groups, rank)
    first = divide(members, groups).index(pending[0].group)
    made = group.members.index(spec.instance_uuid) if spec.instance_uuid in group.members else len(group.members)
    if made < rank:
        raise PlanError(f"{RANK}={rank}, but the server group has {made} servers before this one: create the job's "
                        f"servers in the order of their ranks")
    if not rank and group.hosts:
        raise PlanError(f"the server group already has servers, on {len(group.hosts)} hosts: create a server group for "
                        f"each job")
    mates = group.members[made - (rank - first):made]
    homes = hosts_of(spec, group, mates) if mates else set()
    held = {host: {_EARLIER: 1} for host in group.hosts} | {host: {pending[0].group: 1} for host in homes}
    return Job(members, groups, rank, pending, held, False, strict)


def hosts_of(spec: objects.RequestSpec, group: objects.InstanceGroup, servers: Sequence[str]) -> set[str]:
    """Return the hosts of these servers, from the database of every cell."""
    asked = objects.InstanceGroup(spec._context, uuid=group.uuid, members=list(servers))
    return set(utils._get_instance_group_hosts_all_cells(spec._context, asked))
