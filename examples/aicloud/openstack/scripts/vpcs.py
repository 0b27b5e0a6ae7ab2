# SPDX-License-Identifier: Apache-2.0
"""Create, describe and delete what the suite network calls a VPC: a network, a router, and a pool for its subnets."""

import functools
import ipaddress
from typing import Any

from common import Output, external_network, stranger, wait
from openstack.connection import Connection


def create_vpc(cloud: Connection, name: str, cidr: str, subnets: int = 1) -> Any:
    """Create a network with subnets, one after the other: Neutron's agent may miss one that comes while it starts."""
    network = cloud.network.create_network(name=name)
    pool = cloud.network.create_subnet_pool(name=name, prefixes=[cidr], default_prefixlen=24)
    for number in range(subnets):
        subnet = cloud.network.create_subnet(network_id=network.id, subnet_pool_id=pool.id, ip_version=4,
                                             name=f"{name}-{number + 1}")
        wait(functools.partial(has_dhcp, cloud, subnet), f"DHCP in {subnet.cidr}")
    return network


def has_dhcp(cloud: Connection, subnet: Any) -> bool:
    """Return whether a port that answers has an address there: one of Neutron's agent is up then, OVN's never is."""
    return any((port.device_owner, port.status) == ("network:dhcp", "ACTIVE")
               or port.device_owner == "network:distributed"
               for port in cloud.network.ports(network_id=subnet.network_id)
               if subnet.id in {address["subnet_id"] for address in port.fixed_ips})


def create_router(cloud: Connection, name: str) -> None:
    """Lead a VPC's subnets to each other and outside."""
    external = {"network_id": external_network(cloud).id}
    router = cloud.network.create_router(name=name, external_gateway_info=external)
    for subnet in subnets_of(cloud, name):
        cloud.network.add_interface_to_router(router, subnet.id)


def foreign_vpc(output: Output, name: str) -> tuple[Connection, str]:
    """Log in as a member of another project that has a network, and return its id. All ends with the step."""
    cloud = stranger(output)
    output.undo.callback(delete_vpc, cloud, name)
    network = create_vpc(cloud, name, "10.40.0.0/24")
    create_router(cloud, name)
    return cloud, network.id


def subnets_of(cloud: Connection, name: str) -> list[Any]:
    network = cloud.network.find_network(name, ignore_missing=False)
    return sorted(cloud.network.subnets(network_id=network.id), key=lambda subnet: subnet.name)


def interfaces_of(cloud: Connection, name: str) -> list[Any]:
    """Return the ports by which a VPC's router is in networks of the tenant."""
    router = cloud.network.find_router(name, ignore_missing=False)
    return list(cloud.network.ports(device_id=router.id, device_owner="network:router_interface"))


def delete_vpc(cloud: Connection, name: str) -> list[str]:
    """Delete a VPC and what is in it; what is not there is left out."""
    deleted = []
    if router := cloud.network.find_router(name):
        cloud.network.update_router(router, routes=[])
        for port in interfaces_of(cloud, name):
            cloud.network.remove_interface_from_router(router, None, port.id)
        cloud.network.delete_router(router)
        deleted.append(f"router:{router.id}")
    if network := cloud.network.find_network(name):
        for port in cloud.network.ports(network_id=network.id):
            if not port.device_owner:
                cloud.network.delete_port(port)
        cloud.network.delete_network(network)
        deleted.append(f"network:{network.id}")
    if pool := cloud.network.find_subnet_pool(name):
        cloud.network.delete_subnet_pool(pool)
        deleted.append(f"subnet-pool:{pool.id}")
    return deleted


def described(cloud: Connection, name: str) -> dict[str, Any]:
    """Return what Neutron says about a VPC, in the suite's words."""
    network = cloud.network.find_network(name, ignore_missing=False)
    subnets = subnets_of(cloud, name)
    pool = cloud.network.get_subnet_pool(subnets[0].subnet_pool_id)
    ports = list(cloud.network.ports(network_id=network.id))
    used = [ipaddress.ip_address(address["ip_address"]) for port in ports for address in port.fixed_ips]
    servers = [address["ip_address"] for port in ports if port.device_owner == "network:dhcp"
               for address in port.fixed_ips]
    return {"network_id": network.id, "vpc_id": network.id, "vpc_name": network.name, "cidr": pool.prefixes[0],
            "subnets": [{
                "subnet_id": subnet.id, "cidr": subnet.cidr, "az": ",".join(network.availability_zones),
                "auto_assign_public_ip": False,
                "available_ips": sum(free(pool, used) for pool in subnet.allocation_pools)} for subnet in subnets],
            "dhcp_options": {"dhcp_options_id": subnets[0].id, "domain_name": network.dns_domain or "",
                             "domain_name_servers": subnets[0].dns_nameservers or servers, "ntp_servers": []}}


def free(pool: dict[str, str], used: list[Any]) -> int:
    """Return how many addresses of an allocation pool are not used; a router's is often outside."""
    start, end = (ipaddress.ip_address(pool[key]) for key in ("start", "end"))
    return int(end) - int(start) + 1 - sum(start <= address <= end for address in used)
