"""NICs on Open vSwitch, with what OpenNebula's network driver does after a deployment and after the end."""

import fixtures

from tests.functional import ovs
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP, OnedockCase
from tests.functional_onedock.test_parts import addressed

OVS = "<BRIDGE_TYPE>openvswitch</BRIDGE_TYPE><VLAN_ID>7</VLAN_ID>"


class OpenVSwitchTest(OnedockCase):
    """A switch in user space; the driver finds it by its environment."""

    def setUp(self) -> None:
        super().setUp()
        self.switch = ovs.shared()
        self.useFixture(fixtures.EnvironmentVariable("OVS_RUNDIR", self.switch.environment["OVS_RUNDIR"]))

    def on_switch(self, number: int, address: str) -> Machine:
        machine = Machine(number, nics=(0,), bridge=ovs.BRIDGE, nic_more=OVS)
        return self.deployed(machine.changed(context=(("ETH0_MAC", machine.mac(0)), ("ETH0_IP", address))))

    def tagged(self, port: str, vlan: int) -> None:
        self.switch.vsctl("set", "port", port, f"tag={vlan}")
        self.addCleanup(self.switch.vsctl, "--if-exists", "del-port", port)

    def test_ports_keep_their_vlan_over_restarts_of_the_container(self) -> None:
        first, second = self.on_switch(1, "10.1.0.5"), self.on_switch(2, "10.1.0.6")
        self.tagged("one-1-0", 7)
        self.tagged("one-2-0", 7)
        for act in (lambda: None, lambda: self.ok("reset", first)):
            act()
            self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-0", "tag"))
            self.assertIn(" 0% packet loss", self.inside(second, "ping", "-c", "1", "-W", "30", "10.1.0.5"))
        self.assertEqual("hello\n", self.sent(first, second), "whole frames with whole checksums")
        self.tagged("one-1-0", 8)
        self.assertIn("100% packet loss", self.inside(second, "ping", "-c", "1", "-W", "2", "10.1.0.5"))
        for machine in (first, second):
            self.ok("cancel", machine, lcm=CLEANUP)

    def sent(self, receiver: Machine, sender: Machine) -> str:
        """Return what came over TCP."""
        self.shell(receiver, "nc -l -p 99 > /received &")
        self.shell(sender, "for try in 1 2 3 4 5; do echo hello | nc -w 5 10.1.0.5 99 && break; sleep 1; done")
        return self.shell(receiver, "cat /received")

    def test_a_nic_comes_and_goes_while_it_runs(self) -> None:
        machine = self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        more = machine.changed(nics=(0, 1), attach="nic", bridge=ovs.BRIDGE, nic_more=OVS)
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(1), ovs.BRIDGE, "-", "ovswitch", "one-1-1")
        self.assertIn("one-1-1", self.switch.vsctl("list-ports", ovs.BRIDGE).split())
        self.ok("detach_nic", more, machine.mac(1))
        self.switch.vsctl("--if-exists", "del-port", "one-1-1")

    def test_a_bridge_that_is_not_there_is_told(self) -> None:
        machine = Machine(nics=(0,), bridge="no-such-br", nic_more=OVS)
        self.node.give_disk(machine)
        self.refused("no bridge named no-such-br", "deploy", machine, lcm=BOOT)
