# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite network about what is recorded: faults of network hardware, traffic, and changes of rules."""

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import common
from breakfix import NOTICE_TIMEOUT, fault, reported
from common import Output, admin, need, tcp, tenant, wait
from fleet import hosts
from traffic import servers

FIELDS = {"device", "kind", "state", "complaints", "taint", "blocked", "instance_uuid"}  # doc/source/breakfix.md
WINDOW = 5  # s
# Neutron's log of a notification with the driver "log": time, action, user, and the notification.
EVENT = re.compile(r"(\S+ \S+) .* oslo\.messaging\.notification\.security_group_rule\.(create|delete)\.end "
                   r"\[\S+ req-\S+ (\S+) [^]]*\] (\{.*)")


def sdn_hardware_fault_logging(output: Output) -> None:
    """Break a network function that is free, and wait until Nova's notification of it has come."""
    name, function = next((host.name, device["id"]) for host in hosts() for device in host.devices
                          if device["kind"] == "net" and device["state"] == "free")
    output["log_destination"] = common.setting("AICLOUD_NOTIFICATIONS")
    with output.test("logging_endpoint_reachable"):
        before = len(reported(function))
    fault("break", "net", function)
    output.undo.callback(fault, "mend", "net", function)
    with output.test("fault_event_source_queryable"):
        found = wait(lambda: reported(function)[before:], "a notification of the function", NOTICE_TIMEOUT)
        output["recent_event_count"] = len(found)
    with output.test("log_destination_configured"):
        need(found[-1]["host"] == name, f"the notification names {found[-1]['host']}")
    with output.test("event_schema_valid") as entry:
        (entry["event"],) = [each for each in found[-1]["devices"] if each["device"] == function]
        need(entry["event"].keys() >= FIELDS and entry["event"]["complaints"], "the notification lacks something")


def sdn_latency_perf_logging(output: Output) -> None:
    """Compare what Nova's diagnostics count at a server's port while it rests, and while it is asked much."""
    a, b = servers(tenant(), "ab")
    target = b["instance_id"]

    def counts() -> tuple[float, int, int]:
        nics = admin().compute.get_server_diagnostics(target).nic_details
        return time.monotonic(), sum(nic["rx_octets"] for nic in nics), sum(nic["rx_packets"] for nic in nics)

    with output.test("metrics_endpoint_reachable"):
        samples = [counts()]
    time.sleep(WINDOW)
    samples.append(counts())
    common.inside(a, f"sudo ping -q -i 0.05 -s 1000 -w {WINDOW} {b['private_ip']}")
    samples.append(counts())
    rates = [[(now - before) / (end[0] - begin[0]) for before, now in zip(begin[1:], end[1:], strict=True)]
             for begin, end in itertools.pairwise(samples)]
    output |= {"telemetry_namespace": "nova diagnostics", "probe_resource_id": target, "rates": rates,
               "sample_window_seconds": round(samples[-1][0] - samples[0][0], 1)}
    (resting_bytes, resting_packets), (busy_bytes, busy_packets) = rates
    output.confirm("performance_metric_present", busy_bytes > resting_bytes, "no more bytes a second")
    output.confirm("packet_metric_present", busy_packets > resting_packets, "no more packets a second")
    output.confirm("samples_recent", samples[0][2] < samples[-1][2], "the counters stand still")


def sdn_filter_audit_trail(output: Output) -> None:
    """Create a rule, replace it (Neutron's rules cannot be changed) and delete it; find each in Neutron's log."""
    cloud, log = tenant(), Path(common.setting("AICLOUD_NEUTRON_LOG"))
    output |= {"trail_id": str(log), "actor_field": "user"}
    with output.test("audit_endpoint_reachable"):
        begin = log.stat().st_size
    group = cloud.network.create_security_group(name=common.new_name())
    output.undo.callback(cloud.network.delete_security_group, group.id)

    def add(port: int) -> str:
        return str(cloud.network.create_security_group_rule(
            security_group_id=group.id, direction="ingress", **tcp(port)).id)

    first, second = add(8443), add(8444)
    for rule in (first, second):
        cloud.network.delete_security_group_rule(rule, ignore_missing=False)
    output["target_rule_id"] = first
    for name, wanted in (("create_rule_logged", {("create", first)}), ("delete_rule_logged", {("delete", second)}),
                         ("modify_rule_logged", {("create", second), ("delete", first)})):
        with output.test(name):
            wait(lambda wanted=wanted: wanted <= events(log, begin).keys(), f"the log has {wanted}", 30)
    with output.test("audit_event_has_required_fields") as entry:
        entry["event"] = events(log, begin)["create", first]
        need(entry["event"]["user"] == cloud.current_user_id, "the event names another user")
    with output.test("cleanup"):
        output.undo.close()
        need(cloud.network.find_security_group(group.id) is None, "the group is still there")


def events(log: Path, begin: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what Neutron's log says of rules, from a place in it on: what was done and the rule's id -> the event."""
    found = {}
    for line in log.read_bytes()[begin:].decode(errors="replace").split("\n")[:-1]:  # the last one may be unfinished
        if match := EVENT.match(line):
            changed, action, user, text = match.groups()
            payload = json.loads(text)["payload"]
            rule = payload.get("security_group_rule_id") or payload["security_group_rule"]["id"]
            found[action, rule] = {"time": changed, "user": user, "payload": payload}
    return found


if __name__ == "__main__":
    common.run(globals())
