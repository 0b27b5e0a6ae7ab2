# SPDX-License-Identifier: Apache-2.0
"""Schedule the servers of an MPI or ML job as task groups: together, apart from others, near, all or none.

``nova_lxd_ext.scheduler.jobs`` describes the tenant's hints.

Nova schedules the servers of one request one after the other, and each gets only hosts that the filters left for the
one before it. So the filter passes the hosts of all pending servers, and the weigher prefers that of the next
server. Both compute the same placement each time; no state is kept between calls, which run in several threads.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova import exception, objects
from nova.scheduler import filters, utils, weights
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from hpcplan import taskgroups
from hpcplan.errors import NoPlacement, PlanError
from nova_lxd_ext.conf import CONF
from nova_lxd_ext.scheduler import capacity, jobs

LOG = logging.getLogger(__name__)

_TRIES = 8  # selections of hosts before the devices of all hosts are counted


class TaskGroupFilter(filters.BaseHostFilter):
    """Pass the hosts of the job's pending servers in the placement; must be the last of ``enabled_filters``.

    A later filter could remove hosts of the placement."""

    def filter_all(self, filter_obj_list: Iterable[HostState], spec_obj: objects.RequestSpec) -> list[HostState]:
        """Return the hosts of the placement, or all hosts if the request has no task groups.

        :raises exception.NoValidHost: the hints are wrong, or not all servers fit; the server's fault has the reason.
            Raised only before the first server has a host, because nova then has no allocations to remove.
        """
        hosts = list(filter_obj_list)
        if not jobs.is_requested(spec_obj) or utils.request_is_rebuild(spec_obj) or jobs.is_move(spec_obj):
            return hosts
        try:
            if jobs.is_replacement(spec_obj):
                return [host for host in hosts if not jobs.avoids(spec_obj, host.host)]
            jobs.require_few(spec_obj)
            if not _may_fit(hosts, spec_obj):
                raise PlanError("the hosts lack room for all these servers and task groups, so none is started")
            job = jobs.read(spec_obj)
        except PlanError as error:
            if _any_placed(hosts, spec_obj):
                return []
            raise exception.NoValidHost(reason=str(error)) from error
        if job is None:
            return hosts
        try:
            plan = placement(hosts, spec_obj, job)
        except NoPlacement as error:
            LOG.warning("Task groups of server group %s: %s", spec_obj.instance_group.uuid, error,
                        instance_uuid=spec_obj.instance_uuid)
            if job.claimed:
                return []
            # The amount of free resources is not disclosed to tenants; it is logged.
            raise exception.NoValidHost(
                reason=f"no hosts have room for {len(job.pending)} servers of the job with {job.groups} task groups at "
                       f"once, so none is started") from error
        # A request for one server needs no alternates, which nova would try if the build fails on the selected host.
        selected = {plan[job.rank]} if spec_obj.num_instances == 1 else set(plan.values())
        return [host for host in hosts if host.host in selected]


class TaskGroupWeigher(weights.BaseHostWeigher):
    """Prefer the host of the placement; for a server that moves or replaces one, its group's host (algorithm 5)."""

    def weight_multiplier(self, host_state: HostState) -> float:
        """Return the weight's multiplier, which a host aggregate can override by a property of the option's name."""
        return float(utils.get_weight_multiplier(host_state, "task_group_weight_multiplier",
                                                 CONF.lxd.task_group_weight_multiplier))

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec) -> list[float]:
        """Return the weights in the order of the hosts."""
        hosts, spec = [weighed.obj for weighed in weighed_obj_list], weight_properties
        if not jobs.is_requested(spec) or utils.request_is_rebuild(spec):
            return [0.0] * len(hosts)
        if jobs.is_move(spec) or jobs.is_replacement(spec):
            return _moved_scores(hosts, spec)
        try:
            job = jobs.read(spec)
            selected = placement(hosts, spec, job)[job.rank] if job else None
        except PlanError as error:
            LOG.debug("Task groups: %s", error, instance_uuid=spec.instance_uuid)
            selected = None
        return [float(host.host == selected) for host in hosts]

    def _weigh_object(self, obj: HostState, weight_properties: objects.RequestSpec) -> float:
        return float(self.weigh_objects([weights.WeighedHost(obj, 0.0)], weight_properties)[0])


def placement(hosts: Sequence[HostState], spec: objects.RequestSpec, job: jobs.Job) -> dict[int, str]:
    """Return the host of each pending server by rank.

    :raises NoPlacement: not all of them fit
    """
    placed = {host: sum(held.values()) if job.claimed else 0 for host, held in job.held.items()}
    room = {host.host: capacity.upper(host, spec, placed.get(host.host, 0)) for host in hosts}
    paths = _paths(hosts, CONF.lxd.network_tree_keys)
    unusable = {host.host: capacity.unusable_devices(host, spec, room[host.host]) for host in hosts}
    if not capacity.needs_devices_or_numa(spec):
        return _place(room, paths, unusable, job)
    # Exact counts are expensive: count them for selected hosts, a few times, and for all only if the job still does not
    # fit.
    for _ in range(_TRIES):
        plan = _place(room, paths, unusable, job)
        needed = collections.Counter(plan.values())
        found = {host.host: capacity.exact(host, spec, needed[host.host]) for host in hosts if host.host in needed}
        less = {name: count for name, count in found.items() if count < needed[name]}
        if not less:
            return plan
        room |= less
    most = len(job.pending)
    for host in hosts:
        count = capacity.exact(host, spec, min(most, room[host.host]))
        room[host.host] = count if count < most else room[host.host]
    return _place(room, paths, unusable, job)


def _may_fit(hosts: Sequence[HostState], spec: objects.RequestSpec) -> bool:
    """Return whether a large job may fit by the number of hosts and servers, before listing its servers."""
    members, groups, rank = jobs.numbers(spec)
    group = spec.instance_group
    if members <= jobs.LARGE or group is None:
        return True
    if group.policy == "anti-affinity" and groups > len({host.host for host in hosts}.union(group.hosts)):
        return False
    pending = members - (len(group.hosts) if members == spec.num_instances else rank)
    return sum(capacity.upper(host, spec, 0) for host in hosts) >= pending


def _any_placed(hosts: Sequence[HostState], spec: objects.RequestSpec) -> bool:
    """Return whether a server of this request has a host, and thus allocations that nova must remove."""
    if spec.num_instances == 1 or not spec.instance_group:
        return False
    own = set(spec.instance_group.members[-spec.num_instances:])
    return any(not own.isdisjoint(host.instances) for host in hosts)


def _place(room: Mapping[str, int], paths: Mapping[str, tuple[str, ...]], unusable: Mapping[str, int], job: jobs.Job
           ) -> dict[int, str]:
    hosts = [taskgroups.Host(name, {"servers": count}, paths[name], job.held.get(name, {}), unusable[name])
             for name, count in room.items()]
    # Full hosts are missing: Placement or another filter removed them.
    full = [taskgroups.Host(name, {}, held=held) for name, held in job.held.items() if name not in room]
    return taskgroups.place(job.pending, hosts + full, job.groups, strict=job.strict)


def _paths(hosts: Sequence[HostState], keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the parts of the network above each host, from the metadata of its aggregates; "" if unknown."""
    known: dict[tuple[int, ...], tuple[str, ...]] = {}
    found = {}
    for host in hosts:
        ids = tuple(id(aggregate) for aggregate in host.aggregates)
        if ids not in known:
            metadata = [aggregate.metadata for aggregate in host.aggregates]
            known[ids] = tuple(min((entry[key] for entry in metadata if key in entry), default="") for key in keys)
        found[host.host] = known[ids]
    return found


def _moved_scores(hosts: Sequence[HostState], spec: objects.RequestSpec) -> list[float]:
    """Return the scores of hosts for a server that moves or replaces one; 0 if its group is unknown."""
    homes = _groups(spec)
    own = homes.pop(spec.instance_uuid, None)
    if own is None:
        return [0.0] * len(hosts)
    held = [collections.Counter(homes[uuid] for uuid in homes.keys() & host.instances.keys()) for host in hosts]
    return [float(taskgroups.score(taskgroups.Host(host.host, jobs.REQUEST, held=of), own, [jobs.REQUEST]))
            for host, of in zip(hosts, held, strict=True)]


def _groups(spec: objects.RequestSpec) -> dict[str, int]:
    """Return the group of each server of the job by uuid; empty if unknown."""
    group = spec.instance_group
    try:
        members, groups, rank = jobs.numbers(spec)
    except PlanError:
        return {}
    if group is None or spec.instance_uuid not in group.members:
        return {}
    start = 0
    if not jobs.is_replacement(spec):  # before a replacement, only the ranks are members of the group
        if spec.num_instances != members:
            start = group.members.index(spec.instance_uuid) - rank
        elif len(group.members) != members:
            return {}  # the group had other servers before, which nova no longer reports
    divided = jobs.divide(members, groups)
    homes = {uuid: divided[at - start] for at, uuid in enumerate(group.members) if 0 <= at - start < members}
    replaced = {uuid: jobs.replaced_rank(spec, uuid) for uuid in group.members[start + members:]}
    return homes | {uuid: divided[at] for uuid, at in replaced.items() if at is not None and at < members}
