# SPDX-License-Identifier: Apache-2.0
"""Allocation on a described host without privileges: all that happens before and after a device is touched."""

import dataclasses
from unittest import mock

import fixtures

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.functions import Functions
from containerhost.allocation.refusals import Request
from containerhost.devices.grants import GrantOptions
from containerhost.inventory.scan import HostView, Inventory, scan
from tests.unit.containerhost.allocation.allocatorcase import (
    AllocatorTestCase,
    Binding,
    Limiting,
    Linked,
    Willing,
    consumer,
)
from tests.unit.containerhost.hosts import FixedView


class TestSilence(AllocatorTestCase):
    def setUp(self):
        super().setUp()
        self.vf = self.vfs[0]
        self.acquire("c1", self.gpus[0].id, self.vf.id)
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.netfunction.NetFunction.port",
                                             lambda function: {"link": "enable"}))

    def set_link_state(self, privileged, up):
        allocator = DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host)
        return allocator.repair.set_link_state(consumer("c1"), up)

    def test_only_functions_of_the_owner_lose_their_link(self):
        privileged = Linked()
        for up, state in ((False, "disable"), (True, "enable")):
            self.assertEqual((), self.set_link_state(privileged, up))
            self.assertEqual({self.vf.vf_index: state}, privileged.links)
        self.assertEqual("enable", self.store.records()[self.vf.id].restore["link"])

    def test_one_that_ended_silenced_has_its_link_when_it_is_used_again(self):
        privileged = Linked()
        self.set_link_state(privileged, False)
        DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host).acquire(
            [Request(self.vf.id)], consumer("c1"))
        self.assertEqual({self.vf.vf_index: "enable"}, privileged.links)

    def test_hardware_that_cannot_is_told(self):
        self.assertEqual(("there is no such device here",), self.set_link_state(Willing(), False))


class TestRates(AllocatorTestCase):
    described = "mixed"

    def setUp(self):
        super().setUp()
        self.vf = next(vf for vf in self.vfs if vf.parent == "0000:31:00.0")
        self.before(0)

    def before(self, rate):
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.netfunction.NetFunction.port",
                                             lambda function: {"max_tx_rate": str(rate)}))

    def limit(self, privileged, *rates):
        allocator = DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host)
        for rate in rates:
            allocator.acquire([Request(self.vf.id, GrantOptions(max_tx_rate=rate))], consumer("c1"))
        return allocator

    def test_limited_until_released(self):
        privileged = Limiting()
        allocator = self.limit(privileged, 100)
        self.assertEqual([0, 100], privileged.rates)
        self.assertEqual((), allocator.release(consumer("c1")))
        self.assertEqual([0, 100, 0], privileged.rates)

    def test_the_operators_own_limit_returns(self):
        privileged = Limiting()
        self.before(700)
        allocator = self.limit(privileged, 100, None, 200)
        self.assertEqual((), allocator.release(consumer("c1")))
        self.assertEqual([700, 100, 700, 200, 700], privileged.rates)

    def test_a_later_rate_replaces_the_former(self):
        privileged = Limiting()
        self.limit(privileged, 100, 200, None)
        self.assertEqual([0, 100, 200, 0], privileged.rates)

    def test_a_card_without_rates_is_refused_unchanged(self):
        privileged = Limiting(0, 100)
        error = self.assertRaises(errors.UnsupportedOnHost, self.limit, privileged, 100)
        self.assertIn("Operation not supported", str(error))
        self.assertEqual(([0], {}), (privileged.rates, self.store.records()))

    def test_a_rate_that_the_card_refuses_is_undone(self):
        privileged = Limiting(100)
        self.assertRaises(errors.UnsupportedOnHost, self.limit, privileged, 100)
        self.assertEqual(([0, 100, 0], {}), (privileged.rates, self.store.records()))


class TestAcquire(AllocatorTestCase):
    def test_grants_come_in_the_order_of_the_requests(self):
        ids = [self.vfs[1].id, self.gpus[0].id, self.vfs[0].id]
        grants = self.acquire("c1", *ids)
        self.assertEqual(ids, [grant.device.id for grant in grants])
        self.assertEqual(set(ids), set(self.store.held_by(consumer("c1"))))

    def test_refused_before_anything_changes(self):
        gpu, vf = self.gpus[0].id, self.vfs[0].id
        self.acquire("other", self.gpus[1].id)
        before = self.store.records()
        named = GrantOptions(netdev_name="ib0")
        for wanted, requests in (
            (errors.DeviceNotFound, [Request(gpu), Request("0000:00:00.0")]),
            (errors.DeviceNotFound, [Request("../../etc/passwd")]),
            (errors.DeviceHeld, [Request(gpu), Request(self.gpus[1].id)]),
            # The host itself uses a physical function whose VFs are enabled.
            (errors.DeviceHeld, [Request(self.vfs[0].parent)]),
            (errors.SpecError, [Request(gpu), Request(gpu)]),
            (errors.SpecError, [Request(vf, named), Request(self.vfs[1].id, named)]),
            (errors.SpecError, [Request(vf, GrantOptions(netdev_name="no good"))]),
        ):
            self.assertRaises(wanted, self.allocator.acquire, requests, consumer("c1"))
            self.assertEqual(before, self.store.records())

    def test_what_others_containers_have_is_refused_unless_it_is_ones_own(self):
        self.foreign = {self.gpus[0].id: "c1"}
        error = self.assertRaises(errors.DeviceHeld, self.acquire, "c2", self.gpus[0].id)
        self.assertIn("c1", str(error))
        self.assertEqual(1, len(self.acquire("c1", self.gpus[0].id)))

    def test_a_whole_function_that_others_use_takes_its_vfs_with_it(self):
        self.foreign = {self.vfs[0].parent: "lab/router"}
        error = self.assertRaises(errors.DeviceHeld, self.acquire, "c1", self.vfs[0].id)
        self.assertIn("lab/router", str(error))

    def test_what_was_changed_is_read_again(self):
        gpu, vf = self.gpus[0].id, self.vfs[0].id
        read = []
        refresh = HostView.refresh

        def noting(view, device_ids):
            read.append(list(device_ids))
            return refresh(view, read[-1])

        with (mock.patch.object(HostView, "refresh", noting),
              mock.patch.object(Functions, "prepare", lambda settings, device, *more: device.id == vf)):
            self.acquire("c1", gpu, vf)
            self.assertEqual([[gpu, vf], [vf]], read)
            del read[:]
            self.allocator.release(consumer("c1"))
            self.assertEqual({gpu, vf}, set(read[0]))

    def test_nothing_is_asked_for(self):
        self.assertEqual((), self.acquire("c1"))

    def test_unreadable_record_keeps_no_other_consumer_from_release(self):
        self.acquire("c1", self.gpus[0].id)
        self.acquire("c2", self.gpus[1].id)
        (self.store._root / f"{self.gpus[0].id}.json").write_text("")
        self.assertEqual((), self.allocator.release(consumer("c3")))
        self.assertEqual((), self.allocator.release(consumer("c2")))
        self.assertEqual([], list(self.store._root.glob(f"{self.gpus[1].id}.json")))
        self.assertRaises(errors.AllocationsUnreadable, self.allocator.release, consumer("c1"))


class TestGrants(AllocatorTestCase):
    def test_only_for_what_is_held(self):
        self.acquire("c1", self.gpus[0].id)
        (grant,) = self.allocator.grants([Request(self.gpus[0].id)], consumer("c1"))
        self.assertEqual(self.gpus[0], grant.device)
        self.assertRaises(errors.DeviceHeld, self.allocator.grants, [Request(self.gpus[1].id)], consumer("c1"))
        self.assertRaises(errors.DeviceHeld, self.allocator.grants, [Request(self.gpus[0].id)], consumer("c2"))


class TestGiveBack(AllocatorTestCase):
    def test_may_be_repeated(self):
        self.acquire("c1", self.gpus[0].id)
        for _ in range(2):
            self.assertEqual((), self.allocator.release(consumer("c1")))
            self.assertEqual({}, self.store.records())

    def test_what_is_not_clean_stays_blocked_with_the_reason(self):
        gpu, vf = self.gpus[0].id, self.vfs[0].id
        self.acquire("c1", gpu, vf)
        (complaint,) = self.allocator.release(consumer("c1"))
        self.assertIn(vf, complaint)
        self.assertEqual({vf: complaint}, {name: record.blocked for name, record in self.store.records().items()})
        self.assertRaises(errors.DeviceHeld, self.acquire, "c2", vf)
        self.assertEqual(1, len(self.acquire("c2", gpu)))

    def test_reconcile_minds_driver_and_engine(self):
        self.acquire("c1", self.gpus[0].id)
        self.acquire("c2", self.gpus[1].id)
        for driver, engine, alive, left in (
            ("other", "lxd", (), 2), ("test", "docker", (), 2), ("test", "lxd", ("c1", "c2"), 2),
            ("test", "lxd", ("c2",), 1), ("test", "lxd", (), 0),
        ):
            self.assertEqual((), self.allocator.reconciler.reconcile(driver, engine, alive))
            self.assertEqual(left, len(self.store.records()))


class TestBrokenHost(AllocatorTestCase):
    described = "broken"

    def test_no_unhealthy_device_is_handed_out_and_each_says_why(self):
        sick = [device for device in scan(self.host).devices if not device.healthy]
        self.assertNotEqual([], sick)
        for device in sick:
            error = self.assertRaises(errors.DeviceUnhealthy, self.acquire, "c1", device.id)
            self.assertIn(device.health[0], str(error))
        self.assertEqual({}, self.store.records())


class MendTest(AllocatorTestCase):
    def test_a_function_that_was_unbound_to_be_cleaned_is_bound_again(self):
        vf, other = self.vfs[:2]
        vfs = {device.id: device for device in (vf, other)}
        self.store.claim([vf, other], consumer("c"), lambda device: ())
        self.store.prepare(vf.id, consumer("c"), {"driver": vf.driver})
        self.store.attach([vf.id, other.id], consumer("c"))
        devices = [dataclasses.replace(device, driver=None) if device.id == vf.id else device
                   for device in scan(self.host).devices]
        for repair in (lambda allocator: allocator.repair.rebind_driver(consumer("c")),
                       lambda allocator: self.assertEqual((), allocator.reconciler.reconcile("test", "lxd", ["c"]))):
            binding, view = Binding(), FixedView(Inventory(tuple(devices)))
            repair(DeviceAllocator(self.store, lambda view=view: view, binding, lambda wanted: {}, self.host))
            self.assertEqual({vfs[vf.id].address: vf.driver}, binding.bound)
