# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite bare_metal about placement, maintenance, faults and repairs, and what the next tenant finds.

Most go on with the server of server.py. At last a GPU of it breaks, the server is deleted, and the site's repair brings
the GPU back; then servers of two tenants have the devices one after the other.
"""

import json
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import common
from common import Output, admin, describe, inside, need, on_host, request, server_group, server_named, tenant, wait
from fleet import Host, hosts, placed
from server import NAME
from vpcs import foreign_vpc

FIRST, NEXT = "isv-first", "isv-next"
NOTICE_TIMEOUT = 180  # s; nova-compute polls once a minute
REPAIR_TIMEOUT = 420
MAINTENANCE, RETIREMENT = "maintenance: its fan is replaced", "retirement: another card takes its place"
AGE = 300  # s, of messages that are new
KERNEL_LOG = "cut -d' ' -f1 /proc/uptime; timeout 5 cat /dev/kmsg || true"  # Documentation/ABI/testing/dev-kmsg
BYTES = 100 << 20  # that the first tenant fills, of memory and of its disk
FILL = f"""import os, time
data = b"mark" * ({BYTES} // 4)
file = open("/var/tmp/mark", "wb")
file.write(data)
os.fsync(file.fileno())
os.fork() or time.sleep(3600)"""
# Reads memory that was not written since it was given, and blocks of a file that were never written.
SEARCH = f"""import mmap, os
file = open("/var/tmp/new", "wb+")
os.posix_fallocate(file.fileno(), 0, {BYTES})
for space in mmap.mmap(-1, {BYTES}), file:
    print(sum(part.count(0) < len(part) for part in iter(lambda: space.read(1 << 20), b"")))"""
DOCUMENT = ("sudo cat /run/containerhost/resources.json 2> /dev/null || for name in lxd incus; do sudo curl -sf "
            "--unix-socket /dev/$name/sock local/1.0/config/user.containerhost.resources && break; done")


def topology_placement(output: Output) -> None:
    """Start servers that shall be on one host, and two that must not."""
    cloud = tenant()
    output |= {"instance_id": server_named(cloud, NAME).id, "placement_strategy": "task_groups=1, anti-affinity",
               "availability_zone": server_named(cloud, NAME).availability_zone}

    with output.test("together", "operations") as entry:
        together = server_group(output, cloud, "soft-anti-affinity")
        servers = request(output, cloud, 2, hints={"group": together, "task_groups": "1"})
        entry["hosts"] = [server.host_id for server in servers]
        need(len(set(entry["hosts"])) == 1 and all(entry["hosts"]), "not on one host")
    with output.test("members", "operations") as entry:
        entry["members"] = cloud.compute.get_server_group(together).member_ids
        need(set(entry["members"]) == {server.id for server in servers}, "the group has other members")
    with output.test("apart", "operations") as entry:
        apart = server_group(output, cloud, "anti-affinity")
        servers = [server for _ in range(2) for server in request(output, cloud, hints={"group": apart})]
        entry["hosts"] = [server.host_id for server in servers if server.status == "ACTIVE"]
        need(len(set(entry["hosts"])) == len(entry["hosts"]) == min(2, len(hosts())), "not each on a host of its own")
    output["placement_supported"] = output.holds


def take_out(output: Output, found: Iterable[Host], reason: str) -> dict[str, Any]:
    """Disable hosts in Nova for the step, and request a server.

    :return: whether Nova says that they are disabled, and whether they get no new server and their servers go on
    """
    cloud, compute = tenant(), admin().compute
    services = {service.host: service for service in compute.services(binary="nova-compute")}
    names = [host.name for host in found]
    for name in names:
        compute.disable_service(services[name], disabled_reason=reason)
        output.undo.callback(compute.enable_service, services[name])
    states = [service for service in compute.services(binary="nova-compute") if service.host in names]
    (server,) = request(output, cloud)
    elsewhere = server.status == "ERROR" or compute.get_server(server.id).compute_host not in names
    inside(describe(cloud, NAME), "true")  # its server goes on
    return {"requested": True, "maintenance_mode": ", ".join(sorted({service.status for service in states})),
            "accepted": all((service.status, service.disabled_reason) == ("disabled", reason) for service in states),
            "node_removed_from_pool": elsewhere, "message": f"a new server is {server.status}"}


def own_host() -> Host:
    """Return the host of the tenant's server."""
    name = admin().compute.get_server(server_named(tenant(), NAME).id).compute_host
    return next(host for host in hosts() if host.name == name)


def return_node_maintenance(output: Output) -> None:
    host = own_host()
    output["operation"] = take_out(output, [host], MAINTENANCE) | {"machine_id": host.id}


def return_rack_maintenance(output: Output) -> None:
    rack = own_host().rack
    need(rack, "no aggregate of hosts tells the rack")
    output["operation"] = take_out(output, [host for host in hosts() if host.rack == rack], MAINTENANCE) | {
        "rack_id": rack}


def request_host_replacement(output: Output) -> None:
    host = own_host()
    output["operation"] = take_out(output, [host], RETIREMENT) | {"machine_id": host.id}


def announce(output: Output) -> None:
    """Taint the first GPU of the server's host, and the last one: planned work, of which Nova tells the server."""
    host = own_host()
    for gpu, reason in zip((host.gpus[0], host.gpus[-1]), (MAINTENANCE, RETIREMENT), strict=True):
        on_host(host.name, f"containerhost taint {gpu['id']} --reason '{reason}'")


def told(text: str, planned: bool = True) -> list[dict[str, str]]:
    """Wait until the server is told of faults with this text, and return what it reads, in the suite's words."""
    server, path = describe(tenant(), NAME), "/run/containerhost/faults.json"

    def lines() -> list[str]:
        done = common.ssh(server, f"sudo cat {path}")
        found = json.loads(done.stdout)["faults"] if done.returncode == 0 else []
        return [line for line in found if text in line and ("tainted" in line) == planned]

    found = wait(lines, f"the server is told of {text!r}", NOTICE_TIMEOUT)
    changed = datetime.fromtimestamp(int(inside(server, f"sudo stat -c %Y {path}")), UTC).isoformat()
    return [{"machine_id": line.partition(": ")[0], "type": "planned" if planned else "failure", "status": "announced",
             "message": line, "notified_at": changed} for line in found]


def query_maintenance_events(output: Output) -> None:
    output |= {"events": told(MAINTENANCE), "events_queryable": True}


def query_retirement_notices(output: Output) -> None:
    output |= {"notices": told(RETIREMENT), "notices_queryable": True}


def query_planned_notifications(output: Output) -> None:
    """Read what the server was told of planned work, which is withdrawn then."""
    host = own_host()
    for gpu in host.gpus:
        output.undo.callback(on_host, host.name, f"containerhost untaint {gpu['id']}")
    output |= {"notifications": told(MAINTENANCE), "notification_channel_observable": True}


def fault(action: str, kind: str, device: str) -> None:
    """Break or mend a device by the site's command for that."""
    common.command(common.setting("AICLOUD_FAULT"), action=action, kind=kind, device=device)


def query_failure_notifications(output: Output) -> None:
    """Break a GPU, and read what its server is told. The GPU stays broken."""
    gpu = own_host().gpus[0]["id"]
    fault("break", "gpu", gpu)
    output |= {"notifications": told(gpu, planned=False), "notification_channel_observable": True}


def host_status_log(output: Output) -> None:
    """Read what the host's kernel said in the last minutes."""
    uptime, *lines = on_host(own_host().name, KERNEL_LOG).splitlines()
    heads = [(line.partition(";")[0].split(","), line) for line in lines if line[:1].isdigit()]
    recent = [line for head, line in heads if float(uptime) - int(head[2]) / 1e6 < AGE]
    with output.test("dmesg_recent") as entry:
        need(recent, f"no message within {AGE} s")
        entry["message"] = f"{len(recent)} messages, the last one: {recent[-1]}"


def reported(device: str) -> list[dict[str, Any]]:
    """Return what examples/breakfix/repair.py wrote about a device: Nova's notifications, and repairs."""
    *lines, _ = Path(common.setting("AICLOUD_NOTIFICATIONS")).read_text().split("\n")
    return [line for line in map(json.loads, filter(lambda line: line.startswith("{"), lines))
            if device in (line.get("repaired"), *(each["device"] for each in line.get("devices", [])))]


def query_repair_history(output: Output) -> None:
    """Let the broken GPU, whose server is deleted, answer again, and wait until the site's repair has freed it."""
    sick = {gpu["id"]: host.name for host in hosts() for gpu in host.gpus if gpu["health"] or gpu["blocked"]}
    need(sick, "no GPU is broken")
    for gpu, host in sick.items():
        on_host(host, f"containerhost untaint {gpu}")  # where an earlier step failed
        fault("mend", "gpu", gpu)

    def well() -> bool:
        found = hosts()
        offered = sum(entry["total"] - entry["reserved"] for entry in placed(found))
        return offered == sum(len(host.gpus) for host in found) and not any(host.alerts for host in found)

    wait(well, "every GPU is well, and offered", REPAIR_TIMEOUT, 5)
    output |= {"history_queryable": True, "records": [{"machine_id": gpu, "entries": reported(gpu)} for gpu in sick]}
    need(all(any(entry.get("status") == 0 for entry in record["entries"]) for record in output["records"]),
         "no repair is reported")


def query_sanitization(output: Output) -> None:
    """Let a tenant fill memory and disk, and the next one search there; compare records of the devices' cleaning."""
    cloud, (other, network) = tenant(), foreign_vpc(output, NEXT)
    output.undo.callback(common.remove, cloud, FIRST)
    first = common.launch(cloud, FIRST)
    inside(first, f"python3 -c {shlex.quote(FILL)} > /dev/null 2>&1 < /dev/null", 120)
    held = devices_of(first["instance_id"])
    gpu = next(key for key, (_, device) in held.items() if device["kind"] == "gpu")
    host = held[gpu][0]
    on_host(host, f"containerhost taint {gpu} --reason '{MAINTENANCE}'")
    during = devices_of(first["instance_id"]).get(gpu)
    on_host(host, f"containerhost untaint {gpu}")
    kept = gpu in devices_of(first["instance_id"]) and not hand_overs(host, gpu, first)
    common.remove(cloud, FIRST)
    wait(lambda: not devices_of(first["instance_id"]), "the devices are free", 120)
    output.undo.callback(common.remove, other, NEXT)
    following = common.launch(other, NEXT, network=network)
    inner = {device["id"]: device.get("provenance") for device in json.loads(inside(following, DOCUMENT))["devices"]}
    memory, disk = map(int, inside(following, f"python3 -c {shlex.quote(SEARCH)}", 120).split())
    machines = [{"machine_id": host, "served_tenant": True, "sanitized": not memory and not disk,
                 "status": f"{memory} MiB of memory and {disk} MiB of the disk are not empty"}]
    for key, (where, device) in held.items():
        records = hand_overs(where, key, first)
        cleaned = [record for record in records if record["valid"] and record["cleaned"]]
        machines.append({
            "machine_id": f"{where}/{key}", "has_gpu": device["kind"] == "gpu", "served_tenant": True,
            "status": str(records), "sanitized": len(cleaned) == len(records) == 1 and key in inner and (
                inner[key] or {}).get("signature") == cleaned[0]["signature"],
            "breakfix_skip_observed": key == gpu and bool(during and during[1]["taint"]), "tenancy_preserved": kept,
            "transitions": ["in_use", *("sanitizing" for _ in cleaned), "available"]})
    output["machines"] = machines


def devices_of(server: str) -> dict[str, tuple[str, Any]]:
    """Return the devices that are allocated to a server: id -> host and what containerhost lists of it."""
    return {device["id"]: (host.name, device) for host in hosts() for device in host.devices
            if (device["owner"] or {}).get("uuid") == server}


def hand_overs(host: str, device: str, server: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a device's release by a server."""
    line = f"containerhost provenance {device} --container {server['instance_id']} --json"
    return list(json.loads(on_host(host, line))["handovers"])


if __name__ == "__main__":
    common.run(globals())
