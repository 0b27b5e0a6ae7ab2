# SPDX-License-Identifier: Apache-2.0
"""nova-compute killed (-9) in the middle of a live resize: its next start puts the old size back; nothing stopped."""

from tests.functional.nova.test_killed import KilledCase, killed_at_points  # isort: skip (decides how nova runs)

import dataclasses

import fixtures
from nova import context, objects
from nova.compute import task_states, vm_states

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, LinkLayer, Role
from containerhost.engines.contract import Status
from containerhost.inventory.scan import HostView
from containerhost.privileged import Privileged
from nova_lxd_ext import backend
from nova_lxd_ext.hardware.flavor_devices import consumer
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server.migration import Migrations
from tests.functional.nova.test_killed import CONF
from tests.unit.nova import records

MIB = 2**20
FEWEST_STEPS = 30


class KilledLiveResizeTest(KilledCase):
    def setUp(self) -> None:
        super().setUp()
        spare_gpu = [device.id for device in self.before.values() if device.kind is Kind.GPU][1]
        spare_vf = [device.id for device in self.before.values()
                    if device.link_layer is LinkLayer.INFINIBAND and device.role is Role.VF][1]
        self.old, self.new = [self.gpu.id, self.vf.id], [spare_gpu, spare_vf]
        self.flavor = records.flavor(id=2, vcpus=1, memory_mb=640, root_gb=5)
        self.move = objects.Migration(id=7, uuid=records.UUID, source_compute="here", dest_compute="here",
                                      status="migrating")
        self.useFixture(fixtures.MockPatchObject(objects.Migration, "get_by_id", return_value=self.move))
        self.boot()
        self.addCleanup(self.end)
        self.pid = self.lxd.engine.metrics(self.resized().name).pid

    def resized(self) -> objects.Instance:
        """The server as nova tells it to leave: of a new flavor, and with all other devices claimed."""
        server = self.server(vm_state=vm_states.ACTIVE, task_state=task_states.RESIZE_MIGRATING)
        server.new_flavor = self.flavor
        claims = zip(server.pci_requests.requests, self.new, strict=True)
        server.migration_context = objects.MigrationContext(
            migration_id=self.move.id, old_pci_devices=server.pci_devices, old_pci_requests=server.pci_requests,
            new_pci_requests=server.pci_requests, old_numa_topology=None, new_numa_topology=None,
            new_pci_devices=objects.PciDeviceList(objects=[
                objects.PciDevice(address=address, request_id=request.request_id, compute_node_id=records.NODE)
                for request, address in claims]))
        return server

    def moves(self) -> Migrations:
        """As a nova-compute that just started has them."""
        return backend.build(CONF).moves

    def resize(self) -> None:
        self.moves().migrate(context.get_admin_context(), self.resized(), self.flavor, NOTHING, 0, 0)

    def go_back(self) -> None:
        """Do what nova does at its start with a server that was migrating (ComputeManager._init_instance)."""
        self.moves().revert(context.get_admin_context(), self.resized(), self.move, NOTHING, True)

    def assert_is(self, memory_mb: int, devices: list[str], step: int | None) -> None:
        server = self.resized()
        records = AllocationStore(self.state / "owners").records()
        self.assertEqual(set(devices), set(records), f"records after step {step}")
        found = self.lxd.engine.client.instance(server.name)[0]
        self.assertEqual(str(memory_mb * MIB), found["config"]["limits.memory"], f"memory after step {step}")
        self.assertEqual((Status.RUNNING, self.pid), (self.lxd.engine.container(server.name).status,
                                                      self.lxd.engine.metrics(server.name).pid), f"after step {step}")
        now = self._devices()
        self.assertEqual([self.before[name] for name in self.before if name not in devices],
                         [now[name] for name in self.before if name not in devices], f"devices after step {step}")
        store = AllocationStore(self.state / "owners")
        allocator = DeviceAllocator(store, HostView, Privileged(), self.lxd.engine.held)
        self.lxd.engine.verify(server.name, [dataclasses.replace(grant, netdev=None, limits={})
                                             for grant in allocator.held(consumer(server))])
        self.assertIn("ib0", Privileged().inside(self.pid).netdevs)

    def test_live_resize(self) -> None:
        for step in killed_at_points(self.resize, FEWEST_STEPS):
            if step is None:
                self.assert_is(640, self.new, step)
            self.go_back()
            self.assert_is(512, self.old, step)
