# SPDX-License-Identifier: Apache-2.0
"""Share the steps of tests of the real cloud: boot a server on a network, look into it, wait for a condition."""

import itertools
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import testtools

from tests.functional_cloud import stage
from tools.cloud import networking
from tools.cloud.configs import HOST
from tools.cloud.engine import Output

TIMEOUT = 600  # s; ten times what it takes on two busy cores
POLL_INTERVAL = 1.0  # s; most polls are requests to APIs, which share two cores with what they wait for
_numbers = itertools.count(1)


class CloudTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.stage = stage.shared()
        self.tenant = self.stage.tenant
        self.network = self.tenant.network.find_network(networking.FIXED, ignore_missing=False)

    def until(self, what: str, ask: Callable[[], Any], limit: float = TIMEOUT) -> Any:
        """Ask until the answer is true; the answer."""
        deadline = time.monotonic() + limit
        while not (answer := ask()):
            if time.monotonic() > deadline:
                self.fail(f"Waited {limit:.0f} s in vain until {what}")
            time.sleep(POLL_INTERVAL)
        return answer

    def security_group(self, *protocols: str) -> Any:
        """Lets in, from anywhere, all of the protocols."""
        group = self.tenant.network.create_security_group(name=self.name())
        self.addCleanup(self.until, "the security group is free", lambda: self._deleted_group(group.id))
        for protocol in protocols:
            self.allow(group, protocol)
        return group

    def allow(self, group: Any, protocol: str) -> Any:
        return self.tenant.network.create_security_group_rule(
            security_group_id=group.id, direction="ingress", ether_type="IPv4", protocol=protocol,
            remote_ip_prefix="0.0.0.0/0")

    def _deleted_group(self, group: str) -> bool:
        """It is in use until the port of a deleted server is gone."""
        try:
            self.tenant.network.delete_security_group(group, ignore_missing=True)
        except Exception as error:
            if getattr(error, "status_code", None) == 409:
                return False
            raise
        return True

    def name(self) -> str:
        return f"test-{os.getpid()}-{next(_numbers)}"

    def boot(self, group: Any = None) -> "Server":
        """A server on the tenants' network that is ACTIVE and has got its address."""
        (server,) = self.boot_all(1, group)
        return server

    def boot_all(self, count: int, group: Any = None, flavor: str = stage.FLAVOR) -> "list[Server]":
        """Boot servers at once."""
        compute = self.tenant.compute
        image = self.tenant.image.find_image(stage.IMAGE, ignore_missing=False)
        size = compute.find_flavor(flavor, ignore_missing=False)
        records = [compute.create_server(
            name=self.name(), image_id=image.id, flavor_id=size.id, key_name=stage.KEY,
            networks=[{"uuid": self.network.id}], security_groups=[{"name": group.id}] if group else [])
            for _ in range(count)]
        for record in records:
            self.addCleanup(self._delete, record.id)
        servers = []
        for record in records:
            self.settled(record.id, "ACTIVE")
            servers.append(Server(self, record.id))
            servers[-1].wait_for_address()
        return servers

    def settled(self, server: str, status: str) -> Any:
        """The server's record, once it has the status and nothing is being done to it."""
        def look() -> Any:
            record = self.tenant.compute.get_server(server)
            if record.status == "ERROR":
                self.fail(f"The server failed: {record.fault}")
            return record if record.status == status and record.task_state is None else None

        return self.until(f"the server is {status}", look)

    def _delete(self, server: str) -> None:
        self.tenant.compute.delete_server(server, ignore_missing=True)
        self.until("the server is gone",
                   lambda: self.tenant.compute.find_server(server, ignore_missing=True) is None)


class TwoHostsCase(CloudTest):
    """Both hosts may have servers."""

    def setUp(self) -> None:
        super().setUp()
        stage.let_second_host_have_servers(self.stage.admin, True)
        self.addCleanup(stage.let_second_host_have_servers, self.stage.admin, False)

    def boot_on_first(self, count: int, group: object = None, flavor: str = stage.FLAVOR) -> "list[Server]":
        stage.let_second_host_have_servers(self.stage.admin, False)
        servers = self.boot_all(count, group, flavor)
        stage.let_second_host_have_servers(self.stage.admin, True)
        self.assertEqual([HOST] * count, [self.host_of(server) for server in servers])
        return servers

    def host_of(self, server: "Server") -> str:
        return self.stage.admin.compute.get_server(server.id).compute_host


class Server:
    """:ivar id: its uuid
    :ivar container: its container's name
    :ivar engine: that of its host
    :ivar port: its first port's record
    """

    def __init__(self, test: CloudTest, uuid: str) -> None:
        self._test = test
        self._cloud = test.stage.cloud
        self.engine = self._cloud.engine
        self.id = uuid
        self.container = test.stage.admin.compute.get_server(uuid).instance_name
        self.port = next(iter(test.tenant.network.ports(device_id=uuid)))

    @property
    def address(self) -> str:
        return self.port.fixed_ips[0]["ip_address"]

    def inside(self, *command: str) -> Output:
        return self.engine.inside(self.container, *command)

    def wait_for_address(self, interface: str = "eth0") -> None:
        """Until DHCP gave the interface the address that Neutron chose."""
        self._test.until(
            f"{interface} has the address {self.address}",
            lambda: f"inet {self.address}/" in self.inside("ip", "-4", "address", "show", "dev", interface).out)

    def reaches(self, address: str) -> bool:
        return self.inside("ping", "-c", "1", "-W", "2", address).status == 0

    def floating_address(self) -> str:
        """A new one that leads to it."""
        network = self._test.tenant.network
        external = network.find_network(networking.EXTERNAL, ignore_missing=False)
        floating = network.create_ip(floating_network_id=external.id, port_id=self.port.id)
        self._test.addCleanup(network.delete_ip, floating.id)
        return floating.floating_ip_address

    def ssh(self, address: str, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ("ssh", "-F", "none", "-i", str(self._test.stage.key), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
             "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", f"root@{address}", command),
            text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)

    def host_end(self, port: str) -> str:
        """The interface of the switch that is the Neutron port."""
        found = self._cloud.switch.run("--bare", "--columns=name", "find", "interface",
                                       f"external_ids:iface-id={port}").split()
        self._test.assertEqual(1, len(found), f"interfaces of the switch for port {port}: {found}")
        return found[0]


def answers(address: str) -> bool:
    """Return whether it answers a ping from outside."""
    return subprocess.run(("ping", "-c", "1", "-W", "2", address), capture_output=True, check=False).returncode == 0


def index_of(interface: str) -> int:
    return int(Path(f"/sys/fakehost/sys/class/net/{interface}/ifindex").read_text())
