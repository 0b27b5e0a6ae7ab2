# SPDX-License-Identifier: Apache-2.0
"""Run a step against an OpenStack cloud and print what it measured as one JSON object.

OS_CLOUD names the tenant in clouds.yaml; what else a site sets is in the table of doc/source/aicloud.md.
"""

import base64
import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openstack
from keystoneauth1.exceptions.http import HttpError
from openstack.connection import Connection
from openstack.exceptions import HttpException, raise_from_response

PREFIX = "isv-"  # of the names of all that is made
STATES = {"ACTIVE": "running", "SHUTOFF": "stopped"}
REFUSALS = (401, 403, 404)
NO_CONNECTION = 255  # status of ssh
TIMEOUT = 300  # s; for a server that boots, stops or is deleted
SSH_OPTIONS = {"BatchMode": "yes", "ConnectTimeout": "5", "ServerAliveInterval": "5", "ServerAliveCountMax": "2",
               "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}


class Unmet(Exception):
    """What a test asks for does not hold."""


class NotSet(Exception):
    """A variable of the site's is missing."""


class Output(dict[str, Any]):
    """Collect what a step prints.

    :ivar undo: what the step deletes at its end, whatever happened
    """

    def __init__(self) -> None:
        super().__init__(success=True, platform="openstack")
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

    def confirm(self, name: str, holds: object, message: str) -> None:
        """Record whether something holds."""
        with self.test(name):
            need(holds, message)

    @property
    def holds(self) -> bool:
        """Return whether every recorded test passed."""
        return bool(self["success"]) and all(
            entry["passed"] for group in ("tests", "operations", "checks") for entry in self.get(group, {}).values())


def run(steps: Mapping[str, Any]) -> None:
    """Run a step as the command line says: STEP [--ARGUMENT VALUE]..."""
    name, *words = sys.argv[1:]
    output = Output()
    arguments = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    try:
        with output.undo:
            steps[name](output, **arguments)
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


def refusal(call: Callable[..., Any], *arguments: Any) -> int:
    """Return the status with which the cloud refuses a call.

    :raises Unmet: it does not refuse
    """
    try:
        call(*arguments)
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


def setting(name: str) -> str:
    """Return what the site sets.

    :raises NotSet: it does not
    """
    if not (value := os.environ.get(name)):
        raise NotSet(f"{name} is not set: see doc/source/aicloud.md")
    return value


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
    return PREFIX + secrets.token_hex(4)


def new_project(output: Output) -> str:
    """Create a project that ends with the step, and return its id."""
    identity: Any = admin().identity
    project = identity.create_project(name=new_name(), domain_id="default")
    output.undo.callback(identity.delete_project, project)
    return str(project.id)


def new_user(role: str, *projects: str, undo: contextlib.ExitStack | None = None) -> dict[str, str]:
    """Create a user who has the role in the projects, and return what to log in to the first one with.

    :param undo: deletes it
    """
    identity: Any = admin().identity
    auth = {"username": new_name(), "password": secrets.token_hex(16), "user_domain_id": "default",
            "project_id": projects[0]}
    user = identity.create_user(name=auth["username"], password=auth["password"], domain_id="default")
    if undo:
        undo.callback(identity.delete_user, user)
    for project in projects:
        identity.assign_project_role_to_user(project, user, identity.find_role(role, ignore_missing=False))
    return auth


def stranger(output: Output) -> Connection:
    """Log in as a member of another project; both end with the step."""
    return login(new_user("member", new_project(output), undo=output.undo))


# -- servers

def external_network(cloud: Connection) -> Any:
    return cloud.network.find_network(os.environ.get("AICLOUD_EXTERNAL", "public"), ignore_missing=False)


def plain_flavor() -> str:
    return os.environ.get("AICLOUD_PLAIN_FLAVOR") or setting("AICLOUD_FLAVOR")


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
    for rule in (tcp(22), {"protocol": "icmp"}):
        cloud.network.create_security_group_rule(security_group_id=group.id, direction="ingress", **rule)


def tcp(port: int) -> dict[str, Any]:
    return {"protocol": "tcp", "port_range_min": port, "port_range_max": port}


def create_server(cloud: Connection, name: str, access: str, networks: list[dict[str, str]], *,
                  flavor: str, image: str | None = None, user_data: str = "") -> None:
    """Request a server.

    :param access: name of the key pair and of the security group
    """
    found = cloud.image.find_image(image or setting("AICLOUD_IMAGE"), ignore_missing=False)
    cloud.compute.create_server(
        name=name, image_id=found.id, flavor_id=cloud.compute.find_flavor(flavor, ignore_missing=False).id,
        networks=networks, key_name=access, security_groups=[{"name": access}],
        metadata={"Name": name, "CreatedBy": "isvtest"},
        **({"user_data": base64.b64encode(user_data.encode()).decode()} if user_data else {}))


def launch(cloud: Connection, name: str, *, network: str = "", flavor: str = "", image: str | None = None
           ) -> dict[str, Any]:
    """Create a server of AICLOUD_FLAVOR in AICLOUD_NETWORK, if nothing else is said, that one can log in to."""
    create_access(cloud, name)
    found = cloud.network.find_network(network or setting("AICLOUD_NETWORK"), ignore_missing=False)
    create_server(cloud, name, name, [{"uuid": found.id}], flavor=flavor or setting("AICLOUD_FLAVOR"), image=image)
    return await_access(cloud, name)


def await_access(cloud: Connection, name: str) -> dict[str, Any]:
    """Wait until a server is active, give it a floating IP and wait for its sshd; return its description."""
    await_status(cloud, name)
    cloud.network.create_ip(floating_network_id=external_network(cloud).id, port_id=port_of(cloud, name).id)
    server = describe(cloud, name)
    await_ssh(server)
    return server


def request(output: Output, cloud: Connection, number: int = 1, flavor: str = "", hints: Mapping[str, Any] | None = None
            ) -> list[Any]:
    """Request servers without networks, all at once; return them when nova has decided. They end with the step.

    :param hints: for the scheduler
    """
    image = cloud.image.find_image(setting("AICLOUD_IMAGE"), ignore_missing=False)
    found = cloud.compute.find_flavor(flavor or plain_flavor(), ignore_missing=False)
    answer = cloud.compute.post("/servers", microversion="2.37", json={
        "server": {"name": new_name(), "imageRef": image.id, "flavorRef": found.id, "networks": "none",
                   "min_count": number, "max_count": number, "return_reservation_id": True},
        "os:scheduler_hints": dict(hints or {})})
    raise_from_response(answer)
    reservation = answer.json()["reservation_id"]

    def servers() -> list[Any]:
        return list(cloud.compute.servers(reservation_id=reservation))

    def decided() -> list[Any]:
        found = servers()
        return found if len(found) == number and all(each.status in ("ACTIVE", "ERROR") for each in found) else []

    output.undo.callback(lambda: delete(cloud, servers()))
    return list(wait(decided, f"nova decides about {number} servers"))


def server_group(output: Output, cloud: Connection, policy: str) -> str:
    """Create a server group that ends with the step, and return its id."""
    made = cloud.compute.create_server_group(name=new_name(), policy=policy)
    output.undo.callback(cloud.compute.delete_server_group, made.id)
    return str(made.id)


def delete(cloud: Connection, servers: Iterable[Any]) -> list[str]:
    servers = list(servers)
    for server in servers:
        cloud.compute.delete_server(server)
    for server in servers:
        cloud.compute.wait_for_delete(server, wait=TIMEOUT)
    return [f"server:{server.id}" for server in servers]


def server_named(cloud: Connection, name: str) -> Any:
    return cloud.compute.get_server(cloud.compute.find_server(name, ignore_missing=False).id)


def await_status(cloud: Connection, name: str, status: str = "ACTIVE") -> None:
    cloud.compute.wait_for_server(server_named(cloud, name), status=status, wait=TIMEOUT)


def stop(cloud: Connection, name: str) -> None:
    cloud.compute.stop_server(server_named(cloud, name))
    await_status(cloud, name, "SHUTOFF")


def start(cloud: Connection, name: str) -> None:
    """Start a server, and wait until one can log in."""
    cloud.compute.start_server(server_named(cloud, name))
    await_status(cloud, name)
    await_ssh(describe(cloud, name))


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
            "private_ip": port.fixed_ips[0]["ip_address"],
            "public_ip": address.floating_ip_address if address else None,
            "key_file": str(key_file(server.key_name)), "ssh_user": os.environ.get("AICLOUD_USER", "debian")}


def ssh(server: Mapping[str, Any], command: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Run a command in a server; status 255 if there is no connection."""
    return subprocess.run(
        ("ssh", "-n", "-F", "none", "-i", server["key_file"],
         *(f"-o{key}={value}" for key, value in SSH_OPTIONS.items()),
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


def inside(server: Mapping[str, Any], command: str, timeout: float = 60) -> str:
    """Return what a command prints in a server.

    :raises RuntimeError: it fails
    """
    return output_of(ssh(server, command, timeout), f"{command!r} in {server['public_ip']}")


def on_host(host: str, line: str) -> str:
    """Return what a command line of the operator prints on a compute host.

    :raises RuntimeError: it fails
    """
    return command(os.environ.get("AICLOUD_HOST", "ssh root@{host}"), line, host=host)


def command(template: str, *more: str, **values: str) -> str:
    """Run a command of the site's, with its {places} filled in; return what it prints."""
    words = [word.format(**values) for word in shlex.split(template)]
    done = subprocess.run((*words, *more), text=True, capture_output=True, timeout=TIMEOUT, check=False)
    return output_of(done, shlex.join((*words, *more)))


def output_of(done: "subprocess.CompletedProcess[str]", what: str) -> str:
    if done.returncode:
        raise RuntimeError(f"{what}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def await_ssh(server: Mapping[str, Any]) -> None:
    wait(lambda: ssh(server, "true").returncode == 0, f"SSH to {server['public_ip']}")


def remove(cloud: Connection, name: str) -> list[str]:
    """Delete the servers whose names begin so, their floating IPs, the key pair and the security group."""
    deleted, servers = [], list(cloud.compute.servers(name=f"^{name}"))
    for server in servers:
        for port in cloud.network.ports(device_id=server.id):
            for address in cloud.network.ips(port_id=port.id):
                cloud.network.delete_ip(address)
                deleted.append(f"floating-ip:{address.floating_ip_address}")
    deleted += delete(cloud, servers)
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
