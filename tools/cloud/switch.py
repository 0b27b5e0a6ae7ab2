# SPDX-License-Identifier: Apache-2.0
"""Open vSwitch in user space: it forwards by itself, so the kernel needs no module of it.

Its files lie in the cloud's run directory. Its bridges, and the namespaces of Neutron's agents, end with the network
namespace that they are in; a network namespace can have one such switch.
"""

import subprocess
from pathlib import Path

from tools.cloud import probes
from tools.cloud.daemons import Daemon, Daemons
from tools.cloud.layout import FIRST, LOOPBACK, Layout, Ports

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


class Switch:
    """:param suffix: of the compute host that it is on
    :param there: in front of a command, runs it on that host
    """

    def __init__(self, layout: Layout, ports: Ports, suffix: str = FIRST, there: tuple[str, ...] = ()) -> None:
        self._directory = layout.run / f"ovs{suffix}"
        self._ports = ports
        self._suffix = suffix
        self._there = there

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which ``ovs-ofctl`` and ``ovs-vsctl`` find this instance."""
        return {f"OVS_{name}": str(self._directory) for name in ("RUNDIR", "DBDIR", "LOGDIR", "SYSCONFDIR")}

    def create(self, daemons: Daemons) -> None:
        """Make an empty database."""
        self._directory.mkdir(parents=True, mode=0o700)
        daemons.run("ovsdb-tool", ("ovsdb-tool", "create", str(self._database), str(SCHEMA)))

    def daemons(self) -> tuple[Daemon, Daemon]:
        """Return the daemons: the database, then the switch."""
        database = Daemon(
            f"ovsdb-server{self._suffix}", (
                *self._there, "ovsdb-server", str(self._database), f"--remote=punix:{self._socket}",
                f"--remote=ptcp:{self._ports.ovsdb}:{LOOPBACK}", f"--unixctl={self._directory}/ovsdb-server.ctl"),
            ready=lambda: probes.socket_open(self._socket), environment=self.environment)
        switch = Daemon(
            f"ovs-vswitchd{self._suffix}", (
                *self._there, "ovs-vswitchd", f"unix:{self._socket}", f"--unixctl={self._directory}/ovs-vswitchd.ctl"),
            ready=self._forwards, environment=self.environment)
        return database, switch

    def add_bridge(self, name: str, address: str) -> None:
        """Add a bridge whose own interface has an address, for instance ``172.24.4.1/24``."""
        self.run("--may-exist", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev")
        for arguments in (("address", "replace", address, "dev", name), ("link", "set", name, "up")):
            subprocess.run((*self._there, "ip", *arguments), check=True, capture_output=True)

    def remove_bridges(self) -> None:
        """Their interfaces would outlive the switch. One that does not answer has none."""
        if probes.socket_open(self._socket):
            for bridge in self.run("list-br").split():
                self.run("del-br", bridge)

    def run(self, *arguments: str) -> str:
        """``ovs-vsctl``; what it prints.

        :raises subprocess.CalledProcessError: it refused
        """
        return subprocess.run(("ovs-vsctl", "--timeout=30", f"--db=unix:{self._socket}", *arguments), text=True,
                              check=True, capture_output=True).stdout.strip()

    @property
    def _socket(self) -> Path:
        return self._directory / "db.sock"

    @property
    def _database(self) -> Path:
        return self._directory / "conf.db"

    def _forwards(self) -> bool:
        """Return whether the switch has taken over what the database says."""
        return probes.succeeds(("ovs-appctl", "-t", f"{self._directory}/ovs-vswitchd.ctl", "version"),
                               {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
