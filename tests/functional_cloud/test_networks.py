# SPDX-License-Identifier: Apache-2.0
import json

from tests import levels
from tests.functional_cloud.base import CloudTest, answers, index_of
from tools.cloud import networking

METADATA = "http://169.254.169.254/openstack/latest/meta_data.json"


class NetworksTest(CloudTest):
    def gateway(self) -> str:
        """The router's address on the tenants' network."""
        subnet = self.tenant.network.get_subnet(self.network.subnet_ids[0])
        return subnet.gateway_ip

    def test_address_metadata_and_key(self) -> None:
        server = self.boot(self.security_group("icmp", "tcp"))
        told = self.until("the metadata service answers", lambda: server.inside("wget", "-q", "-O", "-", METADATA).out)
        self.assertEqual(server.id, json.loads(told)["uuid"])
        name = self.tenant.compute.get_server(server.id).name
        self.until("it has its name", lambda: server.inside("hostname").out == name)
        mtu = server.inside("cat", "/sys/class/net/eth0/mtu").out
        self.assertEqual(str(self.network.mtu), mtu)
        mac = server.inside("cat", "/sys/class/net/eth0/address").out
        self.assertEqual(server.port.mac_address, mac)
        address = server.floating_address()
        self.until("its key opens it", lambda: server.ssh(address, "true").returncode == 0)
        self.assertEqual(name, server.ssh(address, "hostname").stdout.strip())

    @levels.exhaustive("functional/nova/test_ports has the stream, the filter's interface, a stop and a start")
    def test_much_data_through_the_switch(self) -> None:
        """TCP of a size that breaks where checksums are left to a card that is not there."""
        server = self.boot(self.security_group("tcp"))
        address = server.floating_address()
        self.until("its key opens it", lambda: server.ssh(address, "true").returncode == 0)
        done = server.ssh(address, "dd if=/dev/zero bs=1k count=512 2> /dev/null")
        self.assertEqual((0, 512 * 1024), (done.returncode, len(done.stdout)))

    @levels.exhaustive("functional/nova/test_ports has the stream, the filter's interface, a stop and a start")
    def test_stopped_and_started(self) -> None:
        server = self.boot()
        self.tenant.compute.stop_server(server.id)
        self.settled(server.id, "SHUTOFF")
        self.tenant.compute.start_server(server.id)
        self.settled(server.id, "ACTIVE")
        server.wait_for_address()
        self.until("it reaches its router", lambda: server.reaches(self.gateway()))

    @levels.exhaustive("a start wires the port in the same way")
    def test_rebooted_by_force(self) -> None:
        server = self.boot()
        self.tenant.compute.reboot_server(server.id, "HARD")
        self.settled(server.id, "ACTIVE")
        server.wait_for_address()
        self.until("it reaches its router", lambda: server.reaches(self.gateway()))

    @levels.exhaustive("functional/nova/test_ports attaches ports to a running server")
    def test_port_added_and_removed_while_it_runs(self) -> None:
        server = self.boot()
        added = self.tenant.compute.create_server_interface(server.id, net_id=self.network.id)
        self.until("it has two ports", lambda: len(list(self.tenant.compute.server_interfaces(server.id))) == 2)
        mac = self.until("it has a second interface",
                         lambda: server.inside("cat", "/sys/class/net/eth1/address").out)
        self.assertEqual(added.mac_addr, mac)
        got = server.inside("udhcpc", "-f", "-q", "-n", "-i", "eth1", "-s", "/etc/udhcpc/script")
        self.assertEqual(0, got.status, got.err)
        address = added.fixed_ips[0]["ip_address"]
        self.assertIn(f"inet {address}/", server.inside("ip", "-4", "address", "show", "dev", "eth1").out)

        self.tenant.compute.delete_server_interface(added.port_id, server=server.id)
        self.until("the second interface is gone",
                   lambda: server.inside("ls", "/sys/class/net").out.split() == ["eth0", "lo"])
        self.until("the switch has forgotten it", lambda: not self.stage.cloud.switch.run(
            "--bare", "--columns=name", "find", "interface", f"external_ids:iface-id={added.port_id}"))

    @levels.exhaustive("TwoHostsTest takes a rule away on two hosts")
    def test_security_group_is_enforced(self) -> None:
        group = self.security_group()
        server = self.boot(group)
        address = server.floating_address()
        rule = self.allow(group, "icmp")
        self.until("what the group allows gets through", lambda: answers(address))
        self.tenant.network.delete_security_group_rule(rule)
        self.until("what it no longer allows does not", lambda: not answers(address))
        self.assertEqual([False] * 3, [answers(address) for _ in range(3)])
        self.assertNotEqual(0, server.ssh(address, "true").returncode)
        self.allow(group, "icmp")
        self.until("it gets through again", lambda: answers(address))

    @levels.exhaustive("functional/nova/test_ports has the stream, the filter's interface, a stop and a start")
    def test_packet_filter_is_on_the_interface_of_the_container(self) -> None:
        """A filter on any other interface filters nothing (CVE-2017-5936)."""
        server = self.boot()
        host_end = server.host_end(server.port.id)
        peer = int(server.inside("cat", "/sys/class/net/eth0/iflink").out)
        self.assertEqual(index_of(host_end), peer)
        self.assertEqual("br-int", self.stage.cloud.switch.run("port-to-br", host_end))

    @levels.exhaustive("the filter is Neutron's, of a port that functional/nova/test_ports shows to be its own")
    def test_addresses_of_others_are_refused(self) -> None:
        """Neither another sender in ARP nor another MAC gets out of a server's port."""
        server, gateway = self.boot(), self.gateway()

        def asked_as(address: str) -> int:
            return server.inside("arping", "-c", "3", "-w", "5", "-I", "eth0", "-s", address, gateway).status

        self.until("it reaches its router", lambda: server.reaches(gateway))
        stranger = networking.FIXED_RANGE.replace("0.0/20", "15.250")
        server.inside("ip", "address", "add", f"{stranger}/32", "dev", "eth0")
        self.assertEqual(0, asked_as(server.address))
        self.assertEqual(1, asked_as(stranger))

        for address, reached in (("02:00:00:00:00:01", False), (server.port.mac_address, True)):
            server.inside("ip", "link", "set", "eth0", "down")
            server.inside("ip", "link", "set", "eth0", "address", address)
            server.inside("ip", "link", "set", "eth0", "up")
            if reached:
                self.until("with its own MAC it reaches its router", lambda: server.reaches(gateway))
            else:
                self.assertEqual([False] * 3, [server.reaches(gateway) for _ in range(3)])
