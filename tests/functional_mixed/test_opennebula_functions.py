# SPDX-License-Identifier: Apache-2.0
"""OpenNebula's NICs that are virtual functions of an Ethernet card (PCI with TYPE=NIC)."""

import json
import subprocess

from containerhost.devices.model import Device, Role
from containerhost.inventory.scan import scan
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.functional_one.test_actions import POWEROFF, RESUME, ActionsCase
from tests.functional_one.vms import Machine

PF = "0000:31:00.0"
FREE = {"address": "00:00:00:00:00:00", "vlan": 0, "qos": 0, "spoofchk": True, "trust": False, "max_tx": 0}
MAC = "02:00:0a:63:01:0a"


@levels.exhaustive("one that is held to its MAC and VLAN stays", tests=("test_it_comes_and_goes_while_the_vm_runs",))
class FunctionTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.functions = [device for device in scan().devices if device.parent == PF and device.role is Role.VF]

    @staticmethod
    def nic(function: Device, more: str = "") -> str:
        return (f"<PCI><ADDRESS>{from_device_id(function.id).address}</ADDRESS><MAC>{MAC}</MAC><NIC_ID>3</NIC_ID>"
                f"<TYPE>NIC</TYPE><PCI_ID>0</PCI_ID>{more}</PCI>")

    def settings(self) -> list[dict[str, object]]:
        """Return what the physical function makes its VFs use, those of a VLAN first."""
        shown = json.loads(subprocess.run(["ip", "-j", "link", "show", "dev", scan().get(PF).netdev], check=True,
                                          capture_output=True, text=True).stdout)[0]
        found = [{"address": vf["address"], "spoofchk": vf["spoofchk"], "trust": vf["trust"],
                  "max_tx": vf["rate"]["max_tx"]} | vf.get("vlan_list", [{"vlan": 0, "qos": 0}])[0]
                 for vf in shown["vfinfo_list"]]
        return sorted(found, key=lambda vf: -vf["vlan"])

    def test_it_is_held_to_its_mac_and_vlan_until_it_goes(self) -> None:
        mine = {"address": MAC, "vlan": 7, "qos": 0, "spoofchk": False, "trust": True, "max_tx": 0}
        element = self.nic(self.functions[0], "<VLAN_ID>7</VLAN_ID><SPOOFCHK>NO</SPOOFCHK><TRUST>YES</TRUST>")
        machine = self.deployed(Machine(more=element))
        for act in (lambda: None, lambda: self.ok("reset", machine), lambda: (
                self.ok("cancel", machine, lcm=POWEROFF), self.ok("deploy", machine, lcm=RESUME))):
            act()
            self.assertEqual(f"{MAC}\n", self.inside(machine, "cat", "/sys/class/net/eth3/address"))
            self.assertEqual([mine, FREE], self.settings())
        self.ok("cancel", machine, lcm=23)
        self.assertEqual([FREE, FREE], self.settings())

    def test_what_the_operator_set_before_is_restored(self) -> None:
        def setting(text: str) -> None:
            subprocess.run(["ip", "link", "set", "dev", scan().get(PF).netdev, "vf", str(self.functions[0].vf_index),
                            *text.split()], check=True)

        self.addCleanup(setting, "vlan 0 qos 0 spoofchk on trust off max_tx_rate 0")
        setting("vlan 5 qos 3 spoofchk off trust on max_tx_rate 700")
        before = [FREE | {"vlan": 5, "qos": 3, "spoofchk": False, "trust": True, "max_tx": 700}, FREE]
        self.assertEqual(before, self.settings())
        more = "<SPOOFCHK>YES</SPOOFCHK><TRUST>NO</TRUST><OUTBOUND_AVG_BW>12500</OUTBOUND_AVG_BW>"
        machine = self.deployed(Machine(more=self.nic(self.functions[0], more)))
        self.assertCountEqual([FREE | {"address": MAC, "max_tx": 100}, FREE], self.settings())
        self.ok("cancel", machine, lcm=23)
        self.assertEqual(before, self.settings())

    def test_it_comes_and_goes_while_the_vm_runs(self) -> None:
        machine = self.deployed()
        more = machine.changed(more=self.nic(self.functions[1], "<VLAN_ID>9</VLAN_ID><ATTACH>YES</ATTACH>"))
        for _ in range(2):
            self.ok("attach_nic", more, MAC, "-", "-", "bridge", "one-1-3")
        self.assertEqual(f"{MAC}\n", self.inside(machine, "cat", "/sys/class/net/eth3/address"))
        self.assertEqual([FREE | {"address": MAC, "vlan": 9}, FREE], self.settings())
        for _ in range(2):
            self.ok("detach_nic", more, MAC)
        self.assertEqual([FREE, FREE], self.settings())
        self.assertIn("No such file", self.inside(machine, "ls", "/sys/class/net/eth3"))

    def test_what_only_a_switched_function_can_is_refused(self) -> None:
        infiniband = next(device for device in scan().devices if device.parent == "0000:5e:00.0")
        machine = Machine(more=self.nic(infiniband, "<VLAN_ID>7</VLAN_ID>"))
        self.node.give_disk(machine)
        self.refused("VLAN_ID=7, which requires a virtual function", "deploy", machine, lcm=2)
