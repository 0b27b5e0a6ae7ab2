# SPDX-License-Identifier: Apache-2.0
"""A second compute host on this machine: emulated like the first one, with devices and namespaces of its own.

Two cables lead to it. By the first it asks the cloud's services and its engine sends and fetches servers; the second
ends in the two hosts' switches and carries the tunnels of the tenants' networks. All of it ends with its processes.
"""

import dataclasses
import signal
import subprocess
import sys

from tests.fakehost import registry
from tools.cloud.daemons import Daemon, Daemons
from tools.cloud.layout import CHECKOUT, SECOND, Layout, Ports
from tools.cloud.switch import Switch

SERVICES = ("172.31.0.1", "172.31.0.2")
TUNNELS = ("172.31.1.1", "172.31.1.2")
CABLE = "second"
TUNNEL_CABLE = "tunnels"
TUNNEL_BRIDGE = "br-tunnels"

HOLDER = "second-host"
FAKEHOST = (sys.executable, str(CHECKOUT / "tools/fakehost"))
DESCRIPTION = "small"  # the same devices as the first host's, at the same addresses


class SecondHost:
    """:param daemons: the cloud's"""

    def __init__(self, layout: Layout, ports: Ports, daemons: Daemons) -> None:
        self._layout = layout
        self._ports = ports
        self._daemons = daemons

    def create(self) -> None:
        """Make its namespaces, and the first cable.

        :raises DaemonFailed: the namespaces could not be made
        """
        command = (*FAKEHOST, "--host", DESCRIPTION, "--name", self._name, "--", "sleep", "infinity")
        self._daemons.bring_up([Daemon(HOLDER, command, ready=self._is_made, end=signal.SIGTERM)])
        self._lay(CABLE)
        run("ip", "address", "add", f"{SERVICES[0]}/24", "dev", CABLE)
        run(*self.there, "ip", "address", "add", f"{SERVICES[1]}/24", "dev", CABLE)

    @property
    def there(self) -> tuple[str, ...]:
        """In front of a command: runs it on this host."""
        return (*FAKEHOST, "--join", self._name, "--")

    @property
    def _name(self) -> str:
        return self._layout.engine_of(SECOND).name

    def daemon(self, daemon: Daemon) -> Daemon:
        """Return the same daemon, to be started on this host."""
        return dataclasses.replace(daemon, argv=(*self.there, *daemon.argv))

    @property
    def switch(self) -> Switch:
        return Switch(self._layout, self._ports, SECOND, self.there)

    def join(self, first: Switch) -> None:
        """Connect this host's running switch with that of the first host by tunnels."""
        self._lay(TUNNEL_CABLE)
        for switch, address in zip((first, self.switch), TUNNELS, strict=True):
            switch.add_bridge(TUNNEL_BRIDGE, f"{address}/24")
            switch.run("add-port", TUNNEL_BRIDGE, TUNNEL_CABLE)

    def _lay(self, cable: str) -> None:
        """Create a pair of interfaces, one on each host, of the same name."""
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", str(registry.init(self._name)))
        for there in ((), self.there):
            run(*there, "ip", "link", "set", cable, "up")

    def _is_made(self) -> bool:
        try:
            return registry.init(self._name) > 0
        except registry.RegistryError:
            return False


def run(*command: str) -> None:
    """Run a command.

    :raises subprocess.CalledProcessError: it failed
    """
    subprocess.run(command, check=True, capture_output=True)
