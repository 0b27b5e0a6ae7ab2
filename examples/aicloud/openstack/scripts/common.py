# SPDX-License-Identifier: Apache-2.0
"""Run a step against an OpenStack cloud and print what it measured as one JSON object.

OS_CLOUD names the tenant in clouds.yaml; what else a site sets is in the table of doc/source/aicloud.md.
"""

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openstack
from keystoneauth1.exceptions.http import HttpError
from openstack.connection import Connection
from openstack.exceptions import HttpException

STATES = {"ACTIVE": "running", "SHUTOFF": "stopped"}
REFUSALS = (401, 403, 404)
NO_CONNECTION = 255  # status of ssh
TIMEOUT = 300  # s; for a server that boots, stops or is deleted


class Unmet(Exception):
    """What a test asks for does not hold."""


class Output(dict[str, Any]):
    """Collect what a step prints.

    :ivar undo: what the step deletes at its end, whatever happened
    """

    def __init__(self, platform: str) -> None:
        super().__init__(success=True, platform=platform)
        self.undo = contextlib.ExitStack()

    @contextlib.contextmanager
    def test(self, name: str, group: str = "tests") -> Iterator[dict[str, Any]]:
        """Record whether the block holds, with the facts that it adds. :class:`Unmet` ends the block alone."""
        entry = self.setdefault(group, {})[name] = {"passed": False}
        try:
            yield entry
            entry["passed"] = True
        except Exception as error:
            entry["error"] = said(error)
            if not isinstance(error, Unmet):
                raise

    @property
    def holds(self) -> bool:
        """Return whether every recorded test passed."""
        return bool(self["success"]) and all(
            entry["passed"] for group in ("tests", "operations", "checks") for entry in self.get(group, {}).values())


def run(*steps: Callable[..., None]) -> None:
    """Run a step as the command line says: PLATFORM STEP [--ARGUMENT VALUE]..."""
    platform, name, *words = sys.argv[1:]
    output = Output(platform)
    arguments = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    try:
        with output.undo:
            {step.__name__: step for step in steps}[name](output, **arguments)
    except Exception as error:  # an error is the step's result: the suite reads it
        output |= {"success": False, "error": said(error)}
    output["success"] = output.holds
    print(json.dumps(output))
    sys.exit(0 if output["success"] else 1)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def need(holds: object, message: str) -> None:
    """Raise :class:`Unmet` unless it holds."""
    if not holds:
        raise Unmet(message)


def refusal(call: Callable[[], Any]) -> int:
    """Return the status with which the cloud refuses a call.

    :raises Unmet: it does not refuse
    """
    try:
        call()
    except (HttpException, HttpError) as error:  # of the SDK, and of the login
        status = getattr(error, "status_code", None) or getattr(error, "http_status", None)
        if status in REFUSALS:
            return int(status)
        raise
    raise Unmet("the cloud did not refuse it")


def wait(holds: Callable[[], Any], what: str, limit: float = TIMEOUT, interval: float = 1) -> Any:
    """Return the first true answer.

    :raises Unmet: there is none within ``limit`` seconds
    """
    deadline = time.monotonic() + limit
    while not (answer := holds()):
        need(time.monotonic() < deadline, f"not within {limit:.0f} s: {what}")
        time.sleep(interval)
    return answer


# -- identities

def tenant() -> Connection:
    return openstack.connect()


def admin() -> Connection:
    return openstack.connect(cloud=os.environ.get("AICLOUD_ADMIN", "admin"))


def login(auth: Mapping[str, str], kind: str = "password") -> Connection:
    """Return a connection to the same cloud with other credentials, which are checked at the first request."""
    config = tenant().config
    return openstack.connect(
        load_yaml_config=False, load_envvars=False, auth_type=kind, region_name=config.get_region_name(),
        auth={"auth_url": config.get_auth_args()["auth_url"], **auth}, verify=config.config.get("verify", True),
        cacert=config.config.get("cacert"))


def new_name() -> str:
    return f"isv-{secrets.token_hex(4)}"


def new_user(cloud: Connection, role: str, *projects: str) -> dict[str, str]:
    """Create a user who has the role in the projects, and return what to log in to the first one with."""
    identity: Any = cloud.identity
    auth = {"username": new_name(), "password": secrets.token_hex(16), "user_domain_id": "default",
            "project_id": projects[0]}
    user = identity.create_user(name=auth["username"], password=auth["password"], domain_id="default")
    for project in projects:
        identity.assign_project_role_to_user(project, user, identity.find_role(role, ignore_missing=False))
    return auth


def delete_user(cloud: Connection, name: str) -> None:
    identity: Any = cloud.identity
    identity.delete_user(identity.find_user(name, ignore_missing=False), ignore_missing=False)


# -- servers

def key_file(name: str) -> Path:
    return Path(os.environ.get("AICLOUD_STATE", "~/.cache/aicloud")).expanduser() / name


def create_access(cloud: Connection, name: str) -> None:
    """Create a key pair, and a security group that lets SSH and ICMP in."""
    path = key_file(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)), check=True)
    cloud.compute.create_keypair(name=name, public_key=path.with_name(f"{name}.pub").read_text())
    group = cloud.network.create_security_group(name=name)
    for rule in ({"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}, {"protocol": "icmp"}):
        cloud.network.create_security_group_rule(security_group_id=group.id, direction="ingress", **rule)


def create_server(cloud: Connection, name: str, access: str, networks: list[dict[str, str]], *,
                  flavor: str, image: str | None = None, user_data: str = "") -> str:
    """Request a server, and return its id at once.

    :param access: name of the key pair and of the security group
    """
    found = cloud.image.find_image(image or os.environ["AICLOUD_IMAGE"], ignore_missing=False)
    server = cloud.compute.create_server(
        name=name, image_id=found.id, flavor_id=cloud.compute.find_flavor(flavor, ignore_missing=False).id,
        networks=networks, key_name=access, security_groups=[{"name": access}],
        metadata={"Name": name, "CreatedBy": "isvtest"},
        **({"user_data": base64.b64encode(user_data.encode()).decode()} if user_data else {}))
    return server.id


def await_access(cloud: Connection, name: str) -> dict[str, Any]:
    """Wait until a server is active, give it a floating IP and wait for its sshd; return its description."""
    cloud.compute.wait_for_server(server_named(cloud, name), wait=TIMEOUT)
    external = cloud.network.find_network(os.environ.get("AICLOUD_EXTERNAL", "public"), ignore_missing=False)
    cloud.network.create_ip(floating_network_id=external.id, port_id=port_of(cloud, name).id)
    server = describe(cloud, name)
    await_ssh(server)
    return server


def server_named(cloud: Connection, name: str) -> Any:
    return cloud.compute.get_server(cloud.compute.find_server(name, ignore_missing=False).id)


def port_of(cloud: Connection, name: str) -> Any:
    return next(iter(cloud.network.ports(device_id=server_named(cloud, name).id)))


def describe(cloud: Connection, name: str) -> dict[str, Any]:
    """Return what Nova and Neutron say about a server with a port, in the suite's words, and how to log in.

    :param name: or its id
    """
    server, port = server_named(cloud, name), port_of(cloud, name)
    address = next(iter(cloud.network.ips(port_id=port.id)), None)
    return {"instance_id": server.id, "state": STATES.get(server.status, server.status.lower()),
            "instance_type": server.flavor.original_name, "vpc_id": port.network_id, "key_name": server.key_name,
            "private_ip": port.fixed_ips[0]["ip_address"], "security_group_id": port.security_group_ids[0],
            "public_ip": address.floating_ip_address if address else None,
            "key_file": str(key_file(server.key_name)), "ssh_user": os.environ.get("AICLOUD_USER", "debian")}


def ssh(server: Mapping[str, Any], command: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Run a command in a server; status 255 if there is no connection."""
    options = {"BatchMode": "yes", "ConnectTimeout": "5", "ServerAliveInterval": "5", "ServerAliveCountMax": "2",
               "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
    return subprocess.run(
        ("ssh", "-n", "-F", "none", "-i", server["key_file"], *(f"-o{key}={value}" for key, value in options.items()),
         f"{server['ssh_user']}@{server['public_ip']}", command),
        text=True, capture_output=True, timeout=timeout, check=False)


def succeeds(server: Mapping[str, Any], command: str) -> bool:
    """Return whether a command in a server ends with status 0.

    :raises RuntimeError: there is no connection, so nobody knows
    """
    done = ssh(server, command)
    if done.returncode == NO_CONNECTION:
        raise RuntimeError(f"no SSH to {server['public_ip']}: {done.stderr.strip()}")
    return done.returncode == 0


def inside(server: Mapping[str, Any], command: str) -> str:
    """Return what a command prints in a server.

    :raises RuntimeError: it fails
    """
    done = ssh(server, command)
    if done.returncode:
        raise RuntimeError(f"{command!r} in {server['public_ip']}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def await_ssh(server: Mapping[str, Any]) -> None:
    wait(lambda: ssh(server, "true").returncode == 0, f"SSH to {server['public_ip']}")


def remove(cloud: Connection, name: str) -> list[str]:
    """Delete the servers whose names begin so, their floating IPs, the key pair and the security group."""
    deleted = []
    for server in list(cloud.compute.servers(name=f"^{name}")):
        for port in cloud.network.ports(device_id=server.id):
            for address in cloud.network.ips(port_id=port.id):
                cloud.network.delete_ip(address)
                deleted.append(f"floating-ip:{address.floating_ip_address}")
        cloud.compute.delete_server(server)
        cloud.compute.wait_for_delete(server, wait=TIMEOUT)
        deleted.append(f"server:{server.id}")
    for port in list(cloud.network.ports()):  # those made before their servers outlive them
        if port.name.startswith(f"{name}-") and not port.device_owner:
            cloud.network.delete_port(port)
            deleted.append(f"port:{port.id}")
    if pair := cloud.compute.find_keypair(name):
        cloud.compute.delete_keypair(pair)
        deleted.append(f"key-pair:{name}")
    if group := cloud.network.find_security_group(name):
        cloud.network.delete_security_group(group)
        deleted.append(f"security-group:{group.id}")
    for path in (key_file(name), key_file(f"{name}.pub")):
        path.unlink(missing_ok=True)
    return deleted
