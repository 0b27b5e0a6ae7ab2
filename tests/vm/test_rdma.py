# SPDX-License-Identifier: Apache-2.0
"""Test verbs of a real driver in containers: soft RoCE (rxe), on a card with two ports.

A soft device belongs to no PCI function, so discovery finds none and no cloud can give one: the tests grant its nodes
to the engine. Its packets are those of the host's network namespace, in which the interface stays.
"""

import json
import subprocess
from pathlib import Path

from containerhost.devices.grants import Grant
from containerhost.devices.model import CharNode, Device, NodeUse
from containerhost.engines.spec import BridgedNic
from containerhost.linux.sysfs import Host
from tests.vm.containers import TIMEOUT, InContainers
from tests.vm.hardware import add_address, ports
from tests.waiting import await_that

BRIDGE = "management"
ADDRESSES = {"c1": "198.51.100.1", "c2": "198.51.100.2"}  # by which the programs find each other
GID = "1"  # its place in the port's table: that of the IPv4 address, for RoCE v2
MEMLOCK = 128 << 10  # bytes
MEBIBYTE = str(1 << 20)
ROUNDS = "100"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def soft_devices() -> dict[str, str]:
    """Interface -> RDMA device."""
    return {link["netdev"]: link["ifname"] for link in json.loads(run("rdma", "-j", "link") or "[]")}


def remove_soft_devices() -> None:
    for name in soft_devices().values():
        run("rdma", "link", "delete", name)


class SoftRoce(InContainers):
    def setUp(self) -> None:
        run("ip", "link", "add", BRIDGE, "up", "type", "bridge")
        self.addCleanup(run, "ip", "link", "delete", BRIDGE)  # after the containers: LXD leaves their interfaces else
        super().setUp()
        self.addCleanup(remove_soft_devices)
        self.ports = ports()
        # Both ends of the cable are this host's: it must take its own address for a sender's.
        for name, value in (("accept_local", "1"), ("rp_filter", "0")):
            Path("/proc/sys/net/ipv4/conf/all", name).write_text(value)
        for number, port in enumerate(self.ports, 1):
            add_address(self, port, f"203.0.113.{number}")
            run("rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", port.netdev or "")

    def granted(self, port: Device, memlock: str = "unlimited") -> Grant:
        """Return a grant of the verbs of the soft device on a port."""
        host, ibdev = Host(), soft_devices()[port.netdev or ""]
        verbs = "/sys/class/infiniband_verbs"
        (name,) = [name for name in host.names(verbs) if host.text(f"{verbs}/{name}/ibdev") == ibdev]
        major, minor = host.char_number(f"{verbs}/{name}/dev") or (0, 0)
        manager = CharNode("/dev/infiniband/rdma_cm", *(host.misc_number("rdma_cm") or (0, 0)), NodeUse.SHARED)
        return Grant(device=port, nodes=(CharNode(f"/dev/infiniband/{name}", major, minor), manager),
                     limits={"memlock": memlock})

    def both_started(self, memlock: str = "unlimited") -> dict[str, Grant]:
        """Start two containers, each with a device and an interface to reach the other.

        :param memlock: of the first
        """
        grants = {"c1": self.granted(self.ports[0], memlock), "c2": self.granted(self.ports[1])}
        for number, (name, grant) in enumerate(grants.items(), 1):
            nic = BridgedNic("eth0", BRIDGE, f"management{number}", f"02:00:00:00:00:0{number}")
            self.started(name, grant, nics=[nic])
            self.output(name, "ip", "addr", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
        return grants

    def pingpong(self, port: Device, *more: str) -> tuple[str, ...]:
        return ("ibv_rc_pingpong", "-d", soft_devices()[port.netdev or ""], "-g", GID, "-n", ROUNDS, "-c", *more)

    def test_verbs_between_two_containers(self) -> None:
        grants = self.both_started()
        for name, other in (("c1", "c2"), ("c2", "c1")):
            self.assertEqual({node.path.rpartition("/")[2] for node in grants[name].nodes},
                             set(self.output(name, "ls", "/dev/infiniband").split()))
            (node,) = grants[other].own_nodes
            status, told = self.run_in(name, "mknod", "/tmp/other", "c", str(node.major), str(node.minor))
            self.assertEqual((1, True), (status, "Operation not permitted" in told), told)
            status, told = self.run_in(name, *self.pingpong(grants[other].device, ADDRESSES[other]))
            self.assertEqual((1, True), (status, "not found" in told), told)
        server = self.engine.command("c1", self.pingpong(self.ports[0]))
        self.addCleanup(server.close)
        self.addCleanup(server.kill)

        def connected() -> bool:
            self.told = self.run_in("c2", *self.pingpong(self.ports[1], ADDRESSES["c1"]))
            return self.told[0] == 0

        await_that(connected, lambda: f"c2: {self.told}")
        self.assertIn(f"{ROUNDS} iters in", self.told[1])
        self.assertEqual(0, server.finish(b"", TIMEOUT).status)

    def test_connection_manager_finds_no_soft_device_in_a_container(self) -> None:
        """Its interface is in the host's namespace, and those of the container have none."""
        self.both_started()
        status, told = self.run_in("c1", "rping", "-s", "-a", ADDRESSES["c1"], "-C", "1")
        self.assertNotEqual(0, status, told)
        self.assertIn("rdma_bind_addr: No such device", told)

    def test_limit_of_locked_memory_holds(self) -> None:
        """Registering more memory than the grant's limit fails; a container without limit goes on."""
        self.both_started(str(MEMLOCK))
        for name, port, refused in (("c1", self.ports[0], True), ("c2", self.ports[1], False)):
            status, told = self.run_in(name, *self.pingpong(port, "-s", MEBIBYTE, "127.0.0.1"))
            # The second has no peer.
            self.assertEqual((1, refused, not refused), (status, "Couldn't register MR" in told,
                                                         "Couldn't connect" in told), told)
