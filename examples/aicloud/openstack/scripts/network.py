# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite network that Neutron's API answers."""

import ipaddress
from typing import Any

import common
from common import Output, need, tcp, tenant
from vpcs import create_router, create_vpc, delete_vpc, described, subnets_of

FIRST = "isv-net-1"  # made by traffic.py
RESOLVERS = ["192.0.2.53"]
PORT, OTHER_PORT = 8443, 8444


def list_vpcs(output: Output) -> None:
    found = {network.id: network.name for network in tenant().network.networks()}
    output |= {"vpcs": sorted(found), "count": len(found), "found_target": FIRST in found.values()}


def get_vpc(output: Output) -> None:
    network = tenant().network.find_network(FIRST, ignore_missing=False)
    output |= {"vpc_id": network.id, "vpc_name": network.name}


def subnet_assignment(output: Output) -> None:
    with output.test("subnet_assigned") as entry:
        entry["subnets"] = [subnet.cidr for subnet in subnets_of(tenant(), FIRST)]
        need(entry["subnets"], "the network has no subnet")


def vpc_ip_config(output: Output) -> None:
    output |= described(tenant(), FIRST)


def vpc_crud(output: Output) -> None:
    cloud, name = tenant(), "isv-crud"
    output.undo.callback(delete_vpc, cloud, name)
    with output.test("create_vpc") as entry:
        entry["vpc_id"] = create_vpc(cloud, name, "10.99.0.0/16").id
    with output.test("read_vpc") as entry:
        entry["attributes"] = described(cloud, name)
        need(entry["attributes"]["cidr"] == "10.99.0.0/16", "another range of addresses")
    with output.test("update_tags") as entry:
        cloud.network.set_tags(cloud.network.get_network(output["tests"]["create_vpc"]["vpc_id"]), ["isv", "updated"])
        entry["tags"] = sorted(cloud.network.find_network(name).tags)
        need(entry["tags"] == ["isv", "updated"], "other tags")
    with output.test("update_dns") as entry:
        (subnet,) = subnets_of(cloud, name)
        cloud.network.update_subnet(subnet, dns_nameservers=RESOLVERS)
        entry["servers"] = described(cloud, name)["dhcp_options"]["domain_name_servers"]
        need(entry["servers"] == RESOLVERS, "other servers")
    with output.test("delete_vpc"):
        delete_vpc(cloud, name)
        need(cloud.network.find_network(name) is None, "the network is still there")


def byoip_test(output: Output) -> None:
    """Use a range of the tenant's beside one of the usual ranges, in two networks on one router."""
    cloud, names = tenant(), {"isv-own": "100.64.0.0/16", "isv-usual": "10.90.0.0/16"}
    for name in names:
        output.undo.callback(delete_vpc, cloud, name)
    with output.test("custom_cidr_create") as entry:
        entry |= {"vpc_id": create_vpc(cloud, "isv-own", names["isv-own"]).id, "cidr": names["isv-own"]}
    with output.test("custom_cidr_verify") as entry:
        entry["cidr"] = described(cloud, "isv-own")["cidr"]
        need(entry["cidr"] == names["isv-own"], "another range")
    with output.test("custom_cidr_subnet") as entry:
        (own,) = subnets_of(cloud, "isv-own")
        entry |= {"subnet_id": own.id, "cidr": own.cidr}
        need(ipaddress.ip_network(own.cidr).subnet_of(ipaddress.ip_network(names["isv-own"])), "not in the range")
    with output.test("standard_cidr_create") as entry:
        entry["vpc_id"] = create_vpc(cloud, "isv-usual", names["isv-usual"]).id
    with output.test("no_conflict"):  # a router refuses subnets that overlap
        create_router(cloud, "isv-own")
        (usual,) = subnets_of(cloud, "isv-usual")
        router = cloud.network.find_router("isv-own")
        cloud.network.add_interface_to_router(router, usual.id)
        cloud.network.remove_interface_from_router(router, usual.id)


def sg_crud(output: Output) -> None:
    """Create, read, change and delete a group. Neutron's rules cannot be changed, so a new one replaces the old one."""
    cloud, name = tenant(), "isv-crud"
    output.undo.callback(delete_vpc, cloud, name)

    def ports() -> list[int]:
        return [rule["port_range_min"] for rule in cloud.network.get_security_group(group.id).security_group_rules
                if rule["direction"] == "ingress" and rule["protocol"] == "tcp"]

    def add(port: int) -> Any:
        return cloud.network.create_security_group_rule(security_group_id=group.id, direction="ingress", **tcp(port))

    with output.test("create_vpc"):
        create_vpc(cloud, name, "10.95.0.0/16")
    with output.test("create_sg") as entry:
        group = cloud.network.create_security_group(name=common.new_name())
        output.undo.callback(cloud.network.delete_security_group, group.id)
        entry["sg_id"] = group.id
    output.confirm("read_sg", cloud.network.get_security_group(group.id).name == group.name, "another name")
    with output.test("update_sg_add_rule"):
        rule = add(PORT)
        need(ports() == [PORT], f"ports {ports()}")
    with output.test("update_sg_modify_rule"):
        cloud.network.delete_security_group_rule(rule, ignore_missing=False)
        rule = add(OTHER_PORT)
        need(ports() == [OTHER_PORT], f"ports {ports()}")
    with output.test("update_sg_remove_rule"):
        cloud.network.delete_security_group_rule(rule, ignore_missing=False)
        need(not ports(), f"ports {ports()}")
    with output.test("delete_sg"):
        cloud.network.delete_security_group(group.id, ignore_missing=False)
    with output.test("verify_deleted"):
        need(group.id not in [each.id for each in cloud.network.security_groups()], "the list still has it")


if __name__ == "__main__":
    common.run(globals())
