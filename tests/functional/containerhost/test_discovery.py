# SPDX-License-Identifier: Apache-2.0
"""Discovery on a host whose hardware changes under it, with real device nodes and real network namespaces."""

import multiprocessing
import os
import subprocess

import testtools

from containerhost.devices.model import Device, Role
from containerhost.errors import DeviceNotFound
from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from tests.fakehost.control import FakeHostControl

NOBODY = 65534


def look_as_nobody(answer) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    answer.put(scan().devices)


class DiscoveryTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.control = FakeHostControl.from_environment()
        inventory = scan()
        self.gpu = next(device for device in inventory.devices if device.plugin == "nvidia")
        self.vf = next(device for device in inventory.devices if device.role is Role.VF)
        self.addCleanup(self._as_before, inventory)

    def _as_before(self, inventory: Inventory) -> None:
        self.assertEqual(inventory.devices, scan().devices)

    def now(self, device: Device) -> Device:
        return scan().get(device.id)

    def test_everything_is_healthy_and_near_a_node(self):
        nodes = {node.id for node in topology.read().nodes}
        for device in scan().devices:
            self.assertEqual((), device.health, device.id)
            self.assertIn(device.numa_node, nodes)

    def test_nobody_needs_privileges_to_look(self):
        # A child of this process, because nobody may not be able to execute the interpreter in root's home.
        fork = multiprocessing.get_context("fork")
        answer = fork.SimpleQueue()
        child = fork.Process(target=look_as_nobody, args=(answer,))
        child.start()
        child.join(60)
        self.assertEqual(0, child.exitcode)
        self.assertEqual(scan().devices, answer.get())

    def test_a_card_that_is_pulled_is_gone_and_comes_back(self):
        self.control.remove(self.gpu.address)
        self.addCleanup(self.control.restore, self.gpu.address)
        self.assertRaises(DeviceNotFound, self.now, self.gpu)

    def test_a_node_that_is_another_device(self):
        path = self.gpu.nodes[0].path
        os.rename(path, f"{path}.saved")
        self.addCleanup(os.rename, f"{path}.saved", path)
        os.mknod(path, 0o20666, os.makedev(1, 3))
        self.assertIn("is 1:3, but the driver's is 195:", "; ".join(self.now(self.gpu).health))

    def test_an_interface_in_another_namespace(self):
        name = self.control.move_abroad(self.vf.address)
        self.addCleanup(self.control.bring_home, self.vf.address)
        now = self.now(self.vf)
        self.assertEqual((self.vf.netdev, None, True, ()), (name, now.netdev, now.netdev_away, now.health))

    def test_addresses_on_the_host_make_it_the_hosts(self):
        subprocess.run(["ip", "address", "add", "192.0.2.1/24", "dev", self.vf.netdev], check=True, timeout=10)
        self.addCleanup(subprocess.run, ["ip", "link", "set", self.vf.netdev, "down"], check=True, timeout=10)
        self.addCleanup(subprocess.run, ["ip", "address", "flush", "dev", self.vf.netdev], check=True, timeout=10)
        subprocess.run(["ip", "link", "set", self.vf.netdev, "up"], check=True, timeout=10)
        self.assertEqual((f"{self.vf.netdev} has addresses",), self.now(self.vf).host_use)
