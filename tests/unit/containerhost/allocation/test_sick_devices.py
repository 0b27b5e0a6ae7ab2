# SPDX-License-Identifier: Apache-2.0
"""Sick devices: what is refused, kept, cleaned and reset."""

import os
from unittest import mock

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.cleaning import require_well
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import HostView, scan
from tests.unit.containerhost.allocation.allocatorcase import Marking, consumer
from tests.unit.containerhost.devices.health.test_kernellog import xid
from tests.unit.containerhost.hosts import Broken


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
        self.assertEqual(log, self.root.log.read_bytes())  # healthy devices are left unchanged
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
        self.assertIn("was released, but is not healthy: Xid 48", complaint)
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
        self.assertEqual((), self.allocator.held(consumer("c1")))  # its container is not notified of it
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.gpu)], consumer("c2"))
        (grant,) = self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        self.assertEqual((self.gpu, State.ATTACHED, {self.gpu: None}),
                         (grant.device.id, self.store.records()[self.gpu].state, self.blocked()))
        (grant,) = self.allocator.held(consumer("c1"))
        self.root.able = True
        self.assertEqual((), self.allocator.release_device(self.gpu, consumer("c1"), os.getpid()))
        self.assertEqual({}, self.store.records())

    def test_container_that_has_ended_does_not_get_a_blocked_gpu_back(self):
        """Another client of the GPU prevents the reset."""
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

    def test_containers_processes_are_read_once_while_the_records_are_unlocked(self):
        others, read = AllocationStore(self.store.directory, lock_limit=0.0), []

        def began(pid):
            others.claim([], consumer("c2"), lambda device: ())
            read.append(pid)
            return 1

        self.allocator.acquire([Request(self.gpu)], consumer("c1"))
        with mock.patch("containerhost.linux.process.processes.began", began):
            self.assertEqual((), self.allocator.release_device(self.gpu, consumer("c1"), 4711))
        self.assertEqual([4711, 4711], read)  # and once more: whether it still runs

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
        self.assertEqual(State.CLEANING, self.store.records()[self.gpu].state)  # the next round continues
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
