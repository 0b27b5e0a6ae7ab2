# SPDX-License-Identifier: Apache-2.0
import tempfile
from pathlib import Path

import testtools

from tools.cloud import configs, guest, ini, netconfigs, services, volumes
from tools.cloud.database import MariaDb
from tools.cloud.layout import FIRST, PLAIN, SUFFIXES, Layout, Passwords, Ports, Shape
from tools.cloud.messages import RabbitMq
from tools.cloud.secondhost import SERVICES, TUNNELS


class CloudFilesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.layout = Layout(Path(directory.name))

    def parts(self, shape: Shape, *nodes: configs.Node) -> configs.Parts:
        ports, passwords = Ports(), Passwords(self.layout.state / "passwords.json")
        only = configs.Node(FIRST, Path("/engine/unix.socket"), self.layout.run / "owners")
        return configs.Parts(
            layout=self.layout, ports=ports, passwords=passwords, database=MariaDb(self.layout, passwords),
            messages=RabbitMq(self.layout, ports, passwords), nodes=nodes or (only,), pool="demo", memlock="unlimited",
            shape=shape)

    def compute(self, shape: Shape) -> str:
        return ini.text_of(services.contents(self.parts(shape))[services.compute_file(self.layout)])


class NetworksTest(CloudFilesTest):
    def test_a_cloud_without_networks_needs_no_port_of_a_switch(self) -> None:
        self.assertNotIn("ovsdb", Ports().used(PLAIN))
        self.assertEqual({"metadata", "ovsdb", "openflow"},
                         set(Ports().used(Shape(networks=True))) - set(Ports().used(PLAIN)))

    def test_neutron_tells_nova_what_is_plugged(self) -> None:
        with_agents, without = netconfigs.neutron(self.parts(Shape(networks=True))), configs.network_server(
            self.parts(PLAIN))
        self.assertEqual("true", with_agents["DEFAULT"]["notify_nova_on_port_status_changes"])
        self.assertEqual("nova", with_agents["nova"]["username"])
        self.assertEqual("false", without["DEFAULT"]["notify_nova_on_port_status_changes"])
        self.assertNotIn("nova", without)

    def test_agents_and_server_use_the_one_switch(self) -> None:
        parts = self.parts(Shape(networks=True))
        switch = netconfigs.neutron(parts)["ovs"]
        self.assertEqual("tcp:127.0.0.1:6640", switch["ovsdb_connection"])
        self.assertEqual(switch, {name: netconfigs.agents(parts)["neutron-openvswitch-agent"]["ovs"][name]
                                  for name in switch})

    def test_the_metadata_agent_and_nova_share_a_secret(self) -> None:
        shape = Shape(networks=True)
        agent = netconfigs.agents(self.parts(shape))["neutron-metadata-agent"]
        secret = agent["DEFAULT"]["metadata_proxy_shared_secret"]
        self.assertIn(f"metadata_proxy_shared_secret = {secret}\n", self.compute(shape))

    def test_nova_compute_of_a_cloud_without_networks_is_as_it_was(self) -> None:
        self.assertNotIn("metadata_proxy_shared_secret", self.compute(PLAIN))
        self.assertNotIn("vif_plug_ovs_privileged", self.compute(PLAIN))

    def test_every_agent_has_its_configuration(self) -> None:
        agents = netconfigs.agents(self.parts(Shape(networks=True)))
        self.assertEqual({netconfigs.SWITCH_AGENT, *netconfigs.OTHER_AGENTS}, set(agents))
        self.assertIn("firewall_driver = openvswitch", ini.text_of(agents["neutron-openvswitch-agent"]))


class SecondHostTest(CloudFilesTest):
    def setUp(self) -> None:
        super().setUp()
        nodes = [configs.Node(suffix, Path(f"/engine{suffix}"), Path(f"/owners{suffix}"), (), *addresses)
                 for suffix, *addresses in zip(SUFFIXES, SERVICES, TUNNELS, strict=True)]
        self.found = self.parts(Shape(networks=True, second_host=True), *nodes)

    def test_two_hosts_share_nothing_but_the_cloud(self) -> None:
        computes = [services.contents(self.found)[services.compute_file(self.layout, suffix)] for suffix in SUFFIXES]
        for section, option in (("DEFAULT", "host"), ("DEFAULT", "state_path"), ("lxd", "endpoint"),
                                ("lxd", "owners_dir"), ("lxd", "migration_address"),
                                ("vif_plug_ovs_privileged", "helper_command")):
            first, second = (compute[section][option] for compute in computes)
            self.assertNotEqual(first, second, option)
        self.assertEqual(*(compute["placement"] for compute in computes))

    def test_each_host_has_a_switch_agent_and_the_first_has_the_way_out(self) -> None:
        first, second = (netconfigs.agents(self.found)[netconfigs.SWITCH_AGENT + suffix] for suffix in SUFFIXES)
        self.assertEqual(["172.31.1.1", "172.31.1.2"], [agent["ovs"]["local_ip"] for agent in (first, second)])
        self.assertNotEqual(first["DEFAULT"]["host"], second["DEFAULT"]["host"])
        self.assertEqual([True, False], ["bridge_mappings" in agent["ovs"] for agent in (first, second)])

    def test_a_cloud_of_one_host_lets_no_server_leave(self) -> None:
        self.assertNotIn("migration_address", self.compute(PLAIN))

    def test_services_are_where_both_hosts_find_them(self) -> None:
        self.assertEqual("http://172.31.0.1:5000", Ports(SERVICES[0]).url("keystone"))
        self.assertEqual({"engine"}, set(Ports().used(Shape(second_host=True))) - set(Ports().used(PLAIN)))


class VolumesTest(CloudFilesTest):
    def test_cinder_and_nova_know_each_other_in_a_cloud_with_volumes_only(self) -> None:
        shape = Shape(volumes=True)
        self.assertIn("[cinder]\n", self.compute(shape))
        self.assertIn("[privsep_osbrick]\n", self.compute(shape))
        self.assertNotIn("[cinder]\n", self.compute(PLAIN))
        self.assertEqual("cinder", volumes.cinder(self.parts(shape))["nova"]["username"])

    def test_the_backend_that_is_enabled_is_described(self) -> None:
        found = volumes.cinder(self.parts(Shape(volumes=True)))
        self.assertIn(found["DEFAULT"]["enabled_backends"], found)
        self.assertIn("cinder", Ports().used(Shape(volumes=True)))
        self.assertNotIn("cinder", Ports().used(PLAIN))


class GuestTest(testtools.TestCase):
    def test_scripts_run_and_secrets_are_roots(self) -> None:
        for name, mode in (("etc/shadow", 0o600), ("etc/inittab", 0o644), ("etc/init.d/rcS", 0o755),
                           ("usr/bin/sudo", 0o755), ("etc/udhcpc/script", 0o755)):
            self.assertTrue((guest.FILES / name).is_file(), name)
            self.assertEqual(mode, guest.mode_of(Path(name)), name)

    def test_nobody_knows_a_password(self) -> None:
        accounts = (guest.FILES / "etc/shadow").read_text().splitlines()
        self.assertEqual({"*"}, {account.split(":")[1] for account in accounts})
