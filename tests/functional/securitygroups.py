# SPDX-License-Identifier: Apache-2.0
"""Test security groups: rules as OpenNebula's network drivers write them, on the container's real interface.

They are for the name that the core gives a NIC, and the same for either of OpenNebula's drivers.

Import the module, not its class: it would else be a test of the importing module.
"""

import subprocess
from pathlib import Path

from tests.functional_one.test_networks import ip
from tests.functional_one.vms import Machine
from tests.waiting import await_that

NET = Path("/sys/class/net")


def iptables(*words: str) -> str:
    return subprocess.run(["iptables", "--wait", *words], check=True, capture_output=True, text=True).stdout


class Group:
    """Do what vnm/fw does for one NIC: a chain for each way, which lets through what its rules return from.

    :param allowed: of what comes in
    """

    def __init__(self, nic: str, mac: str, address: str, *allowed: tuple[str, ...]) -> None:
        self.into, self.out, self.set = f"{nic}-i", f"{nic}-o", f"{nic}-ip-spoofing"
        subprocess.run(["ipset", "create", self.set, "hash:ip"], check=True)
        subprocess.run(["ipset", "add", self.set, address], check=True)
        for chain, way in ((self.out, "--physdev-in"), (self.into, "--physdev-out")):
            iptables("-N", chain)
            iptables("-I", "opennebula", "1", "-m", "physdev", "--physdev-is-bridged", way, nic, "-j", chain)
        iptables("-A", self.out, "-m", "mac", "!", "--mac-source", mac, "-j", "DROP")
        iptables("-A", self.out, "-m", "set", "!", "--match-set", self.set, "src", "-j", "DROP")
        iptables("-A", self.out, "-j", "RETURN")
        for rule in allowed:
            iptables("-A", self.into, *rule, "-j", "RETURN")
        iptables("-A", self.into, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        iptables("-A", self.into, "-j", "DROP")

    def dropped(self) -> int:
        """Packets that were to come in."""
        return int(iptables("-L", self.into, "-v", "-x", "-n").splitlines()[-1].split()[0])


class SecurityGroupContract:
    """Beside a test case of a driver."""

    def network(self, machine: Machine, *words: str) -> str:
        """The command ``ip`` in the container's network namespace."""
        return self.inside(machine, "ip", *words)

    def setUp(self) -> None:
        super().setUp()
        iptables("-N", "opennebula")
        iptables("-A", "FORWARD", "-m", "physdev", "--physdev-is-bridged", "-j", "opennebula")
        iptables("-A", "opennebula", "-j", "ACCEPT")
        self.addCleanup(self._forget)
        ip("link", "set", "one-br0", "up")

    @staticmethod
    def _forget() -> None:
        for words in (("-F",), ("-X",)):
            iptables(*words)
        subprocess.run(["ipset", "destroy"], check=True)

    def connected(self, machine: Machine, number: int = 0) -> str:
        """:returns: its address"""
        address = f"10.99.{number}.{machine.id}"
        self.network(machine, "address", "add", f"{address}/24", "dev", f"eth{number}")
        self.network(machine, "link", "set", f"eth{number}", "up")
        return address

    def reaches(self, machine: Machine, address: str) -> bool:
        return " 0% packet loss" in self.inside(machine, "ping", "-c", "1", "-W", "1", address)

    def assert_is_the_interface(self, machine: Machine, number: int) -> None:
        """The host's end of that name is the container's own interface, in the bridge, and there is no other."""
        host = NET / f"{machine.name}-{number}"
        link = self.inside(machine, "cat", f"/sys/class/net/eth{number}/iflink").strip()
        self.assertEqual(link, (host / "ifindex").read_text().strip())
        self.assertEqual("one-br0", (host / "master").resolve().name)
        mine = [port.name for port in (NET / "one-br0/brif").iterdir() if port.name.startswith(f"{machine.name}-")]
        self.assertIn(host.name, mine)
        self.assertEqual(len(set(mine)), len(mine))

    def test_rules_hold_what_the_container_sends_and_gets(self) -> None:
        free, held = Machine(1, nics=(0,)), Machine(2, nics=(0,))
        # The rules exist before the VM: forbidden traffic never passes, not even at its start.
        group = Group("one-2-0", held.mac(0), "10.99.0.2")
        for machine in (free, held):
            self.deployed(machine)
        here = self.connected(free)
        for _ in ("deployed", "reset"):
            there = self.connected(held)
            self.assert_is_the_interface(held, 0)
            await_that(lambda: self.reaches(held, here), "it reaches the other")  # replies to its requests may pass
            before = group.dropped()
            self.assertFalse(self.reaches(free, there))
            self.assertGreater(group.dropped(), before)
            self.ok("reset", held)
        there = self.connected(held)
        iptables("-I", group.into, "-p", "icmp", "-j", "RETURN")
        await_that(lambda: self.reaches(free, there), "the other reaches it")
        # Neither another's address nor another's MAC.
        self.network(held, "address", "flush", "dev", "eth0")
        self.network(held, "address", "add", "10.99.0.9/24", "dev", "eth0")
        self.assertFalse(self.reaches(held, here))
        self.network(held, "address", "flush", "dev", "eth0")
        self.connected(held)
        await_that(lambda: self.reaches(held, here), "it reaches the other")
        self.network(held, "link", "set", "eth0", "address", "02:00:00:00:00:99")
        self.assertFalse(self.reaches(held, here))

    def test_rules_hold_a_nic_that_comes_later(self) -> None:
        free, held = (self.deployed(Machine(number, nics=(0, 1) if number == 1 else (0,))) for number in (1, 2))
        group = Group("one-2-1", held.mac(1), "10.99.1.2")
        more = held.changed(nics=(0, 1), attach="nic")
        self.ok("attach_nic", more, held.mac(1), "one-br0", "-", "fw", "one-2-1")
        here, there = self.connected(free, 1), self.connected(held, 1)
        self.assert_is_the_interface(held, 1)
        await_that(lambda: self.reaches(held, here), "it reaches the other")
        self.assertFalse(self.reaches(free, there))
        self.assertGreater(group.dropped(), 0)
        self.ok("detach_nic", more, held.mac(1))
        self.assertFalse((NET / "one-2-1").exists())
