# SPDX-License-Identifier: Apache-2.0
"""NICs on Open vSwitch, with what OpenNebula's network driver does after a deployment and after the end."""

from typing import NoReturn

import fixtures

from containerhost.engines.docker.engine import DockerEngine
from containerhost.errors import EngineError
from tests import levels
from tests.functional import ovs
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP, RESTORE, SUSPEND, OnedockCase
from tests.functional_onedock.test_parts import addressed
from tests.waiting import await_that

OVS = "<BRIDGE_TYPE>openvswitch</BRIDGE_TYPE><VLAN_ID>7</VLAN_ID>"


def failing(*_: object) -> NoReturn:
    raise EngineError("it fails, as the test has it")


@levels.exhaustive("the drivers share this code, and the gate has it on LXD",
                   tests=("test_ports_keep_their_vlan_over_restarts_of_the_container",))
class OpenVSwitchTest(OnedockCase):
    """A switch in user space; the driver finds it by its environment."""

    def setUp(self) -> None:
        super().setUp()
        self.switch = ovs.shared()
        self.useFixture(fixtures.EnvironmentVariable("OVS_RUNDIR", self.switch.environment["OVS_RUNDIR"]))

    def on_switch(self, number: int, address: str) -> Machine:
        machine = Machine(number, nics=(0,), bridge=ovs.BRIDGE, nic_more=OVS)
        return self.deployed(machine.changed(context=(("ETH0_MAC", machine.mac(0)), ("ETH0_IP", address))))

    def removed(self, *ports: str) -> None:
        """Do what OpenNebula's network driver does at the end."""
        for port in ports:
            self.addCleanup(self.switch.vsctl, "--if-exists", "del-port", port)

    def ports(self) -> list[str]:
        return [port for port in self.switch.vsctl("list-ports", ovs.BRIDGE).split() if port.startswith("one-")]

    def test_ports_keep_their_vlan_over_restarts_of_the_container(self) -> None:
        first, second = self.on_switch(1, "10.1.0.5"), self.on_switch(2, "10.1.0.6")
        self.removed("one-1-0", "one-2-0")
        for act in (lambda: None, lambda: self.ok("reset", first)):
            act()
            self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-0", "tag"))
            self.assertIn(" 0% packet loss", self.inside(second, "ping", "-c", "1", "-W", "30", "10.1.0.5"))
        self.assertEqual("hello\n", self.sent(first, second), "whole frames with whole checksums")
        self.switch.vsctl("set", "port", "one-1-0", "tag=8")
        self.ok("reset", first)
        self.assertIn("100% packet loss", self.inside(second, "ping", "-c", "1", "-W", "2", "10.1.0.5"))
        for machine in (first, second):
            self.ok("cancel", machine, lcm=CLEANUP)

    def sent(self, receiver: Machine, sender: Machine) -> str:
        """Return what came over TCP."""
        self.shell(receiver, "nc -l -p 99 > /received &")
        await_that(lambda: ":0063 " in self.shell(receiver, "cat /proc/net/tcp /proc/net/tcp6"), "it listens")
        # From a file, which can always be read: nc ends, successfully, when it sees the receiver's end of input before
        # its own input.
        self.shell(sender, "echo hello > /hello; nc -w 30 10.1.0.5 99 < /hello")
        await_that(lambda: self.shell(receiver, "cat /received"), "something came")
        return self.shell(receiver, "cat /received")

    @levels.exhaustive("a NIC that comes and goes stays")
    def test_a_port_that_left_while_it_was_suspended_is_back(self) -> None:
        machine = self.on_switch(1, "10.1.0.5")
        self.removed("one-1-0")
        self.ok("save", machine, lcm=SUSPEND)
        self.switch.vsctl("del-port", "one-1-0")
        self.ok("restore", machine, lcm=RESTORE)
        self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-0", "tag"))

    def test_a_nic_comes_and_goes_while_it_runs(self) -> None:
        machine = self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        more = machine.changed(nics=(0, 1), attach="nic", bridge=ovs.BRIDGE, nic_more=OVS)
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(1), ovs.BRIDGE, "-", "ovswitch", "one-1-1")
        self.assertIn("one-1-1", self.switch.vsctl("list-ports", ovs.BRIDGE).split())
        self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-1", "tag"))
        self.ok("detach_nic", more, machine.mac(1))
        self.assertEqual([], self.ports())

    def test_vlans_that_come_with_their_tags(self) -> None:
        for more, expected in (("<VLAN_TAGGED_ID>20,30-31</VLAN_TAGGED_ID>", ("[]", "[20, 30, 31]", "trunk")),
                               ("<VLAN_ID>7</VLAN_ID><VLAN_TAGGED_ID>20</VLAN_TAGGED_ID>",
                                ("7", "[20]", "native-untagged"))):
            machine = self.deployed(Machine(nics=(0,), bridge=ovs.BRIDGE, nic_more=(
                f"<BRIDGE_TYPE>openvswitch</BRIDGE_TYPE>{more}")))
            self.removed("one-1-0")
            found = tuple(self.switch.vsctl("get", "port", "one-1-0", column) for column in (
                "tag", "trunks", "vlan_mode"))
            self.ok("cancel", machine, lcm=CLEANUP)
            self.switch.vsctl("del-port", "one-1-0")
            self.assertEqual(expected, found)

    def test_an_attachment_that_fails_leaves_no_port(self) -> None:
        machine = self.deployed()
        more = machine.changed(nics=(1,), attach="nic", bridge=ovs.BRIDGE, nic_more=OVS)
        self.patch(DockerEngine, "attach", failing)
        self.refused("as the test has it", "attach_nic", more, machine.mac(1), ovs.BRIDGE, "-", "ovswitch", "one-1-1")
        self.assertEqual([], self.ports())

    def test_limits_that_the_switch_would_end_are_refused(self) -> None:
        machine = Machine(nics=(0,), bridge=ovs.BRIDGE, nic_more=f"{OVS}<INBOUND_AVG_BW>100</INBOUND_AVG_BW>")
        self.node.give_disk(machine)
        self.refused("use a network of Linux bridges", "deploy", machine, lcm=BOOT)
        self.assertEqual([], self.ports())

    def test_a_bridge_that_is_not_there_is_told(self) -> None:
        machine = Machine(nics=(0,), bridge="no-such-br", nic_more=OVS)
        self.node.give_disk(machine)
        self.refused("no bridge named no-such-br", "deploy", machine, lcm=BOOT)
