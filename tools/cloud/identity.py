# SPDX-License-Identifier: Apache-2.0
"""Users, roles, services, endpoints and limits: what keystone must know before the other services start."""

from typing import Any

import yaml
from openstack.connection import Connection

from tools.cloud.configs import REGION
from tools.cloud.daemons import Daemons
from tools.cloud.layout import Layout, Passwords, Ports, Shape, program, write_private

ENDPOINTS = {"glance": ("image", ""), "placement": ("placement", ""), "neutron": ("network", ""),
             "nova": ("compute", "/v2.1")}
# Of a cloud with volumes; Nova and Cinder's own client look for the older name of the same API.
VOLUME_ENDPOINTS = {"cinder": ("block-storage", "/v3"), "cinderv3": ("volumev3", "/v3")}
# What a project may have of nova's where nobody says otherwise: the defaults of nova's own quotas.
LIMITS = {"servers": 10, "class:VCPU": 20, "class:PCPU": 20, "class:MEMORY_MB": 50 * 1024, "class:DISK_GB": 1000,
          "server_metadata_items": 128, "server_injected_files": 5, "server_injected_file_content_bytes": 10 * 1024,
          "server_injected_file_path_bytes": 255, "server_key_pairs": 100, "server_groups": 10,
          "server_group_members": 10}
# The tenant: a user without any right beyond its own project.
TENANT = "demo"


def write_clouds_yaml(layout: Layout, ports: Ports, passwords: Passwords) -> None:
    """Write the cloud's two identities, ``admin`` and the tenant, for the SDK and the ``openstack`` command."""
    def cloud(user: str) -> dict[str, object]:
        return {"region_name": REGION, "auth": {
            "auth_url": ports.url("keystone") + "/v3", "username": user, "password": passwords[user],
            "project_name": user, "user_domain_name": "Default", "project_domain_name": "Default"}}

    write_private(layout.clouds_yaml, yaml.safe_dump({"clouds": {user: cloud(user) for user in ("admin", TENANT)}}))


def bootstrap(layout: Layout, ports: Ports, passwords: Passwords, daemons: Daemons) -> None:
    """Create the first administrator and keystone's endpoint, without a password in a command line."""
    command = (program("keystone-manage"), "--config-file", str(layout.etc("keystone") / "keystone.conf"), "bootstrap")
    url = ports.url("keystone") + "/v3"
    daemons.run("keystone-db", command, {"OS_BOOTSTRAP_PASSWORD": passwords["admin"], "OS_BOOTSTRAP_REGION_ID": REGION,
                                         "OS_BOOTSTRAP_PUBLIC_URL": url, "OS_BOOTSTRAP_INTERNAL_URL": url})


def populate(admin: Connection, ports: Ports, passwords: Passwords, shape: Shape) -> None:
    """Create the services' users and endpoints, the limits of projects, and the tenant."""
    identity: Any = admin.identity  # its type leaves open whether it is keystone's API v2 or v3
    roles = {role.name: role for role in identity.roles()}
    service = identity.create_project(name="service", domain_id="default")
    endpoints = ENDPOINTS | (VOLUME_ENDPOINTS if shape.volumes else {})
    for name in (name for name in endpoints if name in vars(ports)):
        user = identity.create_user(name=name, password=passwords[name], domain_id="default")
        for role in ("admin", "service"):
            identity.assign_project_role_to_user(service, user, roles[role])
    for name, (kind, path) in endpoints.items():
        entry = identity.create_service(name=name, type=kind)
        identity.create_endpoint(service_id=entry.id, interface="public", region_id=REGION,
                                 url=ports.url(name.removesuffix("v3")) + path)
    for resource, limit in LIMITS.items():
        register_limit(admin, resource, limit)
    project = identity.create_project(name=TENANT, domain_id="default")
    user = identity.create_user(name=TENANT, password=passwords[TENANT], domain_id="default")
    for role in ("member", "reader"):
        identity.assign_project_role_to_user(project, user, roles[role])


def register_limit(admin: Connection, resource: str, limit: int) -> None:
    """Set how much of a resource of nova's every project may have that has no limit of its own.

    :param resource: ``servers``, or ``class:`` and a resource class of Placement
    """
    identity: Any = admin.identity
    identity.create_registered_limit(service_id=identity.find_service("nova").id, region_id=REGION,
                                     resource_name=resource, default_limit=limit)


def limit_command(project: str, resource: str, limit: int) -> str:
    """Return the command that does what :func:`limit_project` does.

    :param project: its name
    """
    return (f"openstack limit create --service nova --region {REGION} --project {project} --resource-limit {limit} "
            f"{resource}")


def limit_project(admin: Connection, project: str, resource: str, limit: int) -> None:
    """Set how much of a resource of nova's one project may have.

    :param project: its id
    """
    identity: Any = admin.identity
    identity.create_limit(service_id=identity.find_service("nova").id, region_id=REGION, project_id=project,
                          resource_name=resource, resource_limit=limit)
