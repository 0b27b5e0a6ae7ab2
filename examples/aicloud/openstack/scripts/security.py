# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite security: what Keystone's roles allow, and what they refuse."""

import re
from typing import Any

import common
from common import Output, admin, login, need, refusal, tenant
from openstack.exceptions import raise_from_response

OURS = re.compile(r"isv-[0-9a-f]{8}")


def sa_credential_test(output: Output) -> None:
    """Log in as a user that no person uses, with an application credential, and make a request."""
    auth = common.new_user(admin(), "reader", tenant().current_project_id)
    output.undo.callback(common.delete_user, admin(), auth["username"])
    owner = login(auth)
    identity: Any = owner.identity
    key = identity.create_application_credential(owner.current_user_id, auth["username"])
    cloud = login({"application_credential_id": key.id, "application_credential_secret": key.secret},
                  "v3applicationcredential")
    output |= {"authenticated": bool(cloud.session.get_token()), "credential_type": "application credential",
               "credential_source": "long_lived_key", "identity": cloud.current_user_id, "expires_at": key.expires_at}
    need(cloud.current_user_id == owner.current_user_id, "the credential is another user's")
    list(cloud.compute.servers())


def least_privilege_test(output: Output) -> None:
    """Let a reader of the project read one of its networks, one of another project's, and write in three services."""
    cloud, identity = tenant(), admin().identity
    other: Any = identity.create_project(name=common.new_name(), domain_id="default")
    output.undo.callback(identity.delete_project, other)
    auth = {}
    for name, role, project in (("reader", "reader", cloud.current_project_id), ("stranger", "member", other.id)):
        auth[name] = common.new_user(admin(), role, project)
        output.undo.callback(common.delete_user, admin(), auth[name]["username"])
    reader, stranger = login(auth["reader"]), login(auth["stranger"])
    networks = []
    for owner in (cloud, stranger):
        networks.append(owner.network.create_network(name=common.new_name()))
        output.undo.callback(owner.network.delete_network, networks[-1])
    own, foreign = networks
    output |= {"test_identity": auth["reader"]["username"], "allowed_resource": own.id}
    with output.test("policy_dimensions_allowed_action_succeeds"):
        need(reader.network.get_network(own.id).id == own.id, "another network")
    with output.test("policy_dimensions_resource_based") as entry:
        entry["status"] = refusal(lambda: reader.network.get_network(foreign.id))
    with output.test("policy_dimensions_user_based") as entry:
        entry["status"] = refusal(lambda: stranger.network.get_network(own.id))
        entry["login_status"] = refusal(
            login({**auth["stranger"], "project_id": cloud.current_project_id}).session.get_token)
    with output.test("out_of_scope_compute_denied") as entry:
        flavor, image = next(iter(cloud.compute.flavors())), next(iter(cloud.image.images()))
        entry["status"] = refusal(lambda: reader.compute.create_server(
            name=common.new_name(), flavor_id=flavor.id, image_id=image.id, networks="none"))
    with output.test("out_of_scope_storage_denied") as entry:
        entry["status"] = refusal(lambda: raise_from_response(reader.image.post(
            "/images", json={"name": common.new_name(), "disk_format": "raw", "container_format": "bare"})))
    with output.test("out_of_scope_network_denied") as entry:
        entry["status"] = refusal(lambda: reader.network.create_network(name=common.new_name()))


def teardown(output: Output) -> None:
    """Delete the users and projects that an interrupted step left."""
    cloud, deleted = admin(), []
    identity: Any = cloud.identity
    for user in list(identity.users()):
        if OURS.fullmatch(user.name):
            identity.delete_user(user)
            deleted.append(f"user:{user.name}")
    for project in list(identity.projects()):
        if OURS.fullmatch(project.name):
            identity.delete_project(project)
            deleted.append(f"project:{project.name}")
    output |= {"resources_deleted": deleted, "message": "no user and no project of the steps is left"}


if __name__ == "__main__":
    common.run(sa_credential_test, least_privilege_test, teardown)
