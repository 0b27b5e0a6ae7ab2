# SPDX-License-Identifier: Apache-2.0
"""Kill nova-compute in the middle of a port's attachment and detachment: the next try does what the first began.

The container runs on, and the function is its own or the host's."""

from tests.functional.nova.test_killed import CONF, KilledCase, killed_at_points  # isort: skip (decides how nova runs)

from nova import objects
from nova.compute import vm_states
from nova.network import model

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import LinkLayer, Role
from containerhost.engines.contract import Status
from containerhost.privileged import Privileged
from nova_lxd_ext import backend
from nova_lxd_ext.hardware.flavor_devices import consumer
from nova_lxd_ext.instance.requested import RequestedResources
from tests import levels
from tests.unit.nova import ports, records

FEWEST_STEPS = 10


class KilledPortTest(KilledCase):
    def setUp(self) -> None:
        super().setUp()
        self.more = [device.id for device in self.before.values()
                     if device.link_layer is LinkLayer.INFINIBAND and device.role is Role.VF][1]
        self.vif = ports.direct(address=self.more, type="ib_hostdev", details={})
        self.boot()
        self.addCleanup(self.end)
        self.pid = self.lxd.engine.metrics(self.running().name).pid

    def running(self) -> objects.Instance:
        """As nova knows the server during the attachment, and after it was killed: the function is claimed."""
        server = self.server(vm_state=vm_states.ACTIVE, task_state=None)
        server.pci_devices.objects.append(
            objects.PciDevice(address=self.more, request_id=records.UUID, compute_node_id=records.NODE))
        return server

    def attach(self) -> None:
        parts = backend.build(CONF)
        parts.ports.attach(self.running(), parts.states.require(self.running()), self.vif)

    def detach(self) -> None:
        backend.build(CONF).ports.detach(self.running(), self.vif)

    def assert_holds(self, *more: str) -> None:
        """The container runs on and has its own devices and ``more``; nobody else has any."""
        name = self.running().name
        self.assertEqual((Status.RUNNING, self.pid), (self.lxd.engine.container(name).status,
                                                      self.lxd.engine.metrics(name).pid))
        self.assertEqual({self.gpu.id, self.vf.id, *more}, set(self.records()))
        self.assertEqual({consumer(self.running())}, {record.consumer for record in self.records().values()})
        self.assertEqual({None}, {record.blocked for record in self.records().values()})

    def records(self) -> dict:
        return AllocationStore(self.state / "owners").records()

    def assert_taken_back(self, step: int | None) -> None:
        self.restart(self.running())
        self.detach()
        self.assert_holds()
        self.assertEqual(self.before[self.more], self._devices()[self.more], f"the function after step {step}")

    def test_attachment(self) -> None:
        for step in killed_at_points(self.attach, FEWEST_STEPS):
            self.assert_taken_back(step)

    @levels.exhaustive("an attachment remains")
    def test_detachment(self) -> None:
        for step in killed_at_points(self.detach, FEWEST_STEPS, self.attached):
            self.assert_taken_back(step)

    def attached(self) -> None:
        self.attach()
        self.assert_holds(self.more)

    @levels.exhaustive("the next start and a detachment are shown for each of its points")
    def test_a_hard_reboot_finishes_an_attachment(self) -> None:
        """Nova counts the port as the server's."""
        wanted = RequestedResources.of(model.NetworkInfo([self.vif]))
        for _ in killed_at_points(self.attach, FEWEST_STEPS):
            self.restart(self.running())
            backend.build(CONF).power.reboot(self.running(), wanted, soft=False)
            self.pid = self.lxd.engine.metrics(self.running().name).pid
            self.assert_holds(self.more)
            self.assertLessEqual({"ib0", "ib1"}, set(Privileged().inside(self.pid).netdevs))
            self.detach()
            self.assert_holds()
        self.assertEqual(self.before[self.more], self._devices()[self.more])
