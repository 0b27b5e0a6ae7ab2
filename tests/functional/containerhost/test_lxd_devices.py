# SPDX-License-Identifier: Apache-2.0
"""Test devices in real containers, on emulated hardware: exactly those granted, safe allocation, full release."""


import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.poll import wait_until
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback
from tests.conformance.engine import frame
from tests.conformance.engine.frame import picture
from tests.fakehost.control import FakeHostControl
from tests.functional.containerhost.base import LxdTestCase

NODE_GUID, PORT_GUID = "0200:0000:0000:0001", "0200:0000:0000:0002"


class DeviceTestCase(frame.DeviceFrame, LxdTestCase):
    def setUp(self):
        super().setUp()
        self.control = FakeHostControl.from_environment()


class TestPossession(DeviceTestCase):
    def test_guids_are_set_and_reset(self):
        vf = self.vfs[0]
        self.acquired("c1", self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID))
        inside = scan().get(vf.id).rdma
        self.assertEqual((NODE_GUID, PORT_GUID), (inside.node_guid, inside.port_guid))
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.assertEqual(vf.rdma, scan().get(vf.id).rdma)
        self.assertThat(self.control.resets(), Contains(vf.id))

    def test_acquiring_again_changes_nothing(self):
        requests = self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID)
        first = self.acquired("c1", requests)
        self.assertEqual([grant.nodes for grant in first],
                         [grant.nodes for grant in self.allocator.acquire(requests, self.consumer("c1"))])
        self.assertEqual([grant.netdev for grant in first],
                         [grant.netdev for grant in self.allocator.grants(requests, self.consumer("c1"))])
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))

    def test_an_acquisition_that_fails_half_way_gives_all_back(self):
        class Failing(Privileged):
            def bind(self, address, driver):
                super().bind(address, driver)
                if failing:
                    failing.clear()
                    raise errors.HostActionFailed("the emulated kernel said no")

        failing = [True]
        allocator = DeviceAllocator(self.store, HostView, Failing(), self.engine.held)
        self.assertRaises(errors.HostActionFailed, allocator.acquire,
                          self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID), self.consumer("c1"))
        self.assertEqual({}, self.store.records())
        self.assertEqual(self.before, picture())

    def test_a_start_that_fails_returns_the_vf_under_its_own_name(self):
        requests = self.requests(0)
        grants = self.allocator.acquire(requests, self.consumer("c1"))
        self.engine.create(self.spec("c1", parts=grants, limits={"memlock": str(1 << 60)}))
        with Rollback("test") as undo:
            undo.on_error("container", self.engine.delete, "c1")
            self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.assertEqual(self.before, picture())

    def test_release_while_the_container_still_has_it_blocks(self):
        self.acquired("c1", self.requests(0)[1:])
        # The emulated /sys follows the kernel a moment later.
        self.assertTrue(wait_until(lambda: any(device.netdev_away for device in scan().devices), 10))
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.netfunction.RETURN_TIMEOUT", 0.2))
        (complaint,) = self.allocator.release(self.consumer("c1"))
        self.assertThat(complaint, Contains("appeared on the host"))
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
