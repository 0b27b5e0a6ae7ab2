# SPDX-License-Identifier: Apache-2.0
"""A server between two hosts in memory; LXD's part and the message bus are played."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from oslo_utils import units

from containerhost import errors
from containerhost.engines.capabilities import ChangesOffer, Offer
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec, PoolDisk
from containerhost.guest import resources
from nova_lxd_ext import conf
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server.incoming import IncomingMigrations
from nova_lxd_ext.server.migration import Migrations
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0, GPU_1

conf.register()
OFFER = Offer("instance-0000002a", "https://one:8443/1.0/operations/x", "PEM", {}, {"fs": "secret"}, "x86_64")
MOVE = 7


class Transfers:
    """Fake the transfers of LXD's daemons.

    :ivar fault: what the receiver's LXD says instead of making the container
    :ivar offers, takes: whether the sender and the receiver can transfer differences
    :ivar rounds: is told of each of these
    :ivar with_snapshots: containers that still have what the differences need
    """

    def __init__(self, world: fakes.World) -> None:
        self.world = world
        self.fault: BaseException | None = None
        self.withdrawn: list[str] = []
        self.offers, self.takes = False, True
        self.rounds: Callable[[bool], None] = lambda refresh: None
        self.with_snapshots: set[str] = set()

    def offer(self, name: str, address: str) -> Offer:
        return OFFER

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        if not self.offers:
            return None
        self.with_snapshots.add("sender")
        return ChangesOffer(**dataclasses.asdict(OFFER), pool_type="btrfs")

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        return self.takes

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        if not refresh:
            self.world.engine.create(spec)
        self.with_snapshots.add("receiver")
        self.rounds(refresh)
        if self.fault:
            raise self.fault

    def drop_snapshots(self, name: str) -> None:
        self.with_snapshots.discard("receiver")

    def withdraw(self, name: str) -> None:
        self.withdrawn.append(name)
        self.with_snapshots.discard("sender")

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        self.world.engine.create(spec)
        if self.fault:
            raise self.fault


class Bus:
    """Carries what one host's driver asks the other's."""

    def __init__(self, receiver: IncomingMigrations) -> None:
        self.receiver = receiver

    def fetch(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.receiver.receive(context, instance, offer)

    def fetch_changes(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any], last: bool
                      ) -> bool:
        return self.receiver.receive_changes(context, instance, offer, last)

    def fetch_disk(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.receiver.receive_disk(context, instance, offer)

    def forget(self, context: Any, host: str, instance: objects.Instance) -> None:
        self.receiver.forget(context, instance)


class MovesCase(testtools.TestCase):
    FLAVOR: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        super().setUp()
        directories = [Path(self.useFixture(fixtures.TempDir()).path) for _ in range(2)]
        self.one = fakes.world(directories[0], nova.conf.CONF)
        (directories[1] / "host").symlink_to(directories[0] / "host")  # the same machine twice
        self.two = fakes.world(directories[1], nova.conf.CONF)
        self.transfers = Transfers(self.two)
        self.incoming = IncomingMigrations(nova.conf.CONF, self.two.engine, self.transfers, self.two.states,
                                           self.two.attachments, self.two.lifecycle, self.two.ephemerals)
        self.time = 0.0
        self.here, self.there = self.moves(self.one), self.moves(self.two)
        self.server = records.instance(("gpu", GPU_0), flavor_changes=self.FLAVOR)
        self.one.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, NOTHING, True)
        self.large = records.flavor(memory_mb=1024, root_gb=8, **self.FLAVOR)
        self.server.new_flavor = self.large
        self.server.migration_context = objects.MigrationContext(
            migration_id=MOVE, old_pci_devices=self.server.pci_devices, old_pci_requests=self.server.pci_requests,
            new_pci_requests=self.server.pci_requests, new_pci_devices=objects.PciDeviceList(objects=[
                objects.PciDevice(address=GPU_1, request_id=self.server.pci_requests.requests[0].request_id,
                                  compute_node_id=records.NODE)]))
        self.move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="two",
                                      status="migrating")
        self.useFixture(fixtures.MockPatchObject(objects.Migration, "get_by_id", side_effect=lambda *_: self.move))

    def moves(self, world: fakes.World) -> Migrations:
        return Migrations(nova.conf.CONF, world.engine, world.states, world.attachments, world.lifecycle, world.power,
                          world.resize, self.transfers, world.ephemerals, Bus(self.incoming), "https://one:8443",
                          lambda *_: None, lambda: self.time)

    def leave(self, flavor: objects.Flavor | None = None) -> None:
        self.here.migrate(None, self.server, flavor or self.large, NOTHING, 0, 0)

    def arrive(self, moves: Migrations) -> None:
        """Finish a migration after changing nova's record as nova does before."""
        self.server.flavor = self.large
        self.server.apply_migration_context()
        moves.finish(None, self.server, NOTHING, True)

    def go_back(self) -> None:
        self.server.flavor = records.flavor(**self.FLAVOR)
        self.server.revert_migration_context()
        self.here.revert(None, self.server, self.move, NOTHING, True)

    def assert_as_it_was(self) -> None:
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])
        self.assertEqual(512 * units.Mi, self.one.engine.specs[self.server.name].memory.size)
        self.assertEqual(({GPU_0: self.server.name}, {}, {}), (self.one.held(), self.two.held(), self.two.engine.specs))


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
                             self.one.power, self.one.resize, self.transfers, self.one.ephemerals, Bus(self.incoming),
                             None)
        for words, moves, flavor in (("3.0 GiB of its root disk", self.here, small),
                                     ("migration_address", nowhere, self.large)):
            with self.subTest(words):
                self.one.engine.asked.clear()
                error = self.assertRaises(exception.InstanceFaultRollback, moves.migrate, None, self.server, flavor,
                                          NOTHING, 0, 0)
                self.assertIn(words, str(error))
                self.assertNotIn("kill", self.one.engine.asked)
                self.assert_as_it_was()

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


class CopiedWhileItRunsTest(MovesCase):
    def setUp(self) -> None:
        super().setUp()
        self.transfers.offers = True
        self.transfers.rounds = self.round
        self.seen: list[tuple[bool, Status]] = []
        self.durations = [60.0, 10.0, 1.0]  # s, of the rounds

    def round(self, refresh: bool) -> None:
        self.seen.append((refresh, self.one.engine.statuses[self.server.name]))
        self.time += self.durations[min(len(self.seen), len(self.durations)) - 1]

    def assert_rounds(self, running: int) -> None:
        """It was copied this often while it ran, and once when it was stopped."""
        self.assertEqual([(number > 0, Status.RUNNING) for number in range(running)] + [(True, Status.STOPPED)],
                         self.seen)
        self.assertEqual(set(), self.transfers.with_snapshots)
        self.assertEqual(str(MOVE), self.two.engine.specs[self.server.name].labels[labels.INCOMING])

    def assert_copied_once(self) -> None:
        """It was copied when it was stopped, as a whole."""
        self.leave()
        self.assertEqual(([], set()), (self.seen, self.transfers.with_snapshots))
        self.assertIn(self.server.name, self.two.engine.specs)

    def test_stopped_when_a_round_is_short(self) -> None:
        self.leave()
        self.assert_rounds(3)
        self.arrive(self.there)
        self.assertEqual({GPU_1: self.server.name}, self.two.held())
        self.assertEqual(Status.RUNNING, self.two.engine.statuses[self.server.name])

    def test_server_that_changes_as_fast_as_it_is_copied(self) -> None:
        self.durations = [60.0, 50.0]
        self.leave()
        self.assert_rounds(2)

    def test_rounds_are_limited(self) -> None:
        self.durations = [60.0 / 2 ** number for number in range(20)]
        nova.conf.CONF.set_override("migration_rounds", 2, "lxd")
        self.addCleanup(nova.conf.CONF.clear_override, "migration_rounds", "lxd")
        self.leave()
        self.assert_rounds(2)

    def test_stopped_first_where_nothing_else_is_possible(self) -> None:
        with self.subTest("the new host cannot"), mock.patch.object(self.transfers, "takes", False):
            self.assert_copied_once()
        for words, change in (("no round", mock.patch.object(nova.conf.CONF.lxd, "migration_rounds", 0, create=True)),
                              ("this host cannot", mock.patch.object(self.transfers, "offers", False))):
            with self.subTest(words), change:
                self.go_back()
                self.assert_copied_once()
        with self.subTest("it is off"):
            self.go_back()
            self.one.power.off(self.server)
            self.assert_copied_once()

    def test_fault_before_the_stop_leaves_it_running(self) -> None:
        for at in range(2):
            with self.subTest(at):
                self.seen.clear()
                self.one.engine.asked.clear()
                self.fail_round(at)
                self.assertRaises(exception.InstanceFaultRollback, self.leave)
                self.assertEqual(at + 1, len(self.seen))
                self.assertNotIn("stop", self.one.engine.asked)
                self.assertNotIn("kill", self.one.engine.asked)
                self.assert_as_it_was()
                self.assertNotIn("sender", self.transfers.with_snapshots)

    def fail_round(self, number: int) -> None:
        def fail(refresh: bool) -> None:
            self.round(refresh)
            if len(self.seen) == number + 1:
                raise errors.StorageFull("no space left")
        self.transfers.rounds = fail

    def test_daemon_that_goes_away_in_a_round_keeps_no_snapshot(self) -> None:
        down = errors.EngineUnavailable("away")
        self.transfers.rounds = lambda refresh: self.one.engine.fail.update(server=down)
        self.transfers.fault = down

        def withdraw(name: str, original: Callable[[str], None] = self.transfers.withdraw) -> None:
            if "server" in self.one.engine.fail:
                raise down
            original(name)
        with (mock.patch.object(self.transfers, "withdraw", withdraw),
              mock.patch("containerhost.linux.poll.time.sleep", lambda _: self.one.engine.fail.clear())):
            self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertNotIn("sender", self.transfers.with_snapshots)
        self.assert_as_it_was()

    def test_fault_after_the_stop_starts_it_again(self) -> None:
        self.fail_round(3)
        self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertEqual((True, Status.STOPPED), self.seen[-1])
        self.assert_as_it_was()
        self.assertNotIn("sender", self.transfers.with_snapshots)

    def test_copy_that_went_meanwhile_is_fetched_anew(self) -> None:
        def lose(refresh: bool) -> None:
            self.round(refresh)
            if len(self.seen) == 3:
                self.two.lifecycle.discard(self.server.name, self.server.uuid)
        self.transfers.rounds = lose
        self.leave()
        self.assertEqual([False, True, True, False], [refresh for refresh, _ in self.seen])
        self.assertEqual(set(), self.transfers.with_snapshots)

    def test_container_that_may_be_the_servers_is_not_refreshed(self) -> None:
        self.two.lifecycle.spawn(None, records.instance(), objects.ImageMeta(id=records.IMAGE), (), None, NOTHING,
                                 False)
        error = self.assertRaises(exception.InstanceFaultRollback, self.leave)
        self.assertIn("has a container", str(error))
        self.assertEqual([], self.seen)
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])


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
