# SPDX-License-Identifier: Apache-2.0
"""Steps of the suites control-plane and iam: Keystone's users, application credentials and projects."""

import time
from typing import Any

import common
import openstack
from common import Output, Unmet, admin, login, need, new_name, refusal, tenant


def check_api(output: Output) -> None:
    """Make an authenticated request to each service of the catalog that a server needs."""
    cloud = tenant()
    output |= {"account_id": cloud.current_project_id, "region": cloud.config.get_region_name()}
    requests = {"identity": cloud.session.get_token,
                "compute": lambda: list(cloud.compute.servers(limit=1, paginated=False)),
                "image": lambda: list(cloud.image.images(limit=1, paginated=False)),
                "network": lambda: list(cloud.network.networks(limit=1, paginated=False))}
    for name, request in requests.items():
        with output.test(name) as entry:
            begun = time.monotonic()
            request()
            entry["latency_ms"] = round(1000 * (time.monotonic() - begun), 1)


def create_access_key(output: Output) -> None:
    """Create a user of the tenant's project, who makes an application credential."""
    auth = common.new_user(admin(), "member", tenant().current_project_id)
    cloud = login(auth)
    identity: Any = cloud.identity
    key = identity.create_application_credential(cloud.current_user_id, auth["username"])
    output |= {"username": auth["username"], "user_id": cloud.current_user_id, "access_key_id": key.id,
               "secret_access_key": key.secret, "project_id": auth["project_id"]}


def with_key(key: str, secret: str) -> openstack.connection.Connection:
    return login({"application_credential_id": key, "application_credential_secret": secret},
                 "v3applicationcredential")


def test_access_key(output: Output, key: str, secret: str) -> None:
    """Log in with the application credential, and read who that is and what it reaches."""
    cloud = with_key(key, secret)
    with output.test("identity") as entry:
        output |= {"authenticated": bool(cloud.session.get_token()), "identity_id": cloud.current_user_id,
                   "account_id": cloud.current_project_id}
        entry["user_id"] = cloud.current_user_id
    with output.test("access") as entry:
        entry["flavors"] = len(list(cloud.compute.flavors()))
        need(entry["flavors"], "no flavor is visible")


def disable_access_key(output: Output, user: str, key: str) -> None:
    """Disable the user of the application credential: Keystone cannot disable one credential."""
    identity: Any = admin().identity
    identity.update_user(identity.find_user(user, ignore_missing=False), is_enabled=False)
    enabled = identity.find_user(user, ignore_missing=False).is_enabled
    output |= {"access_key_id": key, "status": "Active" if enabled else "Inactive"}


def verify_key_rejected(output: Output, key: str, secret: str) -> None:
    try:
        status = refusal(with_key(key, secret).session.get_token)
        output |= {"rejected": status == 401, "error_code": str(status)}
    except Unmet:
        output |= {"success": False, "rejected": False}


def delete_access_key(output: Output, user: str) -> None:
    """Delete the user, and the application credential with it."""
    common.delete_user(admin(), user)
    identity: Any = admin().identity
    need(identity.find_user(user) is None, "the user is still there")
    output |= {"resources_deleted": [f"user:{user}"], "message": "the user and its application credential are deleted"}


def create_tenant(output: Output) -> None:
    identity: Any = admin().identity
    project = identity.create_project(name=new_name(), description="made by the validation suite", domain_id="default")
    output |= {"tenant_name": project.name, "tenant_id": project.id}


def list_tenants(output: Output, target: str) -> None:
    identity: Any = admin().identity
    found = [{"tenant_name": project.name, "tenant_id": project.id} for project in identity.projects()]
    output |= {"tenants": found, "count": len(found), "target_tenant": target,
               "found_target": target in [project["tenant_name"] for project in found]}


def get_tenant(output: Output, name: str) -> None:
    identity: Any = admin().identity
    project = identity.get_project(identity.find_project(name, ignore_missing=False).id)
    output |= {"tenant_name": project.name, "tenant_id": project.id, "description": project.description}


def delete_tenant(output: Output, name: str) -> None:
    identity: Any = admin().identity
    identity.delete_project(identity.find_project(name, ignore_missing=False), ignore_missing=False)
    need(identity.find_project(name) is None, "the project is still there")
    output |= {"resources_deleted": [f"project:{name}"], "message": "the project is deleted"}


if __name__ == "__main__":
    common.run(check_api, create_access_key, test_access_key, disable_access_key, verify_key_rejected,
               delete_access_key, create_tenant, list_tenants, get_tenant, delete_tenant)
