# SPDX-License-Identifier: Apache-2.0
"""Allocation on a described host without privileges: all that happens before and after a device is touched."""

import atexit
import dataclasses
import functools
import os
import pathlib
import shutil
import tempfile
from unittest import mock

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.cleaning import require_well
from containerhost.allocation.functions import Functions
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import GrantOptions
from containerhost.devices.health import kernellog
from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import HostView, Inventory, scan
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.fakehost import description, tree
from tests.unit.containerhost.devices.health.test_kernellog import record, xid
from tests.unit.containerhost.hosts import Broken, FixedView


class NoHardware(Privileged):
    """The described devices are not on this machine; were their likes, no test may touch them."""

    def _refuse(self, *arguments):
        raise errors.HostActionFailed("there is no such device here")

    set_vf_link = set_vf_guids = rename_netdev = link_down_and_flush = unbind = bind = reset = reset_gpu = _refuse
    mark_reset = _refuse

    def users(self, nodes):
        return ()

    def thaw_left(self):
        pass


class Willing(NoHardware):
    def reset_gpu(self, vendor, address, others=()):
        return True


class Marking(Willing):
    """Marks resets in the log of the described host.

    :ivar able: whether GPUs can be reset
    :ivar has_client: whether the driver refuses that, because a client has the GPU
    :ivar using: processes in containers that are seen to have it open
    """

    def __init__(self, tree):
        self.log = tree.path("/dev/kmsg")
        self.able = True
        self.has_client = False
        self.using = ()

    def reset_gpu(self, vendor, address, others=()):
        if self.has_client:
            raise errors.ResetRefused("GPU is in use by another client")
        return self.able

    def users(self, nodes):
        return self.using

    def mark_reset(self, address, counters):
        with open(self.log, "ab") as log:
            log.write(record(kernellog.mark(address, counters), facility=1))


class Linked(Willing):
    """:ivar links: what was set for each VF, by its number"""

    def __init__(self):
        self.links = {}

    def set_vf_link(self, netdev, index, up):
        self.links[index] = up


class Limiting(Willing):
    """:ivar rates: what was set, in order
    :ivar refused: the rates that the card refuses
    """

    def __init__(self, *refused):
        self.rates = []
        self.refused = refused

    def set_vf_rate(self, netdev, index, rate):
        self.rates.append(rate)
        if rate in self.refused:
            raise errors.HostActionFailed("Operation not supported")

    def unbind(self, *arguments):
        pass

    bind = reset = link_down_and_flush = unbind


class Binding(Willing):
    """:ivar bound: what was bound, by address; each function's interface is there at once"""

    def __init__(self):
        self.bound = {}

    def bind(self, address, driver):
        self.bound[address] = driver


@functools.cache
def host(name):
    """A described host; no test changes its files."""
    directory = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    tree.write(description.load(name), directory)
    return Host(directory)


def consumer(name):
    return Consumer("test", "lxd", name, f"uuid-of-{name}")


class AllocatorTestCase(testtools.TestCase):
    described = "small"

    def setUp(self):
        super().setUp()
        self.host = host(self.described)
        self.store = AllocationStore(pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "owners")
        self.foreign = {}
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.host), Willing(),
                                     lambda devices: self.foreign, self.host)
        self.gpus = [device for device in scan(self.host).devices if device.kind is Kind.GPU]
        self.vfs = [device for device in scan(self.host).devices if device.role is Role.VF]

    def acquire(self, name, *ids):
        return self.allocator.acquire([Request(device_id) for device_id in ids], consumer(name))


class TestSilence(AllocatorTestCase):
    def setUp(self):
        super().setUp()
        self.vf = self.vfs[0]
        self.acquire("c1", self.gpus[0].id, self.vf.id)

    def set_link_state(self, privileged, up):
        allocator = DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host)
        return allocator.repair.set_link_state(consumer("c1"), up)

    def test_only_functions_of_the_owner_lose_their_link(self):
        privileged = Linked()
        for up in (False, True):
            self.assertEqual((), self.set_link_state(privileged, up))
            self.assertEqual({self.vf.vf_index: up}, privileged.links)
        self.assertEqual("auto", self.store.records()[self.vf.id].restore["link"])

    def test_one_that_ended_silenced_has_its_link_when_it_is_used_again(self):
        privileged = Linked()
        self.set_link_state(privileged, False)
        DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host).acquire(
            [Request(self.vf.id)], consumer("c1"))
        self.assertEqual({self.vf.vf_index: True}, privileged.links)

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

    def test_records_that_cannot_be_read_stop_everything(self):
        self.acquire("c1", self.gpus[0].id)
        (file,) = self.store._root.glob("*.json")
        file.write_text("{")
        self.assertRaises(errors.AllocationsUnreadable, self.acquire, "c2", self.gpus[1].id)
        self.assertRaises(errors.AllocationsUnreadable, self.allocator.release, consumer("c1"))

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


class TestSickDevices(testtools.TestCase):
    """A GPU with a fatal Xid, and what resetting it changes."""

    def setUp(self):
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        self.store = AllocationStore(self.tree.root / "owners")
        self.root = Marking(self.tree)
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.root, host=self.tree.host)
        self.gpu, self.other = (device.id for device in scan(self.tree.host).devices if device.kind is Kind.GPU)
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.cleaning.RESET_TIMEOUT", 0.0))

    def say(self, *records):
        with open(self.root.log, "ab") as log:
            log.write(b"".join(records))

    def healthy(self):
        return scan(self.tree.host).get(self.gpu).healthy

    def blocked(self):
        return {name: record.blocked for name, record in self.store.records().items()}

    def test_a_free_one_is_refused_and_cleaned_for_the_operator(self):
        self.say(xid(48))
        self.assertRaises(errors.DeviceUnhealthy, self.allocator.acquire, [Request(self.gpu)], consumer("c1"))
        self.assertEqual(("it was reset",), self.allocator.repair.clean(self.gpu))
        self.assertEqual((True, {}), (self.healthy(), self.store.records()))
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))

    def test_truth_of_a_device_is_read_below_its_lock(self):
        """Whatever the operation's view, which may be minutes old, says."""
        view = self.allocator.view()
        self.assertTrue(view.inventory.get(self.gpu).healthy)
        self.say(xid(48))
        self.assertRaises(errors.DeviceUnhealthy, self.allocator.acquire, [Request(self.gpu)], consumer("c1"), view)
        self.assertFalse(view.inventory.get(self.gpu).healthy)
        view = self.allocator.view()
        self.assertFalse(view.inventory.get(self.gpu).healthy)
        self.allocator.repair.clean(self.gpu)
        self.allocator.acquire([Request(self.gpu)], consumer("c1"), view)
        self.tree.path(f"/sys/bus/pci/devices/{self.other}").unlink()
        self.assertRaises(errors.DeviceNotFound, self.allocator.acquire, [Request(self.other)], consumer("c1"), view)
        self.assertEqual({self.gpu: None}, self.blocked())

    def test_sick_gpu_that_a_container_can_do_without_stays_allocated(self):
        requests = [Request(self.gpu), Request(self.other)]
        self.allocator.acquire(requests, consumer("c1"))
        self.assertEqual(frozenset(), self.allocator.detached(consumer("c1")))
        self.say(xid(48))
        self.assertEqual((requests[1],), self.allocator.leave_out(requests, consumer("c1"), 1))
        self.assertEqual({self.gpu}, self.allocator.detached(consumer("c1")))
        self.assertEqual((requests[1],), self.allocator.present(requests, consumer("c1")))
        self.assertEqual({self.gpu, self.other}, self.allocator.held_by(consumer("c1")))

    def test_sickness_is_told_before_the_holder(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        for wanted in (errors.DeviceHeld, errors.DeviceUnhealthy):
            self.assertRaises(wanted, self.allocator.acquire, [Request(self.gpu)], consumer("c2"))
            self.say(xid(48))
        self.assertRaises(errors.SpecError, self.allocator.acquire, [Request(self.other)] * 2, consumer("c1"))

    def test_device_that_was_reset_is_well_in_the_same_operation(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.say(xid(48))
        view = self.allocator.view()
        self.assertEqual((), self.allocator.repair.reset_devices(consumer("c1"), view))
        self.assertTrue(view.inventory.get(self.gpu).healthy)
        self.assertEqual((), self.allocator.release(consumer("c1"), view))
        self.assertEqual({}, self.store.records())

    def test_its_holder_is_told(self):
        self.allocator.acquire([Request(self.gpu), Request(self.other)], consumer("c1"))
        self.assertEqual((), self.allocator.faults(consumer("c1")))
        self.say(xid(48))
        (fault,) = self.allocator.faults(consumer("c1"))
        self.assertTrue(fault.startswith(f"{self.gpu}: Xid 48"), fault)
        self.assertEqual((), self.allocator.faults(consumer("c2")))
        self.tree.path(f"/sys/bus/pci/devices/{self.other}").unlink()
        self.assertIn(f"{self.other}: this host has no such device any more", self.allocator.faults(consumer("c1")))

    def test_a_held_one_is_reset_and_stays_its_owners(self):
        self.allocator.acquire([Request(self.gpu), Request(self.other)], consumer("c1"))
        self.say(xid(48))
        self.assertEqual((), self.allocator.repair.reset_devices(consumer("c1")))
        self.assertEqual({self.gpu: None, self.other: None}, self.blocked())
        self.assertTrue(self.healthy())
        log = self.root.log.read_bytes()
        self.assertEqual((), self.allocator.repair.reset_devices(consumer("c1")))
        self.assertEqual(log, self.root.log.read_bytes())  # what is well is left alone
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.assertEqual(log, self.root.log.read_bytes())

    def test_one_that_comes_back_sick_is_reset(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.say(xid(79), xid(31))
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.assertEqual((True, {}), (self.healthy(), self.store.records()))

    def test_one_that_cannot_be_reset_is_blocked_until_it_can(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.say(xid(48))
        self.root.able = False
        (complaint,) = self.allocator.release(consumer("c1"))
        self.assertIn("came back, but is not healthy: Xid 48", complaint)
        error = self.assertRaises(errors.DeviceUnhealthy, self.allocator.repair.clean, self.gpu)
        self.assertEqual({self.gpu: str(error)}, self.blocked())
        self.root.able = True
        self.allocator.repair.clean(self.gpu)
        self.assertEqual({}, self.blocked())

    def test_a_pulled_cable_keeps_a_function_from_others_and_not_from_its_owner(self):
        vf = next(device for device in scan(self.tree.host).devices if device.role is Role.VF)
        self.allocator.acquire([Request(vf.id)], consumer("c1"))
        state = self.tree.function(vf.parent) / "infiniband/mlx5_0/ports/1/phys_state"
        state.unlink()
        state.write_text("2: Polling\n")
        beside = next(device for device in scan(self.tree.host).devices
                      if device.parent == vf.parent and device.id != vf.id)
        self.assertRaises(errors.DeviceUnhealthy, self.allocator.acquire, [Request(beside.id)], consumer("c2"))
        self.assertIn("no link to its switch", self.allocator.faults(consumer("c1"))[0])
        self.allocator.acquire([Request(vf.id)], consumer("c1"))
        require_well(vf.id, self.allocator.view())

    def test_gpu_taken_from_a_running_container_is_free_once_its_driver_has_revoked_it(self):
        """Whichever way a tenant keeps it, no search decides: the driver knows its clients."""
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        for self.root.has_client, self.root.able, self.root.using, found in (
                (True, True, ("process 7 (python3)",), "(process 7 (python3)): when that has ended"),
                (True, True, (), "in use by another client"), (False, False, (), "its driver cannot revoke")):
            for act in (lambda: self.allocator.release_device(self.gpu, consumer("c1"), os.getpid()),
                        lambda: (str(self.assertRaises(errors.ScrubFailed, self.allocator.repair.clean, self.gpu)),)):
                (complaint,) = act()
                self.assertIn("may still be in use by lxd/c1", complaint)
                self.assertIn(found, complaint)
                self.assertEqual({self.gpu: complaint}, self.blocked())
        self.root.able = True
        self.assertEqual((), self.allocator.release_device(self.gpu, consumer("c1"), os.getpid()))
        self.assertEqual({}, self.store.records())

    def test_gpu_without_a_reset_is_free_once_its_containers_have_ended_and_none_is_seen_to_use_it(self):
        self.root.able = False
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.root.using = ("process 7 (python3)",)
        with mock.patch.object(self.root, "users", wraps=self.root.users) as search:
            (complaint,) = self.allocator.release(consumer("c1"))
        self.assertIn("still in use by process 7 (python3)", complaint)
        search.assert_called_once()
        self.root.using = ()
        self.assertEqual(((), {}), (self.allocator.release(consumer("c1")), self.store.records()))

    def test_container_that_may_still_use_a_gpu_may_have_it_back_and_no_other(self):
        self.kept(self.container())
        self.assertEqual((), self.allocator.held(consumer("c1")))  # its container is not told that it has it
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c2"))
        (grant,) = self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.assertEqual((self.gpu, State.ATTACHED, {self.gpu: None}),
                         (grant.device.id, self.store.records()[self.gpu].state, self.blocked()))
        (grant,) = self.allocator.held(consumer("c1"))
        self.root.able = True
        self.assertEqual((), self.allocator.release_device(self.gpu, consumer("c1"), os.getpid()))
        self.assertEqual({}, self.store.records())

    def test_container_that_has_ended_does_not_get_a_blocked_gpu_back(self):
        """What keeps it from being cleaned is not its own."""
        self.root.has_client = True
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.allocator.release(consumer("c1"))
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c1"))
        self.assertRaises(errors.DeviceHeld, self.store.attach, [self.gpu], consumer("c1"))
        self.assertEqual({self.gpu}, self.blocked().keys())

    def test_gpu_that_the_engine_refused_to_attach_is_free_though_its_container_runs(self):
        self.root.able = False
        allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.root, host=self.tree.host,
                                    holders=lambda who: (os.getpid(),))
        allocator.acquire([Request(self.gpu)], consumer("c1"))
        for _ in range(2):
            allocator.cancel(self.gpu, consumer("c1"), allocator.view())
            self.assertEqual({}, self.store.records())

    def test_refused_reset_is_tried_again_for_a_while_once_no_container_has_the_gpu(self):
        """A program that reads the state of GPUs now and then is a client for a moment."""
        for timeout, pid, tries, free in ((9.0, None, 3, True), (9.0, os.getpid(), 1, False), (0.0, None, 1, False)):
            self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.cleaning.RESET_TIMEOUT", timeout))
            self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.scrub.RESET_INTERVAL", 0.0))
            refused = errors.ResetRefused("GPU is in use by another client")
            self.root.reset_gpu = mock.Mock(side_effect=(refused, refused, True))
            self.allocator.acquire([Request(self.gpu)], consumer("c1"))
            complaints = self.allocator.release_device(self.gpu, consumer("c1"), pid)
            self.assertEqual((tries, free), (self.root.reset_gpu.call_count, not complaints))
            self.allocator.release(consumer("c1"))

    def test_scrub_of_a_detached_gpu_follows_the_same_rule(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.store.detach([self.gpu], consumer("c1"), os.getpid())
        self.root.able = False
        self.assertRaises(errors.ScrubFailed, self.allocator.repair.clean, self.gpu)
        self.root.able = True
        self.assertEqual(("it was reset",), self.allocator.repair.clean(self.gpu))
        self.assertEqual(State.DETACHED, self.store.records()[self.gpu].state)

    def test_scrub_refuses_where_nobody_knows_which_containers_had_the_device(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.store.begin_cleaning(self.gpu)
        error = self.assertRaises(errors.ScrubFailed, self.allocator.repair.clean, self.gpu)
        self.assertIn("may still be in use by lxd/c1", str(error))
        self.assertEqual((), self.allocator.reconciler.reconcile("test", "lxd", ("c1",)))
        self.assertEqual({}, self.store.records())

    def kept(self, container):
        """Block the GPU while a running container may still use it."""
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.root.able = False
        (complaint,) = self.allocator.release_device(self.gpu, consumer("c1"), container.pid)
        self.assertEqual({self.gpu: complaint}, self.blocked())

    def test_blocked_device_is_cleaned_by_itself_when_the_containers_that_may_have_it_end(self):
        """Whichever way the tenant keeps it: in a socket, an io_uring, a DMA-BUF, by a mapping or a bind mount."""
        reconciler = self.allocator.reconciler
        for way in (lambda: reconciler.reconcile("test", "lxd", ("c1",)),
                    lambda: reconciler.clean_ended(consumer("c1")),
                    lambda: reconciler.reconcile_one(consumer("c1"), exists=True)):
            container = self.container()
            self.kept(container)
            self.assertEqual(((), frozenset()), (way(), reconciler.interrupted("test", "lxd", lambda who: True)))
            self.assertEqual({self.gpu}, self.blocked().keys())
            self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c2"))
            container.lives = False
            self.assertEqual(frozenset({consumer("c1")}), reconciler.interrupted("test", "lxd", lambda who: True))
            self.assertEqual(((), {}), (way(), self.store.records()))

    def test_device_that_stays_dirty_after_its_container_ended_is_not_cleaned_in_every_round(self):
        container = self.container()
        self.kept(container)
        container.lives = False
        self.say(xid(48))
        (complaint,) = self.allocator.reconciler.reconcile("test", "lxd", ("c1",))
        self.assertIn("Xid 48", complaint)
        self.assertEqual({self.gpu: complaint}, self.blocked())
        self.assertEqual(frozenset(), self.allocator.reconciler.interrupted("test", "lxd", lambda who: True))
        self.assertEqual((), self.allocator.reconciler.reconcile("test", "lxd", ("c1",)))

    def container(self):
        """Return a container's first process, which ends when ``lives`` is false."""
        first = mock.Mock(pid=4711, lives=True)
        for name, found in (("began", lambda pid: 1 if first.lives else None),
                            ("is_still", lambda pid, start: first.lives)):
            self.useFixture(fixtures.MonkeyPatch(f"containerhost.linux.process.processes.{name}", found))
        return first

    def test_containers_that_may_have_got_it_from_its_own_must_end_too(self):
        asked = []
        allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.root, host=self.tree.host,
                                    holders=lambda who: asked.append(who) or (os.getppid(),))
        allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.root.able = False
        (complaint,) = allocator.release(consumer("c1"))
        self.assertEqual([consumer("c1")], asked)
        self.assertIn("by a container that shares memory with lxd/c1", complaint)
        self.root.able = True
        self.assertEqual((), allocator.release(consumer("c1")))

    def test_device_stays_where_the_engine_does_not_tell_who_may_have_it(self):
        holders = mock.Mock(side_effect=errors.EngineUnavailable("no daemon"))
        allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.root, host=self.tree.host,
                                    holders=holders)
        allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.say(xid(48))
        for _ in range(2):
            (complaint,) = allocator.release(consumer("c1"))
            self.assertIn("no daemon", complaint)
            self.assertEqual({self.gpu: None}, self.blocked())
        self.assertEqual({self.gpu}, allocator.held_by(consumer("c1")))
        self.assertEqual(State.CLEANING, self.store.records()[self.gpu].state)  # the next round goes on
        holders.side_effect = lambda who: ()
        self.assertEqual((), allocator.reconciler.reconcile("test", "lxd", ("c1",)))
        self.assertEqual({}, self.store.records())

    def test_a_client_keeps_it_from_everybody(self):
        self.root.has_client, self.root.using = True, ("process 7 (python3)",)
        for _ in range(2):
            error = self.assertRaises(errors.ScrubFailed, self.allocator.repair.clean, self.gpu)
            self.assertIn("still in use by process 7 (python3)", str(error))
            self.assertEqual({self.gpu: str(error)}, self.blocked())
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c1"))
        self.root.has_client, self.root.using = False, ()
        self.allocator.repair.clean(self.gpu)
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        (grant,) = self.allocator.held(consumer("c1"))
        self.allocator.require_unused([grant])
        self.root.using = ("process 7 (python3)",)
        error = self.assertRaises(errors.DeviceInUse, self.allocator.require_unused, [grant])
        self.assertIn("process 7 (python3)", str(error))

    def test_what_somebody_has_is_not_cleaned(self):
        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        before = self.store.records()
        vf = next(device for device in scan(self.tree.host).devices if device.role is Role.VF)
        self.tree.take_netdev(vf.id)
        allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), self.root, host=self.tree.host,
                                foreign=lambda devices: {self.other: "theirs"})
        for name, wanted in ((self.gpu, errors.DeviceHeld), (self.other, errors.DeviceHeld),
                             (vf.id, errors.DeviceHeld), (vf.parent, errors.DeviceHeld),
                             ("0000:00:00.0", errors.DeviceNotFound), ("../x", errors.DeviceNotFound)):
            self.assertRaises(wanted, allocator.repair.clean, name)
            self.assertEqual(before, self.store.records())

    def test_whoever_was_killed_while_cleaning_leaves_it_blocked(self):
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.cleaning.scrub", lambda *arguments: 1 // 0))
        self.assertRaises(ZeroDivisionError, self.allocator.repair.clean, self.gpu)
        self.assertIn("has begun to clean it", self.blocked()[self.gpu])
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c1"))
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.cleaning.scrub", lambda *arguments: ("reset",)))
        self.allocator.repair.clean(self.gpu)
        self.assertEqual({}, self.store.records())


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
