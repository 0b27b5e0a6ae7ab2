# SPDX-License-Identifier: Apache-2.0
"""Choose hosts for containers: as the default scheduler of Kubernetes, and by this project's filter and weigher."""

import logging
import os
from collections.abc import Mapping, Sequence

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")

from nova import exception, objects

objects.register_all()

from bench.placement.loop import Request  # noqa: E402  (nova's objects first)
from bench.placement.workloads import Job  # noqa: E402
from tests.unit.nova import schedulerkit as kit  # noqa: E402

# A job that does not fit now is asked for again; each time the filter logs the arithmetic.
logging.getLogger("nova_lxd_ext.scheduler").setLevel(logging.ERROR)


class LeastAllocated:
    """Places each container on the host with the most free cores, as kube-scheduler does by default; all or nothing."""

    def __init__(self, cores: Mapping[str, int]) -> None:
        self._free = dict(cores)
        self._taken: dict[Job, list[tuple[str, int]]] = {}

    def place(self, job: Job, request: Request) -> Sequence[str] | None:
        """Return the host of each container, or None."""
        free = dict(self._free)
        hosts = []
        for cores in request.containers:
            host = max(free, key=lambda name: (free[name], name))
            if free[host] < cores:
                return None
            free[host] -= cores
            hosts.append(host)
        self._free = free
        self._taken[job] = list(zip(hosts, request.containers, strict=True))
        return hosts

    def release(self, job: Job) -> None:
        """Free the cores of the job's containers."""
        for host, cores in self._taken.pop(job):
            self._free[host] += cores


class NovaTaskGroups:
    """Schedules with nova's own SchedulerManager, ``TaskGroupFilter`` and ``TaskGroupWeigher``; a job is one request.

    :param cloud: in use as a fixture already
    """

    def __init__(self, cloud: kit.Cloud) -> None:
        self._cloud = cloud
        self._nodes = {node.host: node for node in cloud.nodes}
        self._taken: dict[Job, list[tuple[str, str, int]]] = {}

    def place(self, job: Job, request: Request) -> Sequence[str] | None:
        """Return the host of each container, in the order of ranks, or None.

        :raises ValueError: containers of different size, of which nova makes no single request
        """
        cores = request.containers[0]
        if set(request.containers) != {cores}:
            raise ValueError(f"containers of {sorted(set(request.containers))} cores: nova's servers of one request "
                             f"have one flavor")
        servers = kit.uuids(len(request.containers))
        spec = kit.request(servers[0], kit.server_group(servers), {"task_groups": str(request.groups)}, len(servers),
                           flavor=objects.Flavor(vcpus=cores, memory_mb=512, root_gb=1, ephemeral_gb=0, swap=0,
                                                 extra_specs={}))
        try:
            hosts = self._cloud.schedule(spec, servers)
        except exception.NoValidHost:
            return None
        self._taken[job] = [(server, host, cores) for server, host in zip(servers, hosts, strict=True)]
        for _, host, count in self._taken[job]:
            self._nodes[host].vcpus_used += count
        return hosts

    def release(self, job: Job) -> None:
        """Free the cores of the job's servers."""
        for server, host, cores in self._taken.pop(job):
            self._nodes[host].vcpus_used -= cores
            del self._cloud.instances[host][server]
