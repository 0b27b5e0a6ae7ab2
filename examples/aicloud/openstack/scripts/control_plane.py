# SPDX-License-Identifier: Apache-2.0
"""Steps of the suites control-plane and iam: Keystone's users, application credentials and projects."""

import time
from typing import Any

import common
import openstack
from common import Output, Unmet, admin, login, need, refusal, tenant


def check_api(output: Output) -> None:
    """Make an authenticated request to each service of the catalog that a server needs."""
    cloud = tenant()
    output["account_id"] = cloud.current_project_id
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
    auth = common.new_user("member", tenant().current_project_id)
    cloud = login(auth)
    key = new_key(cloud, auth["username"])
    output |= {"username": auth["username"], "access_key_id": key.id, "secret_access_key": key.secret}


def new_key(cloud: openstack.connection.Connection, name: str) -> Any:
    identity: Any = cloud.identity
    return identity.create_application_credential(cloud.current_user_id, name)


def with_key(key: str, secret: str) -> openstack.connection.Connection:
    return login({"application_credential_id": key, "application_credential_secret": secret},
                 "v3applicationcredential")


def test_access_key(output: Output, key: str, secret: str) -> None:
    """Log in with the application credential, and read who that is and what it reaches."""
    cloud = with_key(key, secret)
    with output.test("identity"):
        output |= {"authenticated": bool(cloud.session.get_token()), "identity_id": cloud.current_user_id,
                   "account_id": cloud.current_project_id}
    output.confirm("access", list(cloud.compute.flavors()), "no flavor is visible")


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
    identity: Any = admin().identity
    identity.delete_user(identity.find_user(user, ignore_missing=False), ignore_missing=False)
    need(identity.find_user(user) is None, "the user is still there")
    output["resources_deleted"] = [f"user:{user}"]


def create_tenant(output: Output) -> None:
    identity: Any = admin().identity
    output |= project(identity.create_project(name=common.new_name(), description="made by the validation suite",
                                              domain_id="default"))


def project(found: Any) -> dict[str, str]:
    return {"tenant_name": found.name, "tenant_id": found.id, "description": found.description}


def list_tenants(output: Output, target: str) -> None:
    identity: Any = admin().identity
    found = [project(each) for each in identity.projects()]
    output |= {"count": len(found), "target_tenant": target,
               "found_target": target in [each["tenant_name"] for each in found]}


def get_tenant(output: Output, name: str) -> None:
    identity: Any = admin().identity
    output |= project(identity.get_project(identity.find_project(name, ignore_missing=False).id))


def delete_tenant(output: Output, name: str) -> None:
    identity: Any = admin().identity
    identity.delete_project(identity.find_project(name, ignore_missing=False), ignore_missing=False)
    need(identity.find_project(name) is None, "the project is still there")
    output["resources_deleted"] = [f"project:{name}"]


if __name__ == "__main__":
    common.run(globals())
