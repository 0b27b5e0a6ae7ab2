# SPDX-License-Identifier: Apache-2.0
"""The whole cloud: brought up, used, taken down."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tools.oned import front_end, node
from tools.oned.machine import CHECKOUT, Machine, connect, run

HOME = CHECKOUT / ".opennebula"
READY = "ready"
NET = "10.99.0."


class Cloud:
    """:param say: tells people what goes on
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        prefix = f"one-{CHECKOUT.name}"
        self.front = Machine(prefix, "front-end", HOME / "front-end", f"{NET}1", ("/etc", "/usr", "/var"))
        self.nodes = tuple(Machine(prefix, f"node{number}", HOME / f"node{number}", f"{NET}{number + 1}",
                                   ("/etc", "/usr/local", "/var")) for number in (1, 2))

    @property
    def machines(self) -> tuple[Machine, ...]:
        return (self.front, *self.nodes)

    @property
    def ready(self) -> bool:
        """Return whether a cloud was kept that came up as a whole."""
        return (HOME / READY).exists() and all(machine.up for machine in self.machines)

    def up(self, source: Path) -> None:
        """:param source: a source tree of OpenNebula that was built"""
        # OpenNebula has each host once, by its name: a node's second driver has another one.
        hosts = "".join(f"{machine.address} {machine.name} {machine.name}-lxd\n" for machine in self.machines)
        for machine in self.machines:
            machine.start(hosts)
        connect(self.front, self.nodes)
        self._say("three machines are connected")
        front_end.install(self.front, source)
        front_end.configure(self.front)
        self._trust()
        self.front.begin_ssh()
        for machine in self.nodes:
            node.start(machine, source, self.nodes)
            self._say(f"{machine.name} has LXD, Docker and Open vSwitch")
        front_end.start(self.front)
        self._say("oned answers")

    def _trust(self) -> None:
        """oneadmin of each machine may log in as oneadmin of every other."""
        key = HOME / "key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
        private, public = key.read_text(), key.with_suffix(".pub").read_text()
        for machine in self.machines:
            for name, text in (("id_ed25519", private), ("authorized_keys", public),
                               ("config", "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
                                          "  LogLevel ERROR\n")):
                front_end.put(machine, f"/var/lib/one/.ssh/{name}", text, "600", "oneadmin")
            machine.run("chown", "oneadmin:", "/var/lib/one/.ssh")

    def finished(self) -> None:
        """Note that it came up as a whole."""
        (HOME / READY).touch()

    def down(self) -> None:
        for machine in self.machines:
            if machine.up:
                machine.stop()
        shutil.rmtree(HOME, ignore_errors=True)
