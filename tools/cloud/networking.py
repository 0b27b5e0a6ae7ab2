# SPDX-License-Identifier: Apache-2.0
"""Neutron with its agents: how they are started, and the networks that every tenant of the cloud finds.

The agents make network namespaces and interfaces, so all of it is in a network and a mount namespace of the cloud's
own and ends with them.
"""

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from openstack.connection import Connection

from tools.cloud import configs, ini, netconfigs
from tools.cloud.daemons import Daemon, Daemons
from tools.cloud.layout import FIRST, SECOND, program, write_private
from tools.cloud.secondhost import SecondHost
from tools.cloud.switch import Switch

# Where ``ip netns`` keeps the namespaces of the agents.
NAMESPACES = Path("/run/netns")
RPC_SERVER = "neutron-rpc-server"
# What the agents ask and tell the RPC server by.
QUEUES = ("q-plugin", "q-reports-plugin", "q-l3-plugin")

EXTERNAL = "public"
EXTERNAL_RANGE = "172.24.4.0/24"
EXTERNAL_ADDRESS = "172.24.4.1"
FIXED = "private"
FIXED_RANGE = "10.90.0.0/20"
ROUTER = "router"


class Networking:
    """:param second: the second compute host, of a cloud that has one"""

    def __init__(self, parts: configs.Parts, daemons: Daemons, switch: Switch, second: SecondHost | None) -> None:
        self._layout = parts.layout
        self._parts = parts
        self._daemons = daemons
        self._switch = switch
        self._second = second

    def configure(self) -> None:
        """Write the agents' configuration; that of the servers is neutron.conf."""
        for name, content in netconfigs.agents(self._parts).items():
            ini.write(Path(netconfigs.agent_file(self._layout, name)), content)
        write_private(Path(netconfigs.agent_file(self._layout, "dnsmasq")), netconfigs.dnsmasq())

    def start_switch(self) -> None:
        """Each host's switch; the first has the bridge that leads to floating IPs from where the cloud is."""
        NAMESPACES.mkdir(parents=True, exist_ok=True)
        subprocess.run(("mount", "-t", "tmpfs", "netns", str(NAMESPACES)), check=True, capture_output=True)
        for switch in (self._switch, *([self._second.switch] if self._second else [])):
            switch.create(self._daemons)
            for daemon in switch.daemons():
                self._daemons.bring_up([daemon])
        if self._second:
            self._second.join(self._switch)
        self._switch.add_bridge(netconfigs.EXTERNAL_BRIDGE, f"{EXTERNAL_ADDRESS}/{EXTERNAL_RANGE.partition('/')[2]}")

    def start_servers(self) -> None:
        heard = functools.partial(self._parts.messages.has_queues, *QUEUES)
        self._daemons.start(dataclasses.replace(self._daemon(RPC_SERVER), ready=heard))
        self._daemons.start(self._daemon("neutron-periodic-workers"))

    def start_agents(self) -> None:
        """They ask the RPC server for everything as soon as they start."""
        self._daemons.wait(RPC_SERVER)
        for name in (netconfigs.SWITCH_AGENT, *netconfigs.OTHER_AGENTS):
            self._daemons.start(self._agent(name, self._switch))
        if self._second:
            self._daemons.start(self._second.daemon(self._agent(netconfigs.SWITCH_AGENT, self._second.switch, SECOND)))

    def create_networks(self, admin: Connection) -> None:
        """Create the external network, and a network for all tenants on a router to it."""
        network = admin.network
        external = network.create_network(
            name=EXTERNAL, is_router_external=True, provider_network_type="flat",
            provider_physical_network=netconfigs.PHYSICAL)
        network.create_subnet(network_id=external.id, name=EXTERNAL, ip_version=4, cidr=EXTERNAL_RANGE,
                              gateway_ip=EXTERNAL_ADDRESS, is_dhcp_enabled=False)
        fixed = network.create_network(name=FIXED, is_shared=True)
        subnet = network.create_subnet(network_id=fixed.id, name=FIXED, ip_version=4, cidr=FIXED_RANGE)
        router = network.create_router(name=ROUTER, external_gateway_info={"network_id": external.id})
        network.add_interface_to_router(router, subnet_id=subnet.id)

    def wait_for_agents(self, admin: Connection, wait_until: Callable[[str, Callable[[], bool]], None]) -> None:
        wait_until("Neutron's agents are up", lambda: self._agents_up(admin))

    def _agents_up(self, admin: Connection) -> bool:
        expected = [(name, self._parts.nodes[0].name) for name in netconfigs.OTHER_AGENTS]
        expected += [(netconfigs.SWITCH_AGENT, node.name) for node in self._parts.nodes]
        alive = {(agent.binary, agent.host) for agent in admin.network.agents() if agent.is_alive}
        return alive.issuperset(expected)

    def _agent(self, name: str, switch: Switch, suffix: str = FIRST) -> Daemon:
        agent = self._daemon(name, netconfigs.agent_file(self._layout, name + suffix))
        return dataclasses.replace(agent, name=name + suffix, environment={**agent.environment, **switch.environment})

    def _daemon(self, name: str, *files: str) -> Daemon:
        """Return whether it works is what Neutron's API says about it."""
        configuration = (str(self._layout.etc("neutron") / "neutron.conf"), *files)
        argv = (program(name), *(word for file in configuration for word in ("--config-file", file)))
        return Daemon(name, argv, ready=lambda: True,
                      environment={"PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"})


def remove_namespaces() -> None:
    """Remove the namespaces that the agents made, and the directory of them."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    for point in reversed([line.split()[4] for line in mounts]):
        if point == str(NAMESPACES) or point.startswith(f"{NAMESPACES}/"):
            subprocess.run(("umount", "--lazy", point), check=True, capture_output=True)
