# SPDX-License-Identifier: Apache-2.0
"""NICs on bridges as OpenNebula's network drivers make them before a deployment, and what they do after it."""

import subprocess

import fixtures

from tests.functional import ovs
from tests.functional_one.test_actions import CLEANUP, RESTORE, SUSPEND, ActionsCase
from tests.functional_one.vms import Machine

ADDRESS, HOST_ADDRESS = "10.99.7.2", "10.99.7.1"


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class OpenVSwitchTest(ActionsCase):
    """A switch in user space; LXD finds it by its environment."""

    def setUp(self) -> None:
        super().setUp()
        self.switch = ovs.shared()
        daemon = self.node.lxd.daemon
        self.addCleanup(daemon.start)
        self.addCleanup(daemon.stop)
        with fixtures.EnvironmentVariable("OVS_RUNDIR", self.switch.environment["OVS_RUNDIR"]):
            daemon.stop()
            daemon.start()
        self.useFixture(fixtures.EnvironmentVariable("OVS_RUNDIR", self.switch.environment["OVS_RUNDIR"]))

    def ports(self) -> list[str]:
        return [port for port in self.switch.vsctl("list-ports", ovs.BRIDGE).split() if port.startswith("one-")]

    def test_a_port_has_its_vlan_after_every_start(self) -> None:
        machine = self.deployed(Machine(nics=(0,), bridge=ovs.BRIDGE, nic_more=(
            "<BRIDGE_TYPE>openvswitch</BRIDGE_TYPE><VLAN_ID>7</VLAN_ID>")))
        for act in (lambda: None, lambda: self.ok("reset", machine)):
            act()
            self.assertEqual(["one-1-0"], self.ports())
            self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-0", "tag"))
        more = machine.changed(nics=(0, 1), attach="nic")
        self.ok("attach_nic", more, machine.mac(1), ovs.BRIDGE, "-", "ovswitch", "one-1-1")
        self.assertEqual(["one-1-0", "one-1-1"], self.ports())
        self.ok("detach_nic", more, machine.mac(1))
        self.assertEqual(["one-1-0"], self.ports())
        self.ok("save", machine, lcm=SUSPEND)
        self.switch.vsctl("del-port", "one-1-0")  # by OpenNebula's network driver
        self.ok("restore", machine, lcm=RESTORE)
        self.assertEqual("7", self.switch.vsctl("get", "port", "one-1-0", "tag"))
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual([], self.ports())


class LinuxBridgeTest(ActionsCase):
    def test_over_a_vxlan(self) -> None:
        """The bridge over a link of the network, as the driver vxlan makes both."""
        ip("link", "add", "onephys", "type", "veth", "peer", "name", "onepeer")
        self.addCleanup(ip, "link", "delete", "onephys")
        ip("link", "set", "onephys", "up")
        ip("link", "add", "onebr.7", "type", "bridge")
        self.addCleanup(ip, "link", "delete", "onebr.7")
        ip("link", "add", "onephys.7", "type", "vxlan", "id", "7", "dstport", "8472", "group", "239.0.0.7", "dev",
           "onephys")
        ip("link", "set", "onephys.7", "master", "onebr.7", "up")
        ip("address", "add", f"{HOST_ADDRESS}/24", "dev", "onebr.7")
        ip("link", "set", "onebr.7", "up")
        machine = self.deployed(Machine(nics=(0,), bridge="onebr.7", nic_more="<VLAN_ID>7</VLAN_ID>"))
        for command in (("address", "add", f"{ADDRESS}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            self.inside(machine, "ip", *command)
        self.wait_for(lambda: " 0% packet loss" in self.inside(machine, "ping", "-c", "1", "-W", "2", HOST_ADDRESS))

    def test_speed_of_a_running_vms_nic_is_changed(self) -> None:
        machine = self.deployed(Machine(nics=(0,), nic_more="<INBOUND_AVG_BW>4000</INBOUND_AVG_BW>"))

        def limits() -> tuple[str | None, str | None]:
            device = self.engine.client.instance(machine.name)[0]["devices"]["nic-eth0"]
            return device.get("limits.ingress"), device.get("limits.egress")

        self.assertEqual(("32000000", None), limits())
        self.assertEqual(0, self.node.command(f"lxdone vmm limit_nic {machine.name} 0 2000 0").status)
        shown = subprocess.run(["tc", "class", "show", "dev", "one-1-0"], capture_output=True, text=True,
                               check=True).stdout
        self.assertEqual((("16000000", None), True), (limits(), "rate 16Mbit" in shown))
        refused = self.node.command(f"lxdone vmm limit_nic {machine.name} 7 2000 0")
        self.assertIn("no interface eth7", refused.reason)
