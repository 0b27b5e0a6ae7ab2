# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite network that are tried from inside of servers.

create_network makes two VPCs: servers ``a`` (first subnet), ``b`` and ``t`` (second subnet) are in the first one, ``c``
is in the other. Ports 8443 and 8444 answer in each; no security group lets anybody there.
"""

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
from common import Output, inside, need, ssh, succeeds, tcp, tenant, wait
from openstack.connection import Connection
from vpcs import create_router, create_vpc, delete_vpc, described, interfaces_of, subnets_of

NAME = "isv-net"
VPCS = {f"{NAME}-1": "10.10.0.0/16", f"{NAME}-2": "10.20.0.0/16"}
PORT, OTHER_PORT = 8443, 8444
PROBE = 3  # s, for a connection
PROBES = 3  # of the address that a server is seen with outside
PROPAGATION = 30  # s, until a changed rule must be in force
LISTEN = "#!/bin/sh\n" + "".join(
    f"setsid -f python3 -m http.server {port} -d /srv > /dev/null 2>&1 < /dev/null\n" for port in (PORT, OTHER_PORT))


def create_network(output: Output) -> None:
    """Create both VPCs and their servers, whose port 8443 and 8444 answer."""
    cloud = tenant()
    common.create_access(cloud, NAME)
    for (name, cidr), letters in zip(VPCS.items(), ("abt", "c"), strict=True):
        network = create_vpc(cloud, name, cidr, 2)
        create_router(cloud, name)
        subnets = subnets_of(cloud, name)
        group = cloud.network.find_security_group(NAME)
        for letter in letters:
            port = cloud.network.create_port(
                network_id=network.id, name=f"{NAME}-{letter}", security_groups=[group.id],
                fixed_ips=[{"subnet_id": subnets[letter in "bt"].id}])
            common.create_server(cloud, f"{NAME}-{letter}", NAME, [{"port": port.id}], user_data=LISTEN,
                                 flavor=common.plain_flavor())
    for letter in "abtc":
        server = common.await_access(cloud, f"{NAME}-{letter}")
        for port in (PORT, OTHER_PORT):
            wait(lambda server=server, port=port: ssh(server, probe("127.0.0.1", port)).returncode == 0,
                 f"port {port} in {letter}", 60)
    output |= described(cloud, next(iter(VPCS)))


def servers(cloud: Connection, letters: str) -> list[dict[str, Any]]:
    return [common.describe(cloud, f"{NAME}-{letter}") for letter in letters]


def probe(address: str, port: int) -> str:
    return f"timeout {PROBE} bash -c '< /dev/tcp/{address}/{port}'"


def reaches(source: dict[str, Any], address: str, port: int) -> bool:
    return succeeds(source, probe(address, port))


def pings(source: dict[str, Any], target: dict[str, Any]) -> bool:
    return succeeds(source, f"sudo ping -c 2 -W 2 {target['private_ip']}")


def refuses(target: dict[str, Any], port: int, source: dict[str, Any], address: str = "") -> None:
    """Raise :class:`Unmet` unless a port of a server answers inside it, and does not answer another server."""
    need(reaches(target, "127.0.0.1", port), f"nothing listens at port {port}, so its silence proves nothing")
    need(not reaches(source, address or target["private_ip"], port), f"port {port} answers")


@contextlib.contextmanager
def group_on(cloud: Connection, port: Any, **rule: Any) -> Iterator[tuple[Any, Any]]:
    """Give a port one more security group with one ingress rule meanwhile."""
    group, before = cloud.network.create_security_group(name=common.new_name()), list(port.security_group_ids)
    try:
        made = cloud.network.create_security_group_rule(security_group_id=group.id, direction="ingress", **rule)
        cloud.network.update_port(port, security_groups=[*before, group.id])
        yield group, made
    finally:
        cloud.network.update_port(port, security_groups=before)
        cloud.network.delete_security_group(group)


def vpc_isolation(output: Output) -> None:
    """Compare the routers of both VPCs, and try the way between their servers in both directions."""
    cloud = tenant()
    first, second = VPCS
    ranges = {name: ipaddress.ip_network(cidr) for name, cidr in VPCS.items()}
    with output.test("no_peering") as entry:
        entry["routers"] = {name: sorted({port.network_id for port in interfaces_of(cloud, name)}) for name in VPCS}
        need(not set(entry["routers"][first]) & set(entry["routers"][second]), "a network is on both routers")
    for name, other, test in ((first, second, "no_cross_routes_a"), (second, first, "no_cross_routes_b")):
        with output.test(test) as entry:
            entry["routes"] = cloud.network.find_router(name).routes
            need(not any(ipaddress.ip_network(route["destination"]).overlaps(ranges[other])
                         for route in entry["routes"]), "a route to the other VPC")
    a, b, c = servers(cloud, "abc")
    for source, target, test in ((a, c, "sg_isolation_a"), (c, a, "sg_isolation_b")):
        with output.test(test):
            need(pings(a, b), "ping does not pass in the same VPC either")
            need(not pings(source, target), "ping passes")
            refuses(target, 22, source)
    for key, name in (("vpc_a", first), ("vpc_b", second)):
        output[key] = {"id": cloud.network.find_network(name).id, "cidr": VPCS[name]}


def scoping(scope: str, allowed: str, blocked: str) -> Callable[[Output], None]:
    """Return a step: allow one way to port 8443 of ``t``, and see that it is open and another one is not."""
    def step(output: Output) -> None:
        cloud = tenant()
        a, b, t = servers(cloud, "abt")
        output["scope"] = scope
        subnet = subnets_of(cloud, next(iter(VPCS)))[0].cidr
        with contextlib.ExitStack() as stack:
            with output.test("create_sg"):
                workload = cloud.network.create_security_group(name=common.new_name())
                stack.callback(cloud.network.delete_security_group, workload)
            with output.test(f"apply_{scope}_rule") as entry:
                if scope == "workload":  # a is a member of the group that the rule names
                    port = common.port_of(cloud, f"{NAME}-a")
                    before = list(port.security_group_ids)
                    cloud.network.update_port(port, security_groups=[*before, workload.id])
                    stack.callback(cloud.network.update_port, port, security_groups=before)
                peer = {"workload": {"remote_group_id": workload.id}, "node": {"remote_ip_prefix": a["private_ip"]},
                        "subnet": {"remote_ip_prefix": subnet}, "service": {}}[scope]
                _, rule = stack.enter_context(
                    group_on(cloud, common.port_of(cloud, f"{NAME}-t"), **tcp(PORT), **peer))
                entry["rule"] = rule.id
            with output.test(allowed):
                wait(lambda: reaches(a, t["private_ip"], PORT), "port 8443 of t from a", PROPAGATION)
            with output.test(blocked):
                if scope == "service":
                    refuses(t, OTHER_PORT, a)
                    refuses(b, PORT, a)
                else:
                    refuses(t, PORT, b)
        with output.test("cleanup"):
            wait(lambda: not reaches(a, t["private_ip"], PORT), "port 8443 of t is closed again", PROPAGATION)

    return step


def sg_port_security_policy(output: Output) -> None:
    """Attach one more interface to ``t`` while it runs, with a policy of its own, and try both from ``a``."""
    cloud = tenant()
    a, t = servers(cloud, "at")
    with output.test("create_virtual_interface") as entry:
        subnet = subnets_of(cloud, next(iter(VPCS)))[0]
        port = cloud.network.create_port(network_id=subnet.network_id, name=f"{NAME}-more", security_groups=[],
                                         fixed_ips=[{"subnet_id": subnet.id}])
        output.undo.callback(cloud.network.delete_port, port.id)
        cloud.compute.create_server_interface(t["instance_id"], port_id=port.id)
        output.undo.callback(detach, cloud, t, port.id)
        address = port.fixed_ips[0]["ip_address"]
        find = f"ip -o link | grep -i {port.mac_address}"
        wait(lambda: succeeds(t, find), "the interface inside", 60)
        name = inside(t, find).split()[1].partition("@")[0].rstrip(":")
        # Replies leave by the interface that received the request: Neutron blocks the address of another port.
        for words in (f"address add {address}/24 dev {name}", f"link set {name} up",
                      f"route add {subnet.cidr} dev {name} table 100", f"rule add from {address} table 100"):
            inside(t, f"sudo ip {words}")
        output.undo.callback(inside, t, "sudo ip rule del table 100")
        entry |= {"port_id": port.id, "name": name}
    port = cloud.network.get_port(port.id)
    with output.test("apply_port_policy") as entry:
        entry["rule"] = output.undo.enter_context(group_on(cloud, port, **tcp(PORT)))[1].id
    with output.test("allowed_port_permitted"):
        wait(lambda: reaches(a, address, PORT), "port 8443 of the new interface", PROPAGATION)
    with output.test("unlisted_port_blocked"):
        refuses(t, OTHER_PORT, a, address)
    with output.test("other_interface_unaffected"):
        need(reaches(a, t["private_ip"], 22), "the first interface does not answer at all")
        refuses(t, PORT, a)
    with output.test("cleanup"):
        output.undo.close()
        wait(lambda: not succeeds(t, find), "the interface is gone inside", 60)


def detach(cloud: Connection, server: dict[str, Any], port: str) -> None:
    """Detach a port, and wait until Neutron knows it."""
    cloud.compute.delete_server_interface(port, server["instance_id"])
    wait(lambda: not cloud.network.get_port(port).device_id, "the port is detached", 60)


def sg_policy_propagation(output: Output) -> None:
    """Measure how long a rule takes until a connection from ``a`` to ``t`` passes, and until it does no more."""
    cloud = tenant()
    a, t = servers(cloud, "at")
    port = common.port_of(cloud, f"{NAME}-t")
    with contextlib.ExitStack() as stack:
        with output.test("create_probe_rule"):
            group, rule = stack.enter_context(group_on(cloud, port, **tcp(PORT)))
            begun = time.monotonic()
            output["target_rule_id"] = rule.id
        with output.test("rule_observed"):
            wait(lambda: reaches(a, t["private_ip"], PORT), "the port is open", PROPAGATION, 0.1)
            output["add_observed_seconds"] = round(time.monotonic() - begun, 2)
        with output.test("revoke_probe_rule"):
            cloud.network.delete_security_group_rule(rule, ignore_missing=False)
            begun = time.monotonic()
        with output.test("removal_observed"):
            wait(lambda: not reaches(a, t["private_ip"], PORT), "the port is closed", PROPAGATION, 0.1)
            output["remove_observed_seconds"] = round(time.monotonic() - begun, 2)
    output.confirm("cleanup", cloud.network.find_security_group(group.id) is None, "the group is still there")


def connectivity_test(output: Output) -> None:
    """Ping ``b`` from ``a``, in the other subnet, and back."""
    cloud = tenant()
    a, b = servers(cloud, "ab")
    output["instances"] = [{key: server[key] for key in ("instance_id", "private_ip", "public_ip", "vpc_id")}
                           for server in (a, b)]
    for source, target, name in ((a, b, "a_to_b"), (b, a, "b_to_a")):
        output.confirm(name, pings(source, target), "no answer")


def dhcp_ip_test(output: Output) -> None:
    output |= servers(tenant(), "a")[0]


def storage_l3_routing(output: Output) -> None:
    """Ping each of ``a``, ``b`` and ``t`` from each other one, and read whether its route has a gateway."""
    cloud = tenant()
    hosts = servers(cloud, "abt")
    subnets = {address["ip_address"]: address["subnet_id"] for letter in "abt"
               for address in common.port_of(cloud, f"{NAME}-{letter}").fixed_ips}
    pairs = [(source, target) for source in hosts for target in hosts if source is not target]
    across = [(source, target) for source, target in pairs
              if subnets[source["private_ip"]] != subnets[target["private_ip"]]]
    answered = [pair for pair in pairs if pings(*pair)]
    direct = [(source, target) for source, target in across
              if " via " not in inside(source, f"ip route get {target['private_ip']}")]
    with output.test("distinct_subnets") as entry:
        entry["subnet_count"] = len(set(subnets.values()))
        need(entry["subnet_count"] > 1, "all are in one subnet")
    for name, wanted, key, found in (
            ("all_to_all_reachable", pairs, "pairs_reachable", answered),
            ("cross_subnet_routing", across, "pairs_reachable", [pair for pair in across if pair in answered]),
            ("no_gateway_hop", across, "pairs_direct", direct)):
        with output.test(name) as entry:
            entry |= {"pairs_tested": len(wanted), key: len(found)}
            need(found == wanted, f"{len(found)} of {len(wanted)} pairs")


def peering_test(output: Output) -> None:
    """Connect the routers of both VPCs by a network between them, and ping ``c`` from ``a``."""
    cloud, transit = tenant(), "isv-transit"
    output.undo.callback(delete_vpc, cloud, transit)
    routers: dict[str, Any] = {}
    addresses: dict[str, str] = {}

    def attach(name: str) -> None:
        routers[name] = cloud.network.find_router(name, ignore_missing=False)
        port = cloud.network.create_port(network_id=network.id, name=f"{transit}-{name}")
        addresses[name] = port.fixed_ips[0]["ip_address"]
        cloud.network.add_interface_to_router(routers[name], None, port.id)
        output.undo.callback(cloud.network.remove_interface_from_router, routers[name], None, port.id)

    for key, name in zip("ab", VPCS, strict=True):
        with output.test(f"create_vpc_{key}"):
            output[f"vpc_{key}"] = {"id": cloud.network.find_network(name, ignore_missing=False).id, "cidr": VPCS[name]}
    first, second = VPCS
    a, c = servers(cloud, "ac")
    with output.test("create_peering") as entry:
        network = create_vpc(cloud, transit, "10.30.0.0/24")
        attach(first)
        entry["network_id"] = network.id
    with output.test("accept_peering"):
        attach(second)
    with output.test("add_routes"):
        need(not pings(a, c), "there is a way before the routes")
        for name, other in ((first, second), (second, first)):
            cloud.network.update_router(routers[name], routes=[
                {"destination": VPCS[other], "nexthop": addresses[other]}])
            output.undo.callback(cloud.network.update_router, routers[name], routes=[])
    with output.test("peering_active"):
        wait(lambda: pings(a, c), "c answers a", 60)


def stable_ip_test(output: Output) -> None:
    """Stop ``b``, start it, and compare its address in Neutron and inside."""
    cloud, name = tenant(), f"{NAME}-b"
    (b,) = servers(cloud, "b")
    with output.test("create_instance") as entry:
        entry["instance_id"] = b["instance_id"]
    with output.test("record_ip") as entry:
        entry["private_ip"] = b["private_ip"]
        need(b["private_ip"] in inside(b, "ip -o -4 address"), "inside it is another one")
    with output.test("stop_instance"):
        common.stop(cloud, name)
    with output.test("start_instance"):
        common.start(cloud, name)
    with output.test("ip_unchanged") as entry:
        after = common.describe(cloud, name)["private_ip"]
        entry |= {"ip_before": b["private_ip"], "ip_after": after}
        need(after == b["private_ip"] and after in inside(b, "ip -o -4 address"), "the address changed")


def stable_egress_ip_test(output: Output) -> None:
    """Let ``a`` ask a service outside for the address that it comes from, several times."""
    (a,) = servers(tenant(), "a")
    with output.test("create_instance") as entry:
        entry["instance_id"] = a["instance_id"]
    with output.test("probe_egress_ip") as entry:
        found = []
        for _ in range(PROBES):
            found.append(inside(a, f"curl -sf --max-time 10 {common.setting('AICLOUD_EGRESS')}").strip())
            time.sleep(2)
        entry |= {"probes": len(found), "addresses": found}
    output.confirm("egress_ip_stable", set(found) == {a["public_ip"]}, f"{found} and not {a['public_ip']} alone")


def floating_ip_test(output: Output) -> None:
    """Move a floating IP from ``a`` to ``b``; which server answers is read from inside."""
    cloud = tenant()
    ports = {letter: common.port_of(cloud, f"{NAME}-{letter}") for letter in "ab"}
    used = {letter: next(iter(cloud.network.ips(port_id=port.id))) for letter, port in ports.items()}
    (server,) = servers(cloud, "a")

    def answers(letter: str) -> bool:
        return ssh(server, "ip -o -4 address", 20).stdout.find(f" {ports[letter].fixed_ips[0]['ip_address']}/") > 0

    with output.test("allocate_eip") as entry:
        address = cloud.network.create_ip(floating_network_id=used["a"].floating_network_id)
        output.undo.callback(cloud.network.delete_ip, address.id)
        entry |= {"allocation_id": address.id, "public_ip": address.floating_ip_address}
        server["public_ip"] = address.floating_ip_address
    for letter in "ab":  # a port's address has one floating IP
        cloud.network.update_ip(used[letter], port_id=None)
        output.undo.callback(cloud.network.update_ip, used[letter], port_id=ports[letter].id)
    output.undo.callback(cloud.network.update_ip, address, port_id=None)
    with output.test("associate_to_a"):
        cloud.network.update_ip(address, port_id=ports["a"].id)
    with output.test("verify_on_a"):
        wait(lambda: answers("a"), "a answers", 60)
    with output.test("reassociate_to_b") as entry:
        begun = time.monotonic()
        cloud.network.update_ip(address, port_id=ports["b"].id)
        wait(lambda: answers("b"), "b answers", 60, 0.2)
        entry["switch_seconds"] = round(time.monotonic() - begun, 2)
    with output.test("verify_on_b"):
        need(cloud.network.get_ip(address.id).port_id == ports["b"].id, "Neutron names another port")
    output.confirm("verify_not_on_a", not answers("a"), "a answers as well")


def teardown(output: Output) -> None:
    cloud = tenant()
    output["resources_deleted"] = common.remove(cloud, NAME)
    for name in VPCS:
        output["resources_deleted"] += delete_vpc(cloud, name)


for _scope, _words in {"workload": ("workload_allowed", "other_workload_blocked"),
                       "node": ("target_node_allowed", "other_node_blocked"),
                       "subnet": ("subnet_allowed", "other_subnet_blocked"),
                       "service": ("service_endpoint_allowed", "other_endpoint_blocked")}.items():
    globals()[f"sg_{_scope}_scoping"] = scoping(_scope, *_words)

if __name__ == "__main__":
    common.run(globals())
