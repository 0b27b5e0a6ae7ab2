# SPDX-License-Identifier: Apache-2.0
"""Nova's own scheduler (SchedulerManager, HostManager, HostState, RequestSpec) over hosts that are only objects.

Placement and the database are not there: a claim succeeds while ``Cloud.placement`` has room on the host."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects
from nova.scheduler import manager
from nova.scheduler.host_manager import HostManager
from oslo_config import fixture as config_fixture
from oslo_utils import timeutils

from nova_lxd_ext import conf

conf.register()
objects.register_all()

CELL = "6d61b2d3-0d39-4ea9-a1f3-8e1f1fb6a001"
FILTER = "nova_lxd_ext.scheduler.TaskGroupFilter"
WEIGHERS = ["nova.scheduler.weights.all_weighers", "nova_lxd_ext.scheduler.TaskGroupWeigher"]
OPTIONS: Mapping[str, Any] = {
    "available_filters": ["nova.scheduler.filters.all_filters", FILTER], "weight_classes": WEIGHERS,
    "enabled_filters": ["PciPassthroughFilter", "NUMATopologyFilter", "ServerGroupAntiAffinityFilter",
                        "ServerGroupAffinityFilter", "TaskGroupFilter"],
    "track_instance_changes": False, "shuffle_best_same_weighed_hosts": True,
}


def compute_node(name: str, cores: int, memory_mb: int = 1 << 20, disk_gb: int = 10_000, used: int = 0, **changes: Any
                 ) -> objects.ComputeNode:
    values: dict[str, Any] = {
        "id": 1, "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "host": name, "hypervisor_hostname": name,
        "vcpus": cores, "vcpus_used": used, "memory_mb": memory_mb, "free_ram_mb": memory_mb, "local_gb": disk_gb,
        "local_gb_used": 0, "free_disk_gb": disk_gb, "disk_available_least": None, "updated_at": timeutils.utcnow(),
        "host_ip": "127.0.0.1", "hypervisor_type": "lxd", "hypervisor_version": 1, "numa_topology": None,
        "supported_hv_specs": [], "pci_device_pools": None, "cpu_info": None, "stats": None, "metrics": None,
        "cpu_allocation_ratio": 1.0, "ram_allocation_ratio": 1.0, "disk_allocation_ratio": 1.0,
    }
    return objects.ComputeNode(**values | changes)


class Cloud(fixtures.Fixture):
    """A cloud of one cell.

    :param nodes: its compute hosts
    :param network: metadata of each host's aggregate, by the host's name
    """

    def __init__(self, nodes: Sequence[objects.ComputeNode], network: Mapping[str, Mapping[str, str]] | None = None,
                 **options: Any) -> None:
        super().__init__()
        self.nodes = list(nodes)
        self.options = {**OPTIONS, **options}
        self.network = network or {}
        #: Servers for which Placement has room, by host; no entry is enough room.
        self.placement: dict[str, int] = {}
        self.instances: dict[str, dict[str, objects.Instance]] = {node.host: {} for node in nodes}
        self.released: list[str] = []
        self.context = nova_context.get_admin_context()

    def _setUp(self) -> None:
        config = self.useFixture(config_fixture.Config(conf.CONF))
        config.config(group="filter_scheduler", **self.options)
        aggregates = [objects.Aggregate(id=at, name=name, uuid=str(uuid.uuid4()), hosts=[name], metadata=dict(metadata))
                      for at, (name, metadata) in enumerate(self.network.items())]
        for target, value in (
                ("nova.objects.CellMappingList.get_all", lambda *args: objects.CellMappingList(objects=[])),
                ("nova.objects.AggregateList.get_all", lambda *args: objects.AggregateList(objects=aggregates)),
                ("nova.scheduler.host_manager.HostManager._get_instance_info",
                 lambda this, context, node: self.instances[node.host]),
                ("nova.scheduler.utils.claim_resources", self._claim)):
            self.useFixture(fixtures.MonkeyPatch(target, value))
        self.scheduler = manager.SchedulerManager.__new__(manager.SchedulerManager)
        self.scheduler.host_manager = HostManager()
        self.useFixture(fixtures.MonkeyPatch(
            "nova.scheduler.manager.SchedulerManager.placement_client", SimpleNamespace(
                delete_allocation_for_instance=lambda context, uuid, force: self.released.append(uuid))))

    def _claim(self, context: Any, client: Any, spec: Any, instance: str, request: Mapping[str, str], **more: Any
               ) -> bool:
        left = self.placement.get(request["host"], 1 << 30)
        self.placement[request["host"]] = left - 1
        return left > 0

    def host_states(self) -> list[Any]:
        services = {node.host: objects.Service(host=node.host, disabled=False) for node in self.nodes}
        return list(self.scheduler.host_manager._get_host_states(self.context, {CELL: self.nodes}, services))

    def schedule(self, spec: objects.RequestSpec, servers: Sequence[str]) -> list[str]:
        """Return the host of each server, as ``select_destinations`` finds them."""
        self.scheduler._get_all_host_states = lambda *args: self.host_states()
        requests = {node.uuid: [{"host": node.host, "mappings": {}}] for node in self.nodes}
        selections = self.scheduler._schedule(self.context, spec, list(servers), requests, {}, "1.36", True)
        hosts = [selection[0].service_host for selection in selections]
        #: Hosts on which nova would try again, by server.
        self.alternates = {server: [other.service_host for other in selection[1:]]
                           for server, selection in zip(servers, selections, strict=True)}
        for server, host in zip(servers, hosts, strict=True):
            self.instances[host][server] = objects.Instance(uuid=server)
        return hosts


def uuids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def server_group(members: Iterable[str], policy: str = "soft-anti-affinity", hosts: Iterable[str] = (), **rules: int
                 ) -> objects.InstanceGroup:
    return objects.InstanceGroup(uuid=str(uuid.uuid4()), policy=policy, policies=[policy], _rules=rules,
                                 members=list(members), hosts=list(hosts))


def request(server: str, group: objects.InstanceGroup | None, hints: Mapping[str, str], count: int = 1, **changes: Any
            ) -> objects.RequestSpec:
    """The request that makes ``count`` servers, as the API gives it to the scheduler."""
    values: dict[str, Any] = {
        "instance_uuid": server, "instance_group": group, "num_instances": count, "requested_resources": [],
        "scheduler_hints": {key: [value] for key, value in hints.items()}, "ignore_hosts": None, "force_hosts": None,
        "force_nodes": None, "requested_destination": None, "numa_topology": None, "is_bfv": False,
        "pci_requests": objects.InstancePCIRequests(requests=[]), "project_id": "p", "image": objects.ImageMeta(
            properties=objects.ImageMetaProps()), "limits": objects.SchedulerLimits(),
        "flavor": objects.Flavor(vcpus=1, memory_mb=512, root_gb=1, ephemeral_gb=0, swap=0, extra_specs={}),
    }
    return objects.RequestSpec(nova_context.get_admin_context(), **values | changes)
