# SPDX-License-Identifier: Apache-2.0
"""A server with all that a server can have goes to another host: everything is there, and nothing is left behind."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

import copy
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from nova.tests.fixtures import neutron

from containerhost.engines.contract import Status
from containerhost.inventory.scan import scan
from tests import levels
from tests.functional import lxd
from tests.functional.nova import base
from tests.functional.nova.test_ports import PortServers
from tests.functional.nova.test_volumes import VolumeServers
from tests.functional.nova.twohosts import FIRST, SECOND

OTHER = {FIRST: SECOND, SECOND: FIRST}
FABRIC = neutron.NeutronFixture.network_2 | {
    "id": "2b70879f-fd00-411e-8ea9-143e7820e61d", "name": "fabric", "provider:physical_network": "fabric"}


class LoadedServers(twohosts.TwoHosts, PortServers, VolumeServers):
    """One server with a port, a volume, a config drive, an ephemeral disk, a GPU and an InfiniBand function."""

    def setUp(self) -> None:
        super().setUp()
        self.one_port = self.port()
        self.volume, _ = self.cinder.volume()
        self.the_server = self.with_ports(self.one_port, flavor=self.with_everything(), host=FIRST, config_drive=True)
        self.attach(self.the_server, self.volume)
        (self.node,) = self.nodes(self.the_server)
        self.write(self.the_server, "kept", self.node)
        for file in ("/root/file", "/ephemeral0/file"):
            self.shell(f"echo mine > {file}; chown 1000:100 {file}")

    def with_everything(self, memory_mb: int = 128) -> str:
        specs = {"pci_passthrough:alias": f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1"}
        return self._create_flavor(vcpu=1, memory_mb=memory_mb, disk=1, ephemeral=1, extra_spec=specs)

    def inside(self, server: Mapping[str, Any], *command: str) -> base.Inside:
        return self.run_on(self.host_of(server), server, *command)

    def shell(self, script: str) -> str:
        done = self.inside(self.the_server, "sh", "-c", script)
        self.assertEqual(0, done.status, done.output)
        return done.output

    def assert_is_whole_on(self, host: str) -> None:
        """It runs there with all it has, and the other host has at most a stopped container and its disks."""
        self.assertEqual(host, self.host_of(self.the_server))
        self.assertEqual(Status.RUNNING, self.on(host)[self.the_server["id"]].status)
        files = "/root/file /ephemeral0/file"
        self.assertEqual("mine\nmine\n1000:100\n1000:100\n", self.shell(f"cat {files}; stat -c %u:%g {files}"))
        self.assertEqual([1 << 30], [found.size for found in self.disks_on(host)])
        self.assertEqual([self.node], self.nodes(self.the_server))
        self.assertEqual("kept", self.read(self.the_server, 4, self.node))
        drive = json.loads(self.shell("cat /config-drive/openstack/latest/meta_data.json"))
        self.assertEqual(self.the_server["id"], drive["uuid"])
        self.shell("ls /dev/nvidia[0-9]* /dev/infiniband/uverbs* /sys/class/net/ib0/address")
        self.shell("ip link set ib0 down && ip link set eth0 up")
        self.assert_is_plugged(self.the_server, self.one_port, f"tap{self.one_port['id']}"[:14])
        self.assertEqual((2, 0), (len(self.held_on(host)), len(self.held_on(OTHER[host]))))
        self.assertEqual([host], [record.parts[-3].removeprefix("lxd-") for record in self.state.rglob("volumes/*")])

    def assert_nothing_on(self, host: str) -> None:
        self.assertEqual(({}, (), [], set()),
                         (self.on(host), self.disks_on(host), self.directories_on(host), self.held_on(host)))

    def assert_goes_without_a_trace(self) -> None:
        self._delete_server(self.the_server)
        self.assert_both_empty()
        self.assert_free(self.volume)


class LoadedTest(LoadedServers):
    def test_moved_and_confirmed(self) -> None:
        self._migrate_server(self.the_server)
        self.assert_is_whole_on(SECOND)
        self.assertEqual(Status.STOPPED, self.on(FIRST)[self.the_server["id"]].status)
        self._confirm_resize(self.the_server)
        self.assert_is_whole_on(SECOND)
        self.assert_nothing_on(FIRST)
        self._reboot_server(self.the_server, hard=True)
        self.assert_is_whole_on(SECOND)
        self.assert_goes_without_a_trace()

    @levels.exhaustive("MoveTest and LoadedTest together show it")
    def test_moved_to_another_size_and_back(self) -> None:
        self.resize(self.the_server, self.with_everything(memory_mb=160))
        self.assert_is_whole_on(SECOND)
        self.shell("echo lost > /ephemeral0/file")
        self.revert(self.the_server)
        self.assert_is_whole_on(FIRST)
        self.assert_nothing_on(SECOND)
        self.assert_goes_without_a_trace()


class LiveTest(LoadedServers):
    options: ClassVar[Mapping[tuple[str | None, str], Any]] = {
        **twohosts.TwoHosts.options, ("lxd", "live_migration"): "restart"}
    pci_tags: ClassVar[Mapping[str, str]] = {"live_migratable": "yes"}

    def test_migrated_live_by_a_restart(self) -> None:
        self._live_migrate(self.the_server)
        self.assert_is_whole_on(SECOND)
        self.assert_nothing_on(FIRST)
        self._reboot_server(self.the_server, hard=True)
        self.assert_is_whole_on(SECOND)
        self.assert_goes_without_a_trace()


class LivePortTest(twohosts.TwoHosts):
    """NUMA cells, a GPU and a port with a network function of its own: nova claims all of them on the new host."""

    options: ClassVar[Mapping[tuple[str | None, str], Any]] = LiveTest.options
    pci_tags: ClassVar[Mapping[str, str]] = LiveTest.pci_tags
    vf_tags: ClassVar[Mapping[str, str]] = {"physical_network": FABRIC["provider:physical_network"]}

    def setUp(self) -> None:
        super().setUp()
        self.neutron._networks[FABRIC["id"]] = FABRIC
        self.neutron._subnets[neutron.NeutronFixture.subnet_2["id"]] = neutron.NeutronFixture.subnet_2
        self.port = copy.deepcopy(neutron.NeutronFixture.sriov_port) | {
            "network_id": FABRIC["id"], "mac_address": "52:54:00:1e:59:a1", "binding:vif_type": "ib_hostdev"}
        self.neutron._ports[self.port["id"]] = self.port

    def test_migrated_live_and_back(self) -> None:
        flavor = self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1", hw__numa_nodes="1")
        server = self.with_ports(self.port, flavor=flavor, host=FIRST)
        self.assert_has_all_on(FIRST, server)
        self._live_migrate(server)
        self.assert_has_all_on(SECOND, server)
        self._live_migrate(server)
        self.assert_has_all_on(FIRST, server)
        self._delete_server(server)
        self.assert_both_empty()

    def assert_has_all_on(self, host: str, server: Mapping[str, Any]) -> None:
        self.assertEqual(host, self.host_of(server))
        gpu, functions = twohosts.HALVES[host]
        held = sorted(self.held_on(host), key=lambda device: device != gpu)
        self.assertEqual((gpu, 2, set()), (held[0], len(held), self.held_on(OTHER[host])))
        self.assertTrue(held[1].startswith(functions.removesuffix("*")), held)
        function = scan().get(held[1])
        self.assertEqual("5254:0000:001e:59a1", function.rdma.port_guid)
        self.assertEqual(function.address, self.port["binding:profile"]["pci_slot"])
        found = self.run_on(host, server, "sh", "-c",
                            "ls /dev/nvidia[0-9]* /dev/infiniband/uverbs* /sys/class/net/ib0/address")
        self.assertEqual(0, found.status, found.output)
        (cell,) = self.instance(server).numa_topology.cells
        self.assertEqual(scan().get(gpu).numa_node, cell.id)


@levels.exhaustive("CopiedWhileItRunsTest has one with less")
class LoadedWhileItRunsTest(LoadedServers):
    """It is copied before it is stopped; what else it has, afterwards."""

    daemon, second_daemon = lxd.Incus, lxd.SecondIncus

    def test_moved_to_another_size_and_back(self) -> None:
        self.resize(self.the_server, self.with_everything(memory_mb=160))
        self.assert_is_whole_on(SECOND)
        self.revert(self.the_server)
        self.assert_is_whole_on(FIRST)
        self.assert_nothing_on(SECOND)
        self.assert_goes_without_a_trace()
