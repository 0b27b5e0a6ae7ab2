# SPDX-License-Identifier: Apache-2.0
"""Limits of disks and interfaces of VMs on Docker, held by the kernel."""

import subprocess
import time

from containerhost.linux.sysfs import Host
from tests import levels
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import BOOT, OnedockCase
from tests.functional_onedock.test_parts import addressed, disk

RATE = 1 << 20  # bytes per second
SLOW = f"<TOTAL_BYTES_SEC>{RATE}</TOTAL_BYTES_SEC><READ_IOPS_SEC>100</READ_IOPS_SEC>"
BLKIO = "/sys/fs/cgroup/blkio/blkio.throttle"


class DiskSpeedTest(OnedockCase):
    def test_the_roots_speed(self) -> None:
        machine = self.deployed(Machine(disks=ROOT.replace("</DISK>", f"{SLOW}</DISK>")))
        made = self.inspect(machine)["HostConfig"]
        node = made["BlkioDeviceWriteBps"][0]["Path"]
        self.assertEqual([{"Path": node, "Rate": 100}], made["BlkioDeviceReadIOps"])
        for file in ("read_bps", "write_bps"):
            self.assertIn(f" {RATE}\n", self.inside(machine, "cat", f"{BLKIO}.{file}_device"))
        begin = time.monotonic()
        self.assertIn("records out", self.shell(machine, "dd if=/dev/zero of=/much bs=1M count=4 oflag=direct 2>&1"))
        self.assertGreater(time.monotonic() - begin, 2.5)

    def test_what_no_disk_of_docker_can_have(self) -> None:
        machine = Machine(disks=ROOT + disk(2, SLOW))
        self.node.give_disk(machine)
        self.node.give_file_system(machine, 2)
        self.refused("only the root's rate", "deploy", machine, lcm=BOOT)


class BandwidthTest(OnedockCase):
    def test_what_a_vm_receives_and_sends(self) -> None:
        other = self.deployed(Machine(2, nics=(0,), context=(("ETH0_MAC", Machine(2).mac(0)), ("ETH0_IP", "10.1.0.6"))))
        self.deployed(Machine(
            nics=(0,), context=addressed("10.1.0.5"),
            nic_more="<INBOUND_AVG_BW>4000</INBOUND_AVG_BW><OUTBOUND_AVG_BW>1000</OUTBOUND_AVG_BW>"))
        subprocess.run(["ip", "link", "set", "one-br0", "up"], check=True)
        self.assertIn(" 0% packet loss", self.inside(other, "ping", "-c", "1", "-W", "30", "10.1.0.5"))
        self.assertIn("rate 32Mbit", self.shape("one-1-0"))
        self.assertIn("rate 8Mbit", self.shape("ifb-1-0"))
        # Traffic passed the limited interface.
        self.assertGreater(Host().number("/sys/class/net/ifb-1-0/statistics/tx_packets"), 0)
        self.assertEqual(0, self.node.command("onedock vmm limit_nic one-1 0 2000 0").status)
        self.assertIn("rate 16Mbit", self.shape("one-1-0"))
        self.assertFalse(Host().exists("/sys/class/net/ifb-1-0"))
        self.assertIn(" 0% packet loss", self.inside(other, "ping", "-c", "1", "-W", "30", "10.1.0.5"))
        self.assertEqual(2, self.node.command("onedock vmm limit_nic one-1 7 2000 0").status)

    @staticmethod
    def shape(interface: str) -> str:
        return subprocess.run(["tc", "class", "show", "dev", interface], capture_output=True, text=True,
                              check=True).stdout

    @levels.exhaustive("limits from the start stay")
    def test_one_that_is_plugged_in_later_and_gone(self) -> None:
        machine = self.deployed()
        limited = Machine(nics=(0,), attach="nic", nic_more="<OUTBOUND_AVG_BW>1000</OUTBOUND_AVG_BW>")
        self.ok("attach_nic", limited, machine.mac(0), "one-br0", "-", "dummy", "one-1-0")
        self.assertIn("rate 8Mbit", self.shape("ifb-1-0"))
        self.ok("detach_nic", limited, machine.mac(0))
        self.assertNotIn("ifb-1-0", subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout)
