# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite security: what Keystone's roles allow, and how far tenants and their capacity are apart."""

from typing import Any

import common
from common import Output, admin, login, need, refusal, request, server_group, stranger, tenant
from control_plane import new_key, with_key
from fleet import hosts
from openstack.connection import Connection
from openstack.exceptions import BadRequestException, raise_from_response
from vpcs import foreign_vpc, subnets_of

NAME, OTHER = "isv-own", "isv-other"


def sa_credential_test(output: Output) -> None:
    """Log in as a user that no person uses, with an application credential, and make a request."""
    auth = common.new_user("reader", tenant().current_project_id, undo=output.undo)
    owner = login(auth)
    key = new_key(owner, auth["username"])
    cloud = with_key(key.id, key.secret)
    output |= {"authenticated": bool(cloud.session.get_token()), "credential_type": "application credential",
               "credential_source": "long_lived_key", "identity": cloud.current_user_id}
    need(cloud.current_user_id == owner.current_user_id, "the credential is another user's")
    list(cloud.compute.servers())


def least_privilege_test(output: Output) -> None:
    """Let a reader of the project read one of its networks, one of another project's, and write in three services."""
    cloud, other = tenant(), common.new_project(output)
    auth = {role: common.new_user(role, project, undo=output.undo)
            for role, project in (("reader", cloud.current_project_id), ("member", other))}
    reader, member = login(auth["reader"]), login(auth["member"])
    networks = []
    for owner in (cloud, member):
        networks.append(owner.network.create_network(name=common.new_name()))
        output.undo.callback(owner.network.delete_network, networks[-1])
    own, foreign = networks
    output |= {"test_identity": auth["reader"]["username"], "allowed_resource": own.id}
    with output.test("policy_dimensions_allowed_action_succeeds"):
        need(reader.network.get_network(own.id).id == own.id, "another network")
    flavor, image = next(iter(cloud.compute.flavors())), next(iter(cloud.image.images()))
    refused(output, {
        "policy_dimensions_resource_based": lambda: reader.network.get_network(foreign.id),
        "policy_dimensions_user_based": [
            lambda: member.network.get_network(own.id),
            login({**auth["member"], "project_id": cloud.current_project_id}).session.get_token],
        "out_of_scope_compute_denied": lambda: reader.compute.create_server(
            name=common.new_name(), flavor_id=flavor.id, image_id=image.id, networks="none"),
        "out_of_scope_storage_denied": lambda: raise_from_response(reader.image.post(
            "/images", json={"name": common.new_name(), "disk_format": "raw", "container_format": "bare"})),
        "out_of_scope_network_denied": lambda: reader.network.create_network(name=common.new_name())})


def refused(output: Output, calls: dict[str, Any]) -> None:
    """Test that the cloud refuses each of the calls."""
    for name, call in calls.items():
        with output.test(name) as entry:
            entry["status"] = [refusal(each) for each in (call if isinstance(call, list) else [call])]


def tenant_isolation_test(output: Output) -> None:
    """Let the tenant try what is another project's: its network, its image, its server and the disk of that."""
    cloud, (other, network) = tenant(), foreign_vpc(output, OTHER)
    output |= {"tenant_a_id": cloud.current_project_id, "tenant_b_id": other.current_project_id}
    for owner, name, where in ((other, OTHER, network), (cloud, NAME, "")):
        output.undo.callback(common.remove, owner, name)
        common.launch(owner, name, network=where, flavor=common.plain_flavor())
    mine, theirs = common.describe(cloud, NAME), common.describe(other, OTHER)
    image = other.create_image(OTHER, data=b"theirs", disk_format="raw", container_format="bare", wait=True)
    output.undo.callback(other.image.delete_image, image.id)
    router = cloud.network.create_router(name=NAME)
    output.undo.callback(cloud.network.delete_router, router)
    server, compute = theirs["instance_id"], cloud.compute
    refused(output, {
        "network_isolated": [lambda: cloud.network.get_network(network),
                             lambda: cloud.network.create_port(network_id=network),
                             lambda: cloud.network.add_interface_to_router(router, subnets_of(other, OTHER)[0].id)],
        "data_isolated": [lambda: cloud.image.get_image(image.id),
                          lambda: raise_from_response(cloud.image.get(f"/images/{image.id}/file"))],
        "compute_isolated": [lambda: compute.get_server(server), lambda: compute.stop_server(server),
                             lambda: compute.get_server_console_output(server),
                             lambda: compute.delete_server(server, ignore_missing=False)],
        "storage_isolated": [lambda: compute.create_server_image(server, NAME),
                             lambda: compute.rebuild_server(server, image=image.id),
                             lambda: raise_from_response(cloud.image.delete(f"/images/{image.id}"))]})
    ping = f"sudo ping -c 2 -W 2 {theirs['private_ip']}"
    with output.test("no_way_between_servers"):
        need(common.succeeds(theirs, ping), "the server does not answer itself either")
        need(not common.succeeds(mine, ping), "ping passes")


def capacity_reservation_grouping(output: Output) -> None:
    """Reserve all hosts for the tenant by an aggregate, and request a server as the tenant and as somebody else."""
    cloud, compute = tenant(), admin().compute
    project = cloud.current_project_id
    aggregate = compute.create_aggregate(name=common.new_name())
    output.undo.callback(compute.delete_aggregate, aggregate.id)
    compute.set_aggregate_metadata(aggregate.id, {"filter_tenant_id": project})
    for host in hosts():
        compute.add_host_to_aggregate(aggregate.id, host.name)
        output.undo.callback(compute.remove_host_from_aggregate, aggregate.id, host.name)
    found = compute.get_aggregate(aggregate.id)
    account = found.metadata["filter_tenant_id"]
    (own,), (foreign,) = request(output, cloud), request(output, stranger(output))
    placed = compute.get_server(own.id).compute_host in found.hosts
    output |= {"reservation_id": found.name, "account_id": project, "pinned": placed and own.status == "ACTIVE",
               "isolation_enforced": foreign.status == "ERROR", "refusal": (foreign.fault or {}).get("message"),
               "resources": [{"resource_id": host, "resource_type": "compute", "account_id": account,
                              "pinned": account == project} for host in found.hosts]}


def topology_block_atomic_allocation(output: Output) -> None:
    """Request servers that shall be on one host: more than a host has GPUs for, two, and one as another project."""
    cloud, operator, other = tenant(), admin(), stranger(output)
    project, flavor = cloud.current_project_id, common.setting("AICLOUD_FLAVOR")

    def block(number: int) -> tuple[str, list[Any]]:
        group = server_group(output, cloud, "soft-anti-affinity")
        return group, request(output, cloud, number, flavor, {"group": group, "task_groups": "1"})

    most = max(len(host.gpus) for host in hosts())
    _, refused_ones = block(most + 1)
    left = [operator.placement.get(f"/allocations/{server.id}").json()["allocations"] for server in refused_ones]
    group, members = block(2)
    reason = refusal_to_join(output, other, group)
    started = [server for server in members if server.status == "ACTIVE"]
    places = {server.id: operator.compute.get_server(server.id).compute_host for server in started}
    reservation = operator.compute.get_server(members[0].id).reservation_id
    output["topology_block"] = {
        "block_id": group, "tenant_id": project, "reservation_id": reservation,
        "allocated_as_unit": len(started) == len(members) and {server.status for server in refused_ones} == {"ERROR"},
        "partial_allocation": any(left), "homogeneous": len(set(places.values())) == 1,
        "isolation_enforced": group in reason, "refusal": reason,
        "requested": {"compute": len(members)}, "allocated": {"compute": len(started)},
        "resources": [{"resource_id": server.id, "resource_type": "compute", "tenant_id": server.project_id,
                       "topology_block_id": group, "performance_domain": places[server.id],
                       "isolation_boundary": server.project_id} for server in started]}


def refusal_to_join(output: Output, cloud: Connection, group: str) -> str:
    """Request a server without GPUs in a server group, and return what nova says against it, which names the group."""
    try:
        (server,) = request(output, cloud, hints={"group": group, "task_groups": "1"})
    except BadRequestException as error:  # nova's API searches the group only in the server's project
        return str(error)
    return str((server.fault or {}).get("message", ""))


def teardown(output: Output) -> None:
    """Delete the users and projects that an interrupted step left."""
    identity: Any = admin().identity
    deleted = []
    for kind, found, delete in (("user", list(identity.users()), identity.delete_user),
                                ("project", list(identity.projects()), identity.delete_project)):
        for each in found:
            if each.name.startswith(common.PREFIX):
                delete(each)
                deleted.append(f"{kind}:{each.name}")
    output["resources_deleted"] = deleted


if __name__ == "__main__":
    common.run(globals())
