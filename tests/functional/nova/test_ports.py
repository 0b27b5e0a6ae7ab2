# SPDX-License-Identifier: Apache-2.0
"""Neutron ports through nova's API on a real Open vSwitch in user space; neutron's answers are nova's own fixture."""

import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from nova.network import model
from nova.tests.fixtures import neutron
from nova.tests.functional.api.client import OpenStackApiException
from oslo_utils import uuidutils

from containerhost.engines.contract import Status
from containerhost.inventory.scan import HostView
from containerhost.linux.poll import wait_until
from nova_lxd_ext.instance.requested import RequestedResources
from tests import levels
from tests.functional import ovs
from tests.unit.nova import records

TIMEOUT = 60  # s
NETWORK = neutron.NeutronFixture.network_1["id"]
SWITCHED = {"datapath_type": "netdev", "bridge_name": ovs.BRIDGE, "port_filter": True}
MTU = neutron.NeutronFixture.network_1["mtu"]


class PortServers(base.LxdServers):
    """:ivar switch: the host's switch
    """

    #: How neutron binds ports to this host.
    vif_details: ClassVar[dict[str, Any]] = SWITCHED

    def setUp(self) -> None:
        self.switch = self.useFixture(ovs.OpenVSwitch())
        super().setUp()
        self.interfaces_before = self.host_interfaces()

    def port(self, **changes: Any) -> dict[str, Any]:
        """A port that no server has, with an address for :meth:`address`."""
        port = self.neutron.create_port({"port": {"network_id": NETWORK}})["port"]
        self.neutron._ports[port["id"]].update({"binding:vif_details": dict(self.vif_details), **changes})
        return self.neutron._ports[port["id"]]

    def host_interfaces(self) -> set[str]:
        return {path.name for path in Path("/sys/class/net").iterdir() if path.is_dir()}

    def links(self, server: Any) -> dict[str, str]:
        """Interface in the container -> its MAC."""
        names = self.inside(server, "ls", "/sys/class/net").output.split()
        return {name: self.inside(server, "cat", f"/sys/class/net/{name}/address").output.strip()
                for name in names if name != "lo"}

    def address(self, server: Any, name: str, address: str) -> None:
        """Set what DHCP would."""
        for words in (["address", "add", f"{address}/24", "dev", name], ["link", "set", name, "up"]):
            done = self.inside(server, "ip", *words)
            self.assertEqual(0, done.status, done.output)

    def reaches(self, server: Any, address: str) -> bool:
        return wait_until(lambda: self.inside(server, "ping", "-c", "1", "-W", "1", address).status == 0, TIMEOUT)

    def sends(self, sender: Any, receiver: Any, address: str, size: int) -> str:
        """Let one server send bytes of zero to the other's ``address``; the MD5 sum of what arrives.

        :param size: MiB
        """
        listening = self.start_inside(receiver, "nc -l -p 5000 | md5sum")
        self.assertTrue(wait_until(lambda: any(
            ":1388 " in self.inside(receiver, "cat", f"/proc/net/{table}").output.upper() for table in ("tcp", "tcp6")),
            TIMEOUT))
        sent = self.inside(sender, "sh", "-c",
                           f"dd if=/dev/zero bs=1M count={size} 2> /dev/null | nc -w 30 {address} 5000")
        self.assertEqual(0, sent.status, sent.output)
        return listening.stdout.read()

    def start_inside(self, server: Any, script: str) -> "subprocess.Popen[str]":
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        process = subprocess.Popen(["nsenter", "--target", str(pid), "--all", "sh", "-c", script], text=True,
                                   # A listener whose own input has ended hangs up.
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   env={"PATH": "/bin:/sbin:/usr/bin:/usr/sbin"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def assert_is_wired(self, server: Any, *ports: dict[str, Any]) -> None:
        """The container has these ports in this order, and the switch the other ends of the very same interfaces."""
        self.assertEqual({f"eth{number}": port["mac_address"] for number, port in enumerate(ports)},
                         self.links(server))
        for number, port in enumerate(ports):
            host_end = f"tap{port['id']}"[:14]
            peer = int(self.inside(server, "cat", f"/sys/class/net/eth{number}/iflink").output)
            # The container must use the addresses that neutron filters (CVE-2017-5936).
            self.assertEqual(peer, int(Path(f"/sys/class/net/{host_end}/ifindex").read_text()))
            self.assertEqual(MTU, int(self.inside(server, "cat", f"/sys/class/net/eth{number}/mtu").output))
            self.assert_is_plugged(server, port, host_end)

    def assert_is_plugged(self, server: Any, port: dict[str, Any], host_end: str) -> None:
        self.assertIn(host_end, self.switch.ports())
        known = self.switch.interface(host_end)
        self.assertEqual((port["id"], port["mac_address"], server["id"]), tuple(
            known["external_ids"][key] for key in ("iface-id", "attached-mac", "vm-uuid")))
        self.assertEqual([], known["error"][1] if known["error"] else [])

    def assert_nothing_left(self, servers: Any = ()) -> None:
        super().assert_nothing_left(servers)
        if not servers:
            self.assertEqual([], self.switch.ports())
            self.assertEqual(self.interfaces_before, self.host_interfaces())


class PortsTest(PortServers):
    def test_two_servers_talk_through_boot_reboot_and_stop(self) -> None:
        ports = [[self.port(), self.port()], [self.port()]]
        servers = [self.with_ports(*each) for each in ports]
        for server, each in zip(servers, ports, strict=True):
            self.assert_is_wired(server, *each)
        self.address(servers[1], "eth0", "192.168.1.20")
        first = servers[0]
        restarts = (lambda: self._reboot_server(first, hard=True), lambda: self._stop_and_start(first),
                    lambda: self._reboot_server(first))
        for restart in (lambda: None, *levels.budget(gate=(levels.turn(restarts),), exhaustive=restarts)):
            self.notifier.reset()
            restart()
            self.assert_is_wired(first, *ports[0])
            self.address(first, "eth0", "192.168.1.10")
            self.assertTrue(self.reaches(first, "192.168.1.20"))
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    def test_a_stream_of_data_arrives_whole(self) -> None:
        """Checksums that the sender leaves to hardware would be wrong after a switch in user space."""
        servers = [self.with_ports(self.port()) for _ in range(2)]
        for number, server in enumerate(servers):
            self.address(server, "eth0", f"192.168.1.{10 + number}")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))
        self.assertIn("b5cfa9d6c8febd618f91ac2843d50a1c", self.sends(servers[0], servers[1], "192.168.1.11", 4))

    def test_ports_come_and_go_while_it_runs(self) -> None:
        first, second, third = self.port(), self.port(), self.port()
        server = self.with_ports(first)
        self.attach_port(server, second)
        self.assert_is_wired(server, first, second)
        self.detach_port(server, first)
        self.assertEqual({"eth1": second["mac_address"]}, self.links(server))
        self.assertEqual([f"tap{second['id']}"[:14]], self.switch.ports())
        self.attach_port(server, third)
        self.assertEqual({"eth0": third["mac_address"], "eth1": second["mac_address"]}, self.links(server))
        self._reboot_server(server, hard=True)
        self.assertEqual({second["mac_address"], third["mac_address"]}, set(self.links(server).values()))
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("units show it; ports of a running server remain")
    def test_ports_come_and_go_while_it_is_stopped(self) -> None:
        first, second = self.port(), self.port()
        server = self.with_ports(first)
        self._stop_server(server)
        self.attach_port(server, second)
        self.detach_port(server, first)
        self._start_server(server)
        self.assert_is_wired(server, second)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_an_attachment_that_fails_leaves_nothing(self) -> None:
        first = self.port()
        server = self.with_ports(first)
        occupied = self.port()
        subprocess.run(["ip", "link", "add", f"tap{occupied['id']}"[:14], "type", "bridge"], check=True)
        self.addCleanup(subprocess.run, ["ip", "link", "del", f"tap{occupied['id']}"[:14]], check=True)
        error = self.assertRaises(OpenStackApiException, self.attach_port, server, occupied)
        self.assertEqual(500, error.response.status_code)
        self.assert_is_wired(server, first)
        self.assertEqual([f"tap{first['id']}"[:14]], self.switch.ports())

    @levels.exhaustive("units show it; ports of a running server remain")
    def test_a_paused_server_answers_nobody(self) -> None:
        ports = [self.port(), self.port()]
        servers = [self.with_ports(port) for port in ports]
        for number, server in enumerate(servers):
            self.address(server, "eth0", f"192.168.1.{10 + number}")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))
        self.api.post_server_action(servers[1]["id"], {"pause": None})
        self._wait_for_state_change(servers[1], "PAUSED")
        self.assertNotEqual(0, self.inside(servers[0], "ping", "-c", "1", "-W", "1", "192.168.1.11").status)
        self.api.post_server_action(servers[1]["id"], {"unpause": None})
        self._wait_for_state_change(servers[1], "ACTIVE")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))

    @levels.exhaustive("two servers that talk through boot, reboot and stop stay")
    def test_the_host_itself_is_no_neighbour(self) -> None:
        """A switch in user space leaves the host's IP stack listening on the same interface."""
        server = self.with_ports(self.port())
        subprocess.run(["ip", "address", "add", "192.168.1.200/32", "dev", "lo"], check=True)
        self.addCleanup(subprocess.run, ["ip", "address", "del", "192.168.1.200/32", "dev", "lo"], check=True)
        self.address(server, "eth0", "192.168.1.10")
        self.assertNotEqual(0, self.inside(server, "ping", "-c", "2", "-W", "1", "192.168.1.200").status)

    @levels.exhaustive("units show it; ports of a running server remain")
    def test_kinds_that_a_container_cannot_have(self) -> None:
        for kind, word in (("vhostuser", "virtual machine monitor"), ("macvtap", "macvtap"), ("ivs", "ovs and tap")):
            with self.subTest(kind):
                port = self.port(**{"binding:vif_type": kind})
                server = self.with_ports(port, expected="ERROR")
                self.assertIn(word, self.fault(server))
                self._delete_server(server)
        self.assert_nothing_left()

    def test_nothing_survives_a_killed_driver(self) -> None:
        """A port of a server that has no container, of which nothing is known but what is on the host."""
        port = self.port()
        server = self.with_ports(port)
        vif = self.instance(server).get_network_info()[0]
        vif["id"] = uuidutils.generate_uuid()
        vif["devname"] = f"tap{vif['id']}"[:14]
        stray = records.instance(uuid=uuidutils.generate_uuid())
        self.driver._backend.ports.attach_all(stray, RequestedResources.of(model.NetworkInfo([vif])), HostView())
        self.assertIn(vif["devname"], self.switch.ports())
        self.driver.init_host(base.HOST)
        self.assert_is_wired(server, port)
        self._delete_server(server)
        self.assert_nothing_left()


class HybridTest(PortServers):
    """Neutron's iptables filter works on a bridge between the container and the switch."""

    vif_details = SWITCHED | {"ovs_hybrid_plug": True}

    def assert_is_plugged(self, server: Any, port: dict[str, Any], host_end: str) -> None:
        bridge = f"qbr{port['id']}"[:14]
        self.assertEqual(bridge, Path(f"/sys/class/net/{host_end}/master").readlink().name)
        super().assert_is_plugged(server, port, f"qvo{port['id']}"[:14])

    def test_life_of_a_server(self) -> None:
        ports = [self.port(), self.port()]
        servers = [self.with_ports(port) for port in ports]
        for server, port in zip(servers, ports, strict=True):
            self.assert_is_wired(server, port)
        self._reboot_server(servers[0], hard=True)
        self.assert_is_wired(servers[0], ports[0])
        for number, server in enumerate(servers):
            self.address(server, "eth0", f"192.168.1.{10 + number}")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("LimitTest has a limit; units have this one")
    def test_a_flavor_limits_what_goes_out(self) -> None:
        sizes = {"quota__vif_outbound_average": "1000", "quota__vif_outbound_burst": "100"}  # kilobytes
        servers = [self.with_ports(self.port(), flavor=self.flavor(**limits)) for limits in (sizes, {})]
        for number, server in enumerate(servers):
            self.address(server, "eth0", f"192.168.1.{10 + number}")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))
        self._reboot_server(servers[0], hard=True)
        self.address(servers[0], "eth0", "192.168.1.10")
        self.assertTrue(self.reaches(servers[0], "192.168.1.11"))
        began = time.monotonic()
        self.sends(servers[0], servers[1], "192.168.1.11", 3)
        self.assertGreater(time.monotonic() - began, 2.5)
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()


class PlainTest(PortServers):
    """An agent wires the host end by itself, as Calico's does."""

    vif_details: ClassVar[dict[str, Any]] = {}

    @levels.exhaustive("two servers that talk through boot, reboot and stop stay")
    def test_the_host_end_is_there_and_goes(self) -> None:
        port = self.port(**{"binding:vif_type": "tap"})
        server = self.with_ports(port)
        self.assertEqual({"eth0": port["mac_address"]}, self.links(server))
        self.assertEqual("up", Path(f"/sys/class/net/{'tap' + port['id']:.14}/operstate").read_text().strip())
        self._delete_server(server)
        self.assert_nothing_left()


class LimitTest(PortServers):
    def test_a_flavor_limits_what_comes_in(self) -> None:
        port = self.port()
        flavor = self.flavor(quota__vif_inbound_average="1000", quota__vif_inbound_burst="32")
        self._reboot_server(self.with_ports(port, flavor=flavor), hard=True)
        shown = subprocess.run(["tc", "class", "show", "dev", f"tap{port['id']}"[:14]], check=True, text=True,
                               capture_output=True).stdout
        self.assertIn("rate 8Mbit ceil 8Mbit", shown)

    @levels.exhaustive("the other direction stays")
    def test_what_goes_out_of_a_switched_port_is_neutrons(self) -> None:
        server = self.with_ports(self.port(), flavor=self.flavor(quota__vif_outbound_average="1000"), expected="ERROR")
        self.assertIn("QoS", self.fault(server))


class EventsTest(PortServers):
    """Neutron has not wired the port yet when nova plugs it."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(vif_plugging_timeout=TIMEOUT)
        self.unwired = self.port(status="DOWN")
        self.host_end = f"tap{self.unwired['id']}"[:14]

    def booting(self) -> Any:
        """A server whose port is in the switch, and which waits for neutron."""
        server = self.with_ports(self.unwired, expected="BUILD")
        self.assertTrue(wait_until(lambda: self.host_end in self.switch.ports(), TIMEOUT))
        return server

    def tell(self, server: Any, name: str, status: str = "completed") -> None:
        event = {"name": name, "server_uuid": server["id"], "tag": self.unwired["id"], "status": status}
        self.api.create_server_external_events([event])

    def test_it_starts_when_the_port_is_wired(self) -> None:
        server = self.booting()
        self.assertEqual([], [state for state in self.lxd.engine.containers() if state.status is Status.RUNNING])
        self.tell(server, "network-vif-plugged")
        self._wait_for_state_change(server, "ACTIVE")
        self.assert_is_wired(server, self.unwired)

    @levels.exhaustive("units show it with an engine in memory")
    def test_neutron_failed(self) -> None:
        server = self.booting()
        self.tell(server, "network-vif-plugged", "failed")
        self.ends(server, "Neutron reported a failure")

    @levels.exhaustive("units show it with an engine in memory")
    def test_neutron_never_answers(self) -> None:
        self.flags(vif_plugging_timeout=1)
        self.ends(self.with_ports(self.unwired, expected="ERROR"), "within 1 s")

    @levels.exhaustive("units show it with an engine in memory")
    def test_a_server_may_start_unwired(self) -> None:
        self.flags(vif_plugging_timeout=1, vif_plugging_is_fatal=False)
        self.assert_is_wired(self.with_ports(self.unwired), self.unwired)

    @levels.exhaustive("units show it with an engine in memory")
    def test_the_port_is_deleted_meanwhile(self) -> None:
        server = self.booting()
        self.neutron.delete_port(self.unwired["id"])
        self.tell(server, "network-vif-deleted")
        self.assertTrue(wait_until(lambda: self.host_end not in self.switch.ports(), TIMEOUT))
        self.tell(server, "network-vif-plugged", "failed")
        self.ends(server, "Neutron reported a failure")

    def ends(self, server: Any, words: str) -> None:
        """The boot has failed, and nothing of it is left although nobody has deleted the server."""
        server = self._wait_for_state_change(server, "ERROR")
        self.assertIn(words, " ".join(self.reasons(server)))
        self.assertEqual([], self.switch.ports())
        self.assertEqual(self.interfaces_before, self.host_interfaces())
        self._delete_server(server)
        self.assert_nothing_left()


