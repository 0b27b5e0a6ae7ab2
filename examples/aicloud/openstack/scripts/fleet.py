# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite bare_metal that ask an operator's APIs of hosts: Nova, Placement, and containerhost on each."""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
from common import Output, admin, on_host

POLLS, INTERVAL = 3, 5  # s
RACK = "rack"  # a property of host aggregates, see [lxd] network_tree_keys
PARTS = ("_mig", "_shared")  # names of providers of slices and shares end so before the address
DMI = "! cd /sys/class/dmi/id || for name in chassis board; do cat ${name}_serial || echo; done"


@dataclasses.dataclass(frozen=True)
class Host:
    """A compute host, as Nova and its own containerhost show it.

    :ivar id: of the hypervisor in Nova, and of its resource provider in Placement
    :ivar devices: of ``containerhost list``, without those that the host itself uses
    :ivar servers: that Nova has there
    """

    id: str
    name: str
    address: str
    rack: str
    up: bool
    devices: tuple[Mapping[str, Any], ...]
    servers: tuple[Any, ...]

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        return [device for device in self.devices if device["kind"] == "gpu"]

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Return what is wrong with it and its devices; nothing if it is healthy."""
        found = [{"id": device["kind"], "target": device["id"], "message": message} for device in self.devices
                 for message in (*device["health"], device["taint"], device["blocked"]) if message]
        return found if self.up else [*found, {"id": "nova-compute", "target": self.name, "message": "it is down"}]


def hosts() -> list[Host]:
    compute = admin().compute
    racks = {host: aggregate.metadata[RACK] for aggregate in compute.aggregates() if RACK in aggregate.metadata
             for host in aggregate.hosts or ()}
    servers = list(compute.servers(all_projects=True))
    found = []
    for each in compute.hypervisors(details=True):
        name = each.service_details["host"]
        devices = json.loads(on_host(name, "containerhost list --json"))
        found.append(Host(each.id, name, each.host_ip, racks.get(name, ""), each.state == "up",
                          tuple(device for device in devices if not device["host_use"]),
                          tuple(server for server in servers if server.compute_host == name)))
    return found


def placed(found: list[Host]) -> list[dict[str, Any]]:
    """Return what Placement says of each GPU: how many may be had, how many are kept back, and by whom it is used.

    The site chooses the resource classes; Nova and the driver call providers HOST_ADDRESS and HOST_reserved_ADDRESS.
    """
    gpus = {gpu["id"] for host in found for gpu in host.gpus}
    placement, entries = admin().placement, []
    for provider in placement.resource_providers():
        owner, _, address = provider.name.rpartition("_")
        if address.lower() in gpus and not owner.endswith(PARTS):  # Nova writes them in capitals
            for offered in inventories(provider.id).values():
                users = placement.get(f"/resource_providers/{provider.id}/allocations").json()["allocations"]
                entries.append({**offered, "users": list(users)})
    return entries


def inventories(provider: str) -> dict[str, Any]:
    """Return what a resource provider has; nothing if it has gone meanwhile."""
    answer = admin().placement.get(f"/resource_providers/{provider}/inventories").json()
    return dict(answer.get("inventories", {}))


def query_governance_metrics(output: Output) -> None:
    found = hosts()
    active = {server.id for host in found for server in host.servers if server.status == "ACTIVE"}
    gpus = placed(found)
    output["metrics"] = {
        "delivered": {"nodes": len(found), "gpus": sum(gpu["total"] for gpu in gpus)},
        "healthy": {"nodes": sum(not host.alerts for host in found),
                    "gpus": sum(gpu["total"] - gpu["reserved"] for gpu in gpus)},
        "reserved": {"nodes": sum(bool(host.servers) for host in found),
                     "gpus": sum(bool(gpu["users"]) for gpu in gpus)},
        "active": {"nodes": sum(any(server.id in active for server in host.servers) for host in found),
                   "gpus": sum(not active.isdisjoint(gpu["users"]) for gpu in gpus)}}


def query_fleet_inventory(output: Output) -> None:
    """Describe each host by Nova's server there; a host is as old as that, for Nova keeps no date of its own."""
    cloud = admin()
    identity: Any = cloud.identity
    nodes = []
    for host in hosts():
        server = next((each for each in host.servers if each.status == "ACTIVE"), None)
        project = identity.get_project(server.project_id if server else cloud.current_project_id)
        nodes.append({
            "node_id": host.id, "health_state": "unhealthy" if host.alerts else "healthy", "in_use": bool(server),
            "instance_id": server and server.id, "created_at": server and server.created_at,
            "project_id": project.id, "account_id": project.domain_id, "region": cloud.config.get_region_name(),
            "gpu_count": len(host.gpus), "hardware_type": ", ".join(sorted({gpu["model"] for gpu in host.gpus}))})
    output["nodes"] = nodes


def query_resource_discovery(output: Output) -> None:
    """Read Placement's resource providers several times."""
    polls = []
    for number in range(POLLS):
        time.sleep(INTERVAL if number else 0)
        polls.append({provider.id: provider.name for provider in admin().placement.resource_providers()})
    output |= {"polls": POLLS, "poll_interval_seconds": INTERVAL,
               "unstable_identifiers": sorted(polls[0].keys() - polls[-1]),
               "resources": [{"resource_id": provider, "name": name, "discovered": bool(inventories(provider))}
                             for provider, name in polls[-1].items()]}


def query_host_health(output: Output) -> None:
    output["hosts"] = [{
        "host_id": host.name, "health_present": bool(host.devices), "healthy": not host.alerts, "alerts": host.alerts,
        "probe_ids": ["nova-compute", *(device["id"] for device in host.devices)]} for host in hosts()]


def query_health_aggregation(output: Output) -> None:
    groups = []
    found = hosts()
    for rack in sorted({host.rack for host in found}):
        members = [host for host in found if host.rack == rack]
        sick = [host.name for host in members if host.alerts]
        groups.append({"name": rack, "total": len(members), "healthy": len(members) - len(sick),
                       "unhealthy": len(sick), "unhealthy_hosts": sick, "status": "Degraded" if sick else "Healthy"})
    output |= {"aggregation_level": RACK, "groups": groups}


def query_topology(output: Output) -> None:
    output["hosts"] = [{"host_id": host.name, "failure_domain": host.rack} for host in hosts()]


def query_stable_ips(output: Output) -> None:
    """Read the hosts' addresses in Nova, and again."""
    first, second = ({host.name: host.address for host in hosts()} for _ in range(2))
    common.need(first == second, f"{first}, then {second}")
    output["hosts"] = [{"host_id": name, "primary_ip_addresses": [address]} for name, address in first.items()]


def query_serial_numbers(output: Output) -> None:
    """Read serial numbers of board and chassis, models of processors, UUIDs of GPUs and GUIDs or MACs of functions."""
    machines = []
    for host in hosts():
        dmi = on_host(host.name, DMI).splitlines()
        cpus = {line.partition(": ")[2] for line in on_host(host.name, "grep 'model name' /proc/cpuinfo").splitlines()}
        found = {"cpu": sorted(cpus), "gpu": [gpu["uuid"] for gpu in host.gpus],
                 "nic": [(device["rdma"] or {}).get("port_guid") or device["mac"] for device in host.devices
                         if device["kind"] == "net"]}
        machines.append({"machine_id": host.id, "components": {
            **{name: {"present": bool(dmi), "identifiers": [text] if text else []}
               for name, text in zip(("chassis", "baseboard"), dmi or ("", ""), strict=True)},
            **{name: {"present": bool(ids) or name == "cpu", "identifiers": ids} for name, ids in found.items()}}})
    output["machines"] = machines


def query_node_health_agents(output: Output) -> None:
    """Ask Nova whether nova-compute runs on each host: it reads the devices' health, and notifies of faults."""
    output |= {"agents_observable": True, "agents": [
        {"node_id": service.host, "agent_name": service.binary, "running": service.state == "up"}
        for service in admin().compute.services(binary="nova-compute")]}


def verify_ingestion(output: Output) -> None:
    """Compare the site's list of hosts and their devices with Nova, and with what each host shows."""
    expected = json.loads(Path(common.setting("AICLOUD_MANIFEST")).read_text())
    found = {host.name: host for host in hosts()}
    machines = []
    for name in expected.keys() & found.keys():
        host = found[name]
        lost = set(expected[name]) - {device["id"] for device in host.devices}
        machines.append({"expected_machine_id": name, "machine_id": host.id, "gpu_count": len(host.gpus),
                         "status": "InUse" if host.servers else "Ready", "lost": sorted(lost),
                         "health": "unhealthy" if host.alerts or lost else "healthy"})
    output |= {"expected_count": len(expected), "matched_count": len(machines), "machines": machines,
               "missing": [{"expected_machine_id": name} for name in expected.keys() - found.keys()],
               "extra": [{"machine_id": name} for name in found.keys() - expected.keys()]}


if __name__ == "__main__":
    common.run(globals())
