# SPDX-License-Identifier: Apache-2.0
"""Start members as servers of OpenStack, by openstacksdk.

Ports are created first: then all addresses are known before the first server boots, and are in each server's user
data. Servers are created in the order of ranks, each after nova has scheduled the previous one, with the scheduler
hints of ``nova_lxd_ext.scheduler``: the first is refused if the cloud has no room for all.
"""

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keystoneauth1.exceptions import ClientException
from openstack import connection, exceptions

from hpcjob import files
from hpcjob.errors import BadJob, GangFailed
from hpcjob.gang import POLL_INTERVAL, State
from hpcjob.job import Job, Member

JOB, RANK = "hpcjob", "hpcjob-rank"
MOST_USER_DATA = 65_535  # nova's limit: bytes in base64
_STARTING = {"BUILD", "UNKNOWN"}


class OpenStack:
    """Start and remove members in a project of an OpenStack cloud."""

    name = "openstack"
    host_is_down = ("If its host does not answer, an operator switches the machine off and says so: openstack compute "
                    "service set --down HOST nova-compute")

    def __init__(self, cloud: connection.Connection, sleep: Callable[[float], None] = time.sleep) -> None:
        self._cloud = cloud
        self._sleep = sleep
        self._ports: list[str] = []
        self._group = ""

    def validate(self, job: Job) -> None:
        """Find network, image, flavor and security groups; require a core for each MPI process of the flavor."""
        settings = job.cloud(self.name)
        self._network = self._found("network", settings["network"], self._cloud.network.find_network)
        self._image = self._found("image", settings["image"], self._cloud.image.find_image)
        self._flavor = self._found("flavor", settings["flavor"], self._cloud.compute.find_flavor)
        job.require_cores(self._cloud.compute.get_flavor(self._flavor).vcpus)
        self._security_groups = [self._found("security group", name, self._cloud.network.find_security_group)
                                 for name in settings.get("security_groups") or ()]

    def reserve(self, job: Job, ident: str) -> list[Member]:
        """Create the server group and a port for each member."""
        settings = job.cloud(self.name)
        ports: dict[str, Any] = {"security_groups": self._security_groups} if self._security_groups else {}
        if "vnic_type" in settings:
            ports["binding_vnic_type"] = settings["vnic_type"]
        policy: dict[str, Any] = {"policy": "soft-anti-affinity"}
        if job.strict:
            policy = {"policy": "anti-affinity", "rules": {"max_server_per_host": -(-job.members // job.groups)}}
        self._group = self._cloud.compute.create_server_group(name=ident, **policy).id
        members = []
        for rank, group in enumerate(job.division()):
            name = f"{ident}-{rank}"
            port = self._cloud.network.create_port(network_id=self._network, name=name, description=ident, **ports)
            if not port.fixed_ips:
                raise GangFailed(f"network {settings['network']} gave port {name} no address: it needs a subnet with "
                                 f"free addresses")
            self._ports.append(port.id)
            members.append(Member(rank, group, name, port.fixed_ips[0]["ip_address"]))
        return members

    @staticmethod
    def _found(kind: str, name: str, find: Callable[..., Any]) -> str:
        found = find(name, ignore_missing=True)
        if found is None:
            raise BadJob(f"the cloud has no {kind} {name!r} that this project may use")
        return str(found.id)

    def launch(self, job: Job, ident: str, contents: Sequence[Sequence[files.File]], check: Callable[[], None]) -> None:
        """Create the servers."""
        for rank, (port, of_rank) in enumerate(zip(self._ports, contents, strict=True)):
            self._create(job, ident, rank, port, of_rank, {}, check)

    def _create(self, job: Job, ident: str, rank: int, port: str, of_rank: Sequence[files.File],
                hints: Mapping[str, str], check: Callable[[], None]) -> None:
        settings = job.cloud(self.name)
        more = {key: settings[key] for key in ("key_name", "availability_zone") if key in settings}
        data = base64.b64encode(files.cloud_config(of_rank).encode()).decode()
        if len(data) > MOST_USER_DATA:
            raise BadJob(f"the user data of {job.members} members is {len(data)} bytes, and nova's limit "
                         f"is {MOST_USER_DATA}: request fewer members with more slots")
        server = self._cloud.compute.create_server(
            name=f"{ident}-{rank}", image_id=self._image, flavor_id=self._flavor, networks=[{"port": port}],
            user_data=data, config_drive=True, metadata={JOB: ident, RANK: str(rank)}, **more,
            scheduler_hints={"group": self._group, "task_groups": str(job.groups), "task_members": str(job.members),
                             "task_rank": str(rank), **hints})
        self._wait_scheduled(server.id, f"{ident}-{rank}", check)

    def _wait_scheduled(self, server: str, name: str, check: Callable[[], None]) -> None:
        while True:
            found = self._cloud.compute.find_server(server, ignore_missing=True)
            if found is None:
                raise GangFailed(f"{name} was deleted while the job started")
            if found.status == "ERROR":
                raise GangFailed(f"{name} failed: {_fault(found)}")
            if found.host_id or found.status == "ACTIVE":
                return
            check()
            self._sleep(POLL_INTERVAL)

    def states(self, ident: str) -> Mapping[int, State]:
        """Return the state of each member, in one request."""
        return {int(server.metadata[RANK]): State(
            running=server.status == "ACTIVE",
            failure=_fault(server) if server.status not in {"ACTIVE", *_STARTING} else "",
            detail=server.task_state or "", host=server.compute_host or (server.host_id or "")[:12],
            broken=server.status == "ERROR" or server.task_state == "deleting")
            for server in self._servers(ident)}

    def _servers(self, ident: str) -> list[Any]:
        return [server for server in self._cloud.compute.servers(name=f"^{ident}-")
                if (server.metadata or {}).get(JOB) == ident and server.status != "DELETED"]

    def remove(self, ident: str) -> list[str]:
        """Delete the servers, and the ports and the server group when they are gone."""
        servers = self._servers(ident)
        for server in servers:
            if server.task_state != "deleting":
                self._cloud.compute.delete_server(server.id, ignore_missing=True)
        if servers:
            return _names("server", servers)
        ports = [port for port in self._cloud.network.ports(description=ident) if port.description == ident]
        for port in ports:
            self._cloud.network.delete_port(port.id, ignore_missing=True)
        groups = [group for group in self._cloud.compute.server_groups() if group.name == ident]
        for group in groups:
            self._cloud.compute.delete_server_group(group.id, ignore_missing=True)
        return _names("port", ports) + _names("server group", groups)

    def find_reserved(self, ident: str, member: Member) -> None:
        """Find the server group and the member's port, which outlive its server."""
        groups = [group.id for group in self._cloud.compute.server_groups() if group.name == ident]
        self._ports = [port.id for port in self._cloud.network.ports(description=ident) if port.name == member.name]
        if not groups or not self._ports:
            raise BadJob(f"this project has no server group {ident} or no port {member.name}: the job is deleted, or "
                         f"another project's")
        self._group = groups[0]

    def remove_member(self, ident: str, member: Member) -> list[str]:
        """Delete the server and wait until its port is free: nova may keep a deleted server for a while."""
        servers = [server for server in self._servers(ident) if server.metadata.get(RANK) == str(member.rank)]
        for server in servers:
            # Also if it is being deleted: once its host is marked down, nova deletes it without the host.
            self._cloud.compute.delete_server(server.id, ignore_missing=True)
        if servers:
            return _names("server", servers)
        port = self._cloud.network.get_port(self._ports[0])
        return [f"port {port.name} of server {port.device_id}"] if port.device_id else []

    def launch_member(self, job: Job, ident: str, member: Member, contents: Sequence[files.File],
                      check: Callable[[], None]) -> None:
        """Create the server with the old one's port."""
        # Without the hint the scheduler would place all later ranks, too.
        hints = {"task_avoid": member.host or "unknown"}
        self._create(job, ident, member.rank, self._ports[0], contents, hints, check)

    def of_others(self, ident: str) -> list[str]:
        """Return nothing: a user sees only the project's servers, and may remove all of them."""
        return []

    def reason(self, error: Exception) -> str | None:
        """Return the cloud's message, which contains no user data."""
        return str(error) if isinstance(error, exceptions.SDKException | ClientException) else None


def _fault(server: Any) -> str:
    fault = getattr(server, "fault", None) or {}
    return str(fault.get("message") or f"its status is {server.status}")


def _names(kind: str, found: Iterable[Any]) -> list[str]:
    return [f"{kind} {entry.name}" for entry in found]
