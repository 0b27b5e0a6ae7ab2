# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the operations of Nova's driver."""

from pathlib import Path

import fixtures
import nova.conf
from nova import objects
from nova.compute import task_states, vm_states
from nova.compute.provider_tree import ProviderTree
from nova.network import model
from oslo_utils.fixture import uuidsentinel as uuids

from containerhost.engines.contract import PoolUsage
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from nova_lxd_ext import conf
from nova_lxd_ext.hardware.allocations import Placement
from nova_lxd_ext.hardware.deviceproviders import DeviceProviders
from nova_lxd_ext.host.resources import Resources
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.server.migration import Migrations
from tests.unit.containerhost.hosts import MEMORY
from tests.unit.costs.counting import GPU_0, GPU_1, VF_0, VF_1, CostCase, Hardware
from tests.unit.nova import fakes, ports, records

conf.register()


class NovaTest(CostCase):
    def setUp(self) -> None:
        super().setUp()
        directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.host = Host(directory / "host")
        self.world = fakes.world(directory, nova.conf.CONF, root=Hardware(self.host))
        self.engine = self.world.engine
        self.server = records.instance(("gpu", GPU_0), ("ib", VF_0))
        self.move = objects.Migration(id=7, uuid=records.UUID, source_compute="one", dest_compute="one")
        self.useFixture(fixtures.MockPatchObject(objects.Migration, "get_by_id", side_effect=lambda *_: self.move))
        self.migrations = Migrations(
            nova.conf.CONF, self.engine, self.world.states, self.world.attachments, self.world.lifecycle,
            self.world.power, self.world.resize, self.world.notice, None, self.world.ephemerals, None, None,
            lambda *_: None)

    def boot(self, wanted: RequestedResources = NOTHING) -> None:
        self.world.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, wanted, True)
        self.server.vm_state = vm_states.ACTIVE

    def resize(self) -> None:
        """To a flavor with another GPU and another function."""
        self.server.new_flavor = records.flavor(memory_mb=1024)
        requests = self.server.pci_requests
        self.server.migration_context = objects.MigrationContext(
            migration_id=7, old_pci_devices=self.server.pci_devices, old_pci_requests=requests,
            new_pci_requests=requests, new_pci_devices=objects.PciDeviceList(objects=[
                objects.PciDevice(address=address, request_id=request.request_id, compute_node_id=records.NODE)
                for address, request in zip((GPU_1, VF_1), requests.requests, strict=True)]))
        self.migrations.migrate(None, self.server, self.server.new_flavor, NOTHING, 0, 0)

    def arrive(self) -> None:
        self.server.old_flavor, self.server.flavor = self.server.flavor, self.server.new_flavor
        self.server.apply_migration_context()
        self.migrations.finish(None, self.server, NOTHING, True)

    def test_boot_and_end(self) -> None:
        with self.costing("nova: boot"):
            self.boot()
        with self.costing("nova: delete"):
            self.world.lifecycle.remove(self.server)
        self.assertEqual({}, self.world.held())

    def test_server_without_devices_scans_nothing(self) -> None:
        self.server = records.instance()
        with self.costing("nova: boot without devices"):
            self.boot()
        with self.costing("nova: delete without devices"):
            self.world.lifecycle.remove(self.server)

    def test_boot_with_port(self) -> None:
        with self.costing("nova: boot with a direct port, too"):
            self.boot(self.with_port())
        self.assertEqual({GPU_0, VF_0, VF_1}, self.world.held().keys())

    def with_port(self) -> RequestedResources:
        """A direct port, whose function nova has claimed."""
        self.server.pci_devices.objects.append(objects.PciDevice(
            address=VF_1, request_id=None, compute_node_id=records.NODE))
        return RequestedResources.of(model.NetworkInfo([ports.direct(address=VF_1, type="ib_hostdev")]))

    def test_hot_plug(self) -> None:
        self.boot()
        (vif,) = self.with_port().network_info
        with self.costing("nova: attach a direct port"):
            self.world.ports.attach(self.server, self.world.states.require(self.server), vif)
        self.assertEqual({GPU_0, VF_0, VF_1}, self.world.held().keys())
        with self.costing("nova: detach a direct port"):
            self.world.ports.detach(self.server, vif)
        self.assertEqual({GPU_0, VF_0}, self.world.held().keys())

    def test_power(self) -> None:
        self.boot()
        with self.costing("nova: pause"):
            self.world.power.freeze(self.server)
        with self.costing("nova: unpause"):
            self.world.power.unfreeze(self.server)
        with self.costing("nova: power off"):
            self.world.power.off(self.server)
        with self.costing("nova: power on"):
            self.world.power.on(self.server, NOTHING)
        with self.costing("nova: hard reboot"):
            self.world.power.reboot(self.server, NOTHING, soft=False)

    def test_live_resize(self) -> None:
        self.boot()
        with self.costing("nova: live resize"):
            self.resize()
        self.assertEqual({GPU_1, VF_1}, self.world.held().keys())
        with self.costing("nova: live resize, finished"):
            self.arrive()
        self.server.task_state = task_states.RESIZE_REVERTING
        with self.costing("nova: live resize, reverted"):
            self.assertTrue(self.migrations.revert_in_place(None, self.server, NOTHING))
        self.assertEqual({GPU_0, VF_0}, self.world.held().keys())
        self.assertNotIn("stop", self.engine.asked)

    def test_resize_while_off(self) -> None:
        self.boot()
        self.world.power.off(self.server)
        with self.costing("nova: resize while off"):
            self.resize()
        with self.costing("nova: resize while off, finished"):
            self.arrive()
        self.assertEqual({GPU_1, VF_1}, self.world.held().keys())

    def test_host(self) -> None:
        self.boot()
        host, owners = self.host, self.world.owners
        self.engine.pool = lambda name: PoolUsage(name, "dir", 1 << 40, 0)
        resources = Resources(self.engine, host, lambda: scan(host), owners, "default")
        with self.costing("nova: get_available_resource"):
            resources.available("host")
        placed = ProviderTree()
        placed.new_root("host", uuids.root)
        with self.costing("nova: update_provider_tree"):
            DeviceProviders(owners, Placement(lambda: None), lambda: scan(host)).update(placed, "host")
        with self.costing("nova: get_diagnostics"):
            self.assertEqual((), self.world.flavor_devices.faults(self.server))
