# SPDX-License-Identifier: Apache-2.0
"""Test a card with two ports, each a function of its own: the host uses one, a container gets the other."""

import subprocess
from pathlib import Path

from containerhost import errors
from containerhost.inventory.scan import scan
from tests.vm.containers import InContainers, consumer
from tests.vm.hardware import add_address, ports
from tests.waiting import await_that

HOSTS, CONTAINERS = "192.0.2.1", "192.0.2.2"
FRAMES_TIMEOUT = 60  # s until both ends of the cable have a carrier


class PortsOfOneCard(InContainers):
    def setUp(self) -> None:
        super().setUp()
        self.hosts, self.free = ports()
        add_address(self, self.hosts, HOSTS)

    def state(self) -> list[str]:
        """Return what changes where somebody touches the host's port: its number, its link and how often it changed."""
        directory = Path("/sys/class/net", self.hosts.netdev or "")
        return [(directory / name).read_text().strip() for name in ("ifindex", "carrier", "carrier_changes", "flags")]

    def answers(self) -> bool:
        return subprocess.run(["busybox", "ping", "-c", "1", "-W", "2", CONTAINERS], check=False,
                              stdout=subprocess.DEVNULL).returncode == 0

    def test_port_that_the_host_uses_is_refused(self) -> None:
        self.assertEqual(self.hosts.address.rpartition(".")[0], self.free.address.rpartition(".")[0])
        used = scan().get(self.hosts.id)
        self.assertEqual((f"{used.netdev} has addresses",), used.host_use)
        error = self.assertRaises(errors.DeviceHeld, self.acquired, used, "c1")
        self.assertIn("the host uses it", str(error))
        self.assertEqual({}, self.store.records())

    def test_other_port_comes_and_goes_without_touching_it(self) -> None:
        before = self.state()
        self.assertEqual((), scan().get(self.free.id).host_use)
        grant = self.acquired(self.free, "c1", netdev_name="eth0")
        self.started("c1", grant)
        self.assertEqual({"eth0": self.free.mac}, self.inside("c1"))
        self.output("c1", "ip", "addr", "add", f"{CONTAINERS}/24", "dev", "eth0")
        await_that(self.answers, "the container answers by its port", FRAMES_TIMEOUT)
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.assert_free(self.free)
        self.assertEqual(before, self.state())
