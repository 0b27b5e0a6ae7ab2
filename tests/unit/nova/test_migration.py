# SPDX-License-Identifier: Apache-2.0
"""A server between two hosts in memory; LXD's part and the message bus are played."""

import dataclasses
from typing import Any, ClassVar
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_utils import units

from containerhost import errors
from containerhost.engines.capabilities import Offer
from containerhost.engines.contract import Status
from containerhost.engines.spec import PoolDisk
from containerhost.guest import resources
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server import instance_records
from nova_lxd_ext.server.migration import Migrations, Wanted
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_1
from tests.unit.nova.movescase import MOVE, OFFER, Bus, MovesCase


class BetweenHostsTest(MovesCase):
    def test_confirmed(self) -> None:
        self.leave()
        self.assertEqual(({}, Status.STOPPED), (self.one.held(), self.one.engine.statuses[self.server.name]))
        self.assertEqual((), self.one.engine.specs[self.server.name].parts)
        self.assertEqual(str(MOVE), self.two.engine.specs[self.server.name].labels[labels.INCOMING])
        self.arrive(self.there)
        spec = self.two.engine.specs[self.server.name]
        self.assertEqual((1024 * units.Mi, labels.of(self.server).items()),
                         (spec.memory.size, spec.labels.items() - {(resources.LABEL, spec.labels[resources.LABEL])}))
        self.assertEqual({GPU_1: self.server.name}, self.two.held())
        self.here.confirm(self.server, self.move)
        self.assertEqual({}, self.one.engine.specs)
        self.assertEqual(Status.RUNNING, self.two.engine.statuses[self.server.name])

    def test_reverted(self) -> None:
        self.leave()
        self.arrive(self.there)
        self.two.lifecycle.remove(self.server)
        self.go_back()
        self.assert_as_it_was()

    def test_a_fault_anywhere_leaves_it_as_it_was(self) -> None:
        full, down = errors.StorageFull("no space left"), errors.EngineUnavailable("gone")
        faults = {
            "the new host's pool is full": lambda: setattr(self.transfers, "fault", full),
            "its daemon cannot be asked": lambda: self.two.engine.fail.update(create=down),
            "the old host cannot take off its parts": lambda: self.one.engine.fail.update(update_devices=down),
        }
        for name, cause in faults.items():
            with self.subTest(name):
                cause()
                with mock.patch.object(self.one.power, "on", side_effect=self.repaired(self.one.power.on)):
                    self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.assert_as_it_was()
                self.transfers.fault = None
                self.two.engine.fail.clear()

    def repaired(self, action: Any) -> Any:
        def act(*args: Any) -> None:
            self.one.engine.fail.clear()
            action(*args)
        return act

    def test_killed_while_it_leaves(self) -> None:
        """Nova then calls for going back; what arrived meanwhile is removed."""
        self.one.engine.fail["update_devices"] = fakes.Killed()
        self.useFixture(fixtures.MockPatchObject(self.one.power, "on"))
        with mock.patch.object(self.incoming, "forget"):
            self.assertRaises(fakes.Killed, self.leave)
        self.one.engine.fail.clear()
        self.go_back()
        self.assert_as_it_was()
        self.assertIn(self.server.name, self.transfers.withdrawn)

    def test_going_back_leaves_a_server_alone_that_never_stopped(self) -> None:
        self.one.engine.asked.clear()
        self.go_back()
        self.assertEqual([], [call for call in self.one.engine.asked if call != "container"])

    def test_what_cannot_be_is_refused_before_anything_changes(self) -> None:
        self.one.engine.used = 3 * units.Gi
        small = records.flavor(root_gb=2)
        nowhere = Migrations(nova.conf.CONF, self.one.engine, self.one.states, self.one.attachments, self.one.lifecycle,
                             self.one.power, self.one.resize, self.one.notice, self.transfers, self.one.ephemerals,
                             Bus(self.incoming), None)
        for words, moves, flavor in (("3.0 GiB of its root disk", self.here, small),
                                     ("migration_address", nowhere, self.large)):
            with self.subTest(words):
                self.one.engine.asked.clear()
                error = self.assertRaises(exception.InstanceFaultRollback, moves.migrate, None, self.server, flavor,
                                          NOTHING, 0, 0)
                self.assertIn(words, str(error))
                self.assertNotIn("kill", self.one.engine.asked)
                self.assert_as_it_was()

    def test_what_was_wanted_of_an_earlier_live_migration_does_not_count(self) -> None:
        self.here.ask(self.server, Wanted.NOT)
        self.leave()
        self.arrive(self.there)

    def test_a_container_that_may_be_the_servers_is_not_replaced(self) -> None:
        self.two.lifecycle.spawn(None, records.instance(), objects.ImageMeta(id=records.IMAGE), (), None, NOTHING,
                                 False)
        error = self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertIn("has a container", str(error))
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_what_a_broken_off_move_left_is_replaced(self) -> None:
        self.leave()
        self.one.power.on(self.server, NOTHING)
        self.leave()
        self.arrive(self.there)


class IncomingCopyTest(MovesCase):
    """The copy on the new host; nova's records say whether it is still one."""

    def setUp(self) -> None:
        super().setUp()
        self.server.host, self.server.deleted = "one", False
        self.later: tuple[objects.Migration, ...] = ()
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", side_effect=self.record))
        self.useFixture(fixtures.MockPatchObject(objects.MigrationList, "get_by_filters",
                                                 side_effect=lambda *_: [self.move, *self.later]))

    def record(self, context: Any, uuid: str, expected_attrs: Any) -> objects.Instance:
        self.assertEqual("yes", context.read_deleted)
        return self.server

    def assert_purged(self, purged: bool, status: str = "error", deleted: bool = False) -> None:
        """Compare what a start of nova-compute does to the copy of a server that has left."""
        self.two.engine.specs.clear()
        self.leave()
        self.move.status, self.server.deleted = status, deleted
        with self.subTest(status):
            self.incoming.purge("two")
            self.assertEqual(purged, self.server.name not in self.two.engine.specs)
        self.one.power.on(self.server, NOTHING)

    def test_start_removes_copy_of_ended_migration_only(self) -> None:
        for status in ("error", "failed", "cancelled", "reverted"):
            self.assert_purged(True, status=status)
        for status in ("accepted", "pre-migrating", "migrating", "post-migrating", "finished", "reverting", "new"):
            self.assert_purged(False, status=status)
        self.assert_purged(True, status="migrating", deleted=True)

    def test_start_keeps_copy_while_another_migration_goes_on(self) -> None:
        """Its container may be what the server goes back to."""
        self.later = (objects.Migration(id=MOVE + 1, status="finished"),)
        self.assert_purged(False)

    def test_start_keeps_copy_of_unknown_migration(self) -> None:
        self.leave()
        with mock.patch.object(self, "move", objects.Migration(id=MOVE + 1, status="error")):
            self.incoming.purge("two")
        unknown = exception.InstanceNotFound(instance_id=records.UUID)
        with mock.patch.object(objects.Instance, "get_by_uuid", side_effect=unknown) as asked:
            self.incoming.purge("two")
            asked.assert_called_once()
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_start_never_removes_what_runs(self) -> None:
        self.leave()
        self.two.engine.statuses[self.server.name] = Status.RUNNING
        self.move.status = "error"
        self.incoming.purge("two")
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_server_placed_here_is_no_copy(self) -> None:
        """Its arrival failed, and nova placed it here before."""
        self.leave()
        self.server.host, self.move.status = "two", "error"
        self.incoming.purge("two")
        self.assertNotIn(labels.INCOMING, self.two.engine.specs[self.server.name].labels)
        self.server.host = "three"  # it leaves again, and its container waits for the end of that
        self.incoming.purge("two")
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_failed_arrival_then_reboot_then_restart_keeps_server(self) -> None:
        self.leave()
        self.server.host, self.move.status = "two", "error"
        self.server.flavor = self.large
        self.server.apply_migration_context()
        with mock.patch.object(self.two.attachments, "require_possible", side_effect=errors.SpecError("it is sick")):
            self.assertRaises(errors.SpecError, self.there.finish, None, self.server, NOTHING, True)
        self.two.power.reboot(self.server, NOTHING, soft=False)
        self.assertNotIn(labels.INCOMING, self.two.engine.specs[self.server.name].labels)
        self.incoming.purge("two")
        self.assertEqual(Status.RUNNING, self.two.engine.statuses[self.server.name])

    def test_reboot_drops_label_of_a_release_that_left_it(self) -> None:
        self.leave()
        name = self.server.name
        for action in ("reboot", "on"):
            with self.subTest(action):
                self.two.engine.relabel(name, {labels.INCOMING: str(MOVE)})
                if action == "on":
                    self.two.power.on(self.server, NOTHING)
                else:
                    self.two.power.reboot(self.server, NOTHING, soft=False)
                self.assertNotIn(labels.INCOMING, self.two.engine.specs[name].labels)

    def evacuate(self, status: str) -> bool:
        """Evacuate the server, whose host is off, to the one that has a copy of it.

        :returns: whether the server has a container there when it is booted
        """
        if self.server.name not in self.two.engine.specs:
            self.leave()
        self.move.status = status
        self.server.task_state = task_states.REBUILDING
        evacuated = objects.Migration(id=MOVE + 1, status="pre-migrating", migration_type="evacuation")
        self.later = (evacuated,)
        server = self.server.obj_clone()
        server.host, server.migration_context = "off", objects.MigrationContext(migration_id=evacuated.id)
        return self.incoming.exists(server)

    def test_evacuation_replaces_copy_of_ended_migration_only(self) -> None:
        refused = self.assertRaises(exception.ComputeResourcesUnavailable, self.evacuate, "post-migrating")
        self.assertIn(f"container {self.server.name} of the server already (of migration {MOVE})", str(refused))
        self.assertFalse(self.evacuate("error"))
        self.assertEqual({}, self.two.engine.specs)

    def test_evacuation_replaces_no_container_that_may_be_the_servers(self) -> None:
        self.leave()
        self.two.engine.statuses[self.server.name] = Status.RUNNING
        self.assertRaises(exception.ComputeResourcesUnavailable, self.evacuate, "error")
        self.two.engine.statuses[self.server.name] = Status.STOPPED
        self.two.engine.relabel(self.server.name, {labels.INCOMING: None})
        self.assertRaises(exception.ComputeResourcesUnavailable, self.evacuate, "error")
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_unshelving_replaces_copy_of_ended_migration_only(self) -> None:
        """What nova unshelves is in its image, which is newer."""
        self.leave()
        self.server.vm_state = vm_states.SHELVED_OFFLOADED
        for status, running, left in (("finished", False, True), ("error", True, True), ("error", False, False)):
            self.move.status = status
            self.two.engine.statuses[self.server.name] = Status.RUNNING if running else Status.STOPPED
            with self.subTest(status, running=running):
                self.incoming.remove_ended(self.server)
                self.assertEqual(left, self.server.name in self.two.engine.specs)

    def test_start_during_an_unshelving_takes_no_copy_for_the_server(self) -> None:
        """Nova places the server here before its container is made."""
        self.leave()
        self.server.vm_state, self.server.host, self.move.status = vm_states.SHELVED_OFFLOADED, "two", "finished"
        self.incoming.purge("two")
        self.assertIn(labels.INCOMING, self.two.engine.specs[self.server.name].labels)
        self.move.status = "error"
        self.incoming.purge("two")
        self.assertEqual({}, self.two.engine.specs)

    def test_server_exists_where_its_container_is(self) -> None:
        """Nova asks also while it detaches a volume."""
        self.leave()
        self.assertTrue(self.incoming.exists(self.server))
        self.server.host, self.server.task_state = instance_records.host(), task_states.REBUILDING  # where it is
        self.assertTrue(self.incoming.exists(self.server))

    def test_late_request_leaves_copy_of_a_retry(self) -> None:
        late = self.server.obj_clone()
        self.server.migration_context.migration_id = MOVE + 1
        self.leave()
        self.incoming.forget(None, late)
        self.assertIn(self.server.name, self.two.engine.specs)
        self.incoming.forget(None, self.server)
        self.assertEqual({}, self.two.engine.specs)

    def test_request_leaves_server_that_has_arrived(self) -> None:
        self.leave()
        self.arrive(self.there)
        self.incoming.forget(None, self.server)
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_copy_that_runs_is_not_replaced(self) -> None:
        self.leave()
        self.two.engine.statuses[self.server.name] = Status.RUNNING
        self.one.power.on(self.server, NOTHING)
        self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertIn(self.server.name, self.two.engine.specs)


class WithDisksTest(MovesCase):
    FLAVOR: ClassVar = {"ephemeral_gb": 2}

    def sizes(self, world: fakes.World) -> list[int]:
        """GiB of the server's ephemeral disks."""
        return [disk.size // units.Gi for disk in world.disks.all()]

    def test_they_go_along(self) -> None:
        self.leave()
        self.assertEqual(([2], [2]), (self.sizes(self.one), self.sizes(self.two)))
        self.arrive(self.there)
        (part,) = (part for part in self.two.engine.specs[self.server.name].parts if isinstance(part, PoolDisk))
        self.assertEqual(f"{self.server.name}-ephemeral0", part.volume)
        self.here.confirm(self.server, self.move)
        self.assertEqual(([], [2]), (self.sizes(self.one), self.sizes(self.two)))

    def test_they_come_back(self) -> None:
        self.leave()
        self.arrive(self.there)
        self.two.lifecycle.remove(self.server)
        self.go_back()
        self.assert_as_it_was()
        self.assertEqual(([2], []), (self.sizes(self.one), self.sizes(self.two)))

    def test_one_that_cannot_be_fetched_leaves_all_as_it_was(self) -> None:
        self.two.disk_transfers.fault = errors.StorageFull("no space left")
        self.assertIn("no space left", str(self.assertRaises(exception.InstanceFaultRollback, self.leave)))
        self.assert_as_it_was()
        self.assertEqual(([2], []), (self.sizes(self.one), self.sizes(self.two)))
        self.assertEqual([f"{self.server.name}-ephemeral0"], self.one.disk_transfers.withdrawn)

    def test_smaller_is_refused(self) -> None:
        error = self.assertRaises(exception.InstanceFaultRollback, self.leave, records.flavor(ephemeral_gb=1))
        self.assertIn("2 GiB of ephemeral disks", str(error))
        self.assert_as_it_was()


class OnOneHostTest(MovesCase):
    def setUp(self) -> None:
        super().setUp()
        self.move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="one")

    def test_resized_and_confirmed(self) -> None:
        self.leave()
        self.arrive(self.here)
        self.here.confirm(self.server, self.move)
        self.assertEqual(1024 * units.Mi, self.one.engine.specs[self.server.name].memory.size)
        self.assertEqual({GPU_1: self.server.name}, self.one.held())
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])

    def test_resized_and_reverted(self) -> None:
        self.leave()
        self.arrive(self.here)
        self.one.lifecycle.remove(self.server, keep_disk=True)
        self.go_back()
        self.assert_as_it_was()

    def test_an_arrival_that_fails_keeps_the_container_and_none_of_its_devices(self) -> None:
        self.leave()
        self.one.engine.fail["start"] = errors.EngineError("forkstart")
        self.assertRaises(errors.EngineError, self.arrive, self.here)
        self.assertEqual(({}, Status.STOPPED), (self.one.held(), self.one.engine.statuses[self.server.name]))


class OfferTest(testtools.TestCase):
    def test_the_secrets_are_not_shown(self) -> None:
        self.assertNotIn("secret", repr(OFFER))
        self.assertEqual(OFFER, Offer(**dataclasses.asdict(OFFER)))
