# SPDX-License-Identifier: Apache-2.0
"""Migrate running servers live, by a restart; what nova-compute's start does with those it finds half-way."""

import functools
import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import nova.conf
from keystoneauth1 import exceptions as keystone
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.compute.provider_tree import ProviderTree
from nova.network import model
from nova.objects import migrate_data

from containerhost import errors
from containerhost.engines.contract import Status
from nova_lxd_ext.errors import as_nova
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server.livemigration import LEFT, LiveMigrations, nothing_shared
from nova_lxd_ext.server.liverecovery import LiveRecovery
from nova_lxd_ext.server.migration import Wanted
from tests.unit.nova import records
from tests.unit.nova.fakes import GPU_1, Deferred, World, unreachable_placement
from tests.unit.nova.movescase import MOVE, MovesCase

VOLUME, BEFORE, AFTER = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "123")


class LiveCase(MovesCase):
    FLAVOR = {"extra_specs": {"lxd:live_migration": "restart"}}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        claimed = self.server.migration_context.new_pci_devices
        self.server.migration_context = self.server.new_flavor = None
        self.server.vm_state, self.server.task_state, self.server.host = vm_states.ACTIVE, task_states.MIGRATING, "one"
        self.move.migration_type, self.move.status, self.move.save = "live-migration", "running", mock.Mock()
        self.move.instance_uuid = records.UUID
        self.server.info_cache = objects.InstanceInfoCache(network_info=model.NetworkInfo())
        self.server.resources, self.server.root_device_name = None, "/dev/root"
        self.volumes = objects.BlockDeviceMappingList(objects=[])
        self.useFixture(fixtures.MockPatchObject(objects.BlockDeviceMappingList, "get_by_instance_uuid",
                                                 return_value=self.volumes))
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", return_value=self.server))
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.compat.pci_devices", return_value=claimed))
        self.allocated = self.useFixture(fixtures.MockPatch("nova_lxd_ext.compat.allocate_claimed")).mock
        self.events = self.useFixture(fixtures.MockPatch("nova_lxd_ext.server.failure_events._record")).mock
        self.ports = mock.Mock()
        self.source, self.target = self.live(self.one, self.here), self.live(self.two, self.there)
        self.data = nothing_shared(migration=self.move)
        self.ended: list[tuple[str, Status]] = []
        self.transfers.offers = True

    def live(self, world: World, moves: Any) -> LiveMigrations:
        return LiveMigrations(nova.conf.CONF, world.states, self.ports, world.resize, moves, self.incoming, None)

    def end(self, *args: Any, migration_status: str = "done", **more: Any) -> None:
        self.ended.append((migration_status, self.one.engine.statuses[self.server.name]))

    def migrate(self) -> None:
        self.source.migrate(None, self.server, "two", functools.partial(self.end, source_bdms=self.volumes), self.end,
                            None, self.data)

    def volume(self, attachment: str) -> objects.BlockDeviceMapping:
        return objects.BlockDeviceMapping(source_type="volume", destination_type="volume", volume_id=VOLUME,
                                          attachment_id=attachment)


class LiveMigrationTest(LiveCase):
    def test_only_where_flavor_or_operator_agree_to_a_restart(self) -> None:
        self.assertFalse(self.target.check_destination(None, self.server).is_shared_instance_path)
        self.server.flavor.extra_specs = {}
        refused = self.assertRaises(exception.MigrationPreCheckError, self.target.check_destination, None, self.server)
        self.assertIn("lxd:live_migration=restart", str(refused))
        nova.conf.CONF.set_override("live_migration", "restart", "lxd")
        self.addCleanup(nova.conf.CONF.clear_override, "live_migration", "lxd")
        self.target.check_destination(None, self.server)
        self.server.flavor.extra_specs = {"lxd:live_migration": "refused"}
        self.assertRaises(exception.MigrationPreCheckError, self.target.check_destination, None, self.server)
        self.server.flavor.extra_specs = {"lxd:live_migration": "yes"}
        with self.assertRaisesRegex(exception.MigrationPreCheckError, "restart or refused"), as_nova(
                self.server, exception.MigrationPreCheckError):
            self.target.check_destination(None, self.server)

    def test_paused_server_or_one_that_cannot_leave_is_refused(self) -> None:
        self.server.vm_state = vm_states.PAUSED
        self.assertRaises(exception.MigrationPreCheckError, self.source.check_source, None, self.server, self.data)
        self.server.vm_state = vm_states.ACTIVE
        with mock.patch.object(self.here, "_address", None):
            self.assertRaises(exception.MigrationError, self.source.check_source, None, self.server, self.data)

    def test_numa_cells_are_claimed_by_nova(self) -> None:
        self.server.numa_topology = records.numa({"id": 0})
        data = self.source.check_source(None, self.server, self.target.check_destination(None, self.server))
        self.assertTrue(data.dst_supports_numa_live_migration and data.src_supports_numa_live_migration)

    def test_devices_follow_placement_also_after_a_move(self) -> None:
        """Nova's conductor names no providers in requests of an earlier claim: they name those of that time."""
        nova.conf.CONF.set_override("report_in_placement", True, group="pci")
        self.addCleanup(nova.conf.CONF.clear_override, "report_in_placement", group="pci")
        tree = ProviderTree()
        tree.new_root(nova.conf.CONF.host, VOLUME)
        tree.new_child("gpu", VOLUME, uuid=AFTER)
        tree.add_traits(AFTER, "COMPUTE_MANAGED_PCI_DEVICE")
        (request,) = self.server.pci_requests.requests
        request.spec = [{"vendor_id": "10de", "product_id": "20b0", "rp_uuids": BEFORE}]
        placement = mock.Mock()
        self.useFixture(fixtures.MockPatch("nova_lxd_ext.compat.manager", return_value=SimpleNamespace(
            rt=SimpleNamespace(provider_tree=tree, reportclient=placement))))
        for kind, refused in (("CUSTOM_PCI_10DE_20B0", False), ("CUSTOM_PCI_15B3_101C", True)):
            placement.get_allocs_for_consumer.return_value = {"allocations": {AFTER: {"resources": {kind: 1}}}}
            with self.subTest(kind):
                if refused:  # by an error after which nova's conductor leaves the server ACTIVE
                    self.assertRaises(exception.MigrationPreCheckError, self.target.check_destination, None,
                                      self.server)
                else:
                    self.target.check_destination(None, self.server)
                    self.assertEqual(AFTER, request.spec[0]["rp_uuids"])

    def test_destination_refuses_before_anything_changes(self) -> None:
        self.data.vifs = [migrate_data.VIFMigrateData(port_id=VOLUME)]
        with mock.patch.object(self.two.attachments, "require_possible") as possible:
            self.assertEqual([], self.target.prepare(None, self.server, {}, model.NetworkInfo(), self.data).vifs)
        self.assertEqual([GPU_1], [device.address for device in possible.call_args.args[0].pci_devices])
        self.ports.prepare.assert_called_once()
        self.two.engine.create(self.one.engine.specs[self.server.name])
        self.assertRaises(exception.MigrationError, self.target.prepare, None, self.server, {}, model.NetworkInfo(),
                          self.data)

    def test_device_that_goes_at_the_destination_while_it_is_copied(self) -> None:
        seen: list[Status] = []

        def round_(refresh: bool) -> None:
            seen.append(self.one.engine.statuses[self.server.name])
            if len(seen) == 2:
                self.unplug(True)
        self.transfers.rounds, self.time = round_, 0
        with mock.patch.object(self.here, "_clock", iter(range(0, 1000, 10)).__next__):
            self.migrate()
        self.unplug(False)
        self.assertEqual(([Status.RUNNING] * 2, [("failed", Status.RUNNING)]), (seen, self.ended))
        self.assertIn(GPU_1, str(self.events.call_args))
        self.assert_as_it_was()

    def test_container_is_kept_until_destination_runs_it(self) -> None:
        self.migrate()
        self.assertEqual([("done", Status.STOPPED)], self.ended)
        self.assertEqual(LEFT, self.move.status)
        self.assertEqual(({}, {}), (self.one.engine.specs, self.one.held()))
        self.target.arrive(None, self.server, model.NetworkInfo(), {})
        self.assertEqual(({GPU_1: self.server.name}, Status.RUNNING),
                         (self.two.held(), self.two.engine.statuses[self.server.name]))
        self.assertNotIn(labels.INCOMING, self.two.engine.specs[self.server.name].labels)

    def test_error_leaves_it_running_and_tells_why(self) -> None:
        self.transfers.fault = errors.EngineError("the pool is full")
        self.migrate()
        self.assertEqual([("failed", Status.RUNNING)], self.ended)
        self.assert_as_it_was()
        self.assertIn("the pool is full", str(self.events.call_args))

    def test_aborted_while_it_is_copied(self) -> None:
        self.transfers.rounds = lambda refresh: self.here.ask(self.server, Wanted.NOT)
        self.migrate()
        self.assertEqual([("cancelled", Status.RUNNING)], self.ended)
        self.assert_as_it_was()
        self.assertNotIn("sender", self.transfers.with_snapshots)

    def test_what_was_wanted_of_an_earlier_one_does_not_count(self) -> None:
        """Nova 33 aborts at its start what was killed, and no migration is there to receive it."""
        self.here.ask(self.server, Wanted.NOT)
        self.source.check_source(None, self.server, self.data)
        self.migrate()
        self.assertEqual([("done", Status.STOPPED)], self.ended)

    def test_forced_to_complete_ends_the_rounds(self) -> None:
        seen: list[bool] = []

        def round_(refresh: bool) -> None:
            seen.append(refresh)
            self.time += 60 / len(seen) ** 2
            self.here.ask(self.server, Wanted.AT_ONCE)
        self.transfers.rounds = round_
        self.migrate()
        self.assertEqual(([False, True], [("done", Status.STOPPED)]), (seen, self.ended))

    def test_what_arrived_by_a_failed_one_is_removed_and_no_other(self) -> None:
        self.migrate()
        self.target.forget(None, self.server, nothing_shared(migration=objects.Migration(id=MOVE + 1)))
        self.assertIn(self.server.name, self.two.engine.specs)
        self.ports.unplug.assert_not_called()
        self.target.forget(None, self.server, self.data)
        self.assertNotIn(self.server.name, self.two.engine.specs)
        self.ports.unplug.assert_called_once()

    def test_attachments_of_volumes_are_noted(self) -> None:
        self.volumes.objects.append(self.volume(BEFORE))
        self.source.check_source(None, self.server, self.data)
        noted = self.one.engine.specs[self.server.name].labels[labels.OUTGOING]
        self.assertEqual({VOLUME: BEFORE}, json.loads(noted))

    def test_server_with_numa_cells_keeps_its_gpu(self) -> None:
        """Nova claims cells by new requests, and devices by the old ones."""
        self.migrate()
        self.server.migration_context = objects.MigrationContext(
            migration_id=MOVE, new_numa_topology=None, new_pci_devices=None, new_resources=None,
            new_pci_requests=objects.InstancePCIRequests(requests=[objects.InstancePCIRequest(
                request_id=VOLUME, alias_name="gpu", count=1, spec=[])]))
        self.target.arrive(None, self.server, model.NetworkInfo(), {})
        self.assertEqual({GPU_1: self.server.name}, self.two.held())
        self.assertEqual(self.server.pci_requests, self.server.migration_context.new_pci_requests)
        self.allocated.assert_called_once_with(None, None, self.server)

    def test_deleted_server_does_not_start(self) -> None:
        self.migrate()
        self.server.task_state = task_states.DELETING
        self.assertRaises(exception.InstanceNotFound, self.target.arrive, None, self.server, model.NetworkInfo(), {})
        self.assertEqual(Status.STOPPED, self.two.engine.statuses[self.server.name])

    def test_guest_has_no_longer_to_shut_down_than_the_operator_allows(self) -> None:
        self.server.system_metadata["image_os_shutdown_timeout"] = "99999999"
        with mock.patch.object(self.one.power, "off") as off:
            self.migrate()
        self.assertEqual(nova.conf.CONF.shutdown_timeout, off.call_args.args[1])


class LiveRecoveryTest(LiveCase):
    def setUp(self) -> None:
        super().setUp()
        self.server.deleted = False
        self.manager = mock.Mock()
        self.manager.reportclient.get_allocs_for_consumer.return_value = {"allocations": {VOLUME: {}}}
        self.deferred = Deferred()
        self.recovery = LiveRecovery(lambda: self.manager, self.one.states, self.source, self.deferred)
        self.useFixture(fixtures.MockPatchObject(objects.MigrationList, "get_by_filters",
                                                 side_effect=lambda *_, **__: [self.move]))
        self.useFixture(fixtures.MockPatch("nova.availability_zones.get_host_availability_zone",
                                           side_effect=lambda context, host: f"zone of {host}"))
        self.useFixture(fixtures.MockPatchObject(objects.ComputeNodeList, "get_all_by_host",
                                                 return_value=[SimpleNamespace(uuid=VOLUME)]))
        self.source.check_source(None, self.server, self.data)

    def recover(self) -> None:
        self.assertEqual({records.UUID}, self.recovery.recover("one", [self.server]))
        self.assertEqual([], self.manager.mock_calls, "nova-compute's start waits for nothing of it")
        self.deferred.minutes_pass()

    def test_one_that_had_not_left_is_undone_with_its_volumes_as_they_were(self) -> None:
        self.volumes.objects.append(self.volume(BEFORE))
        self.source.check_source(None, self.server, self.data)
        self.volumes.objects[0].attachment_id = AFTER
        self.manager.volume_api.attachment_get.return_value = {"connection_info": {
            "driver_volume_type": "local", "data": {"device_path": "/dev/null"}}}
        with mock.patch.object(self.one.power, "on") as start:
            self.recover()
        start.assert_not_called()
        undone = self.manager._rollback_live_migration
        self.assertEqual("two", undone.call_args.args[2])
        self.assertEqual([BEFORE], [volume.attachment_id for volume in undone.call_args.kwargs["source_bdms"]])

    def test_one_that_was_stopped_starts_again(self) -> None:
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.recover()
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])

    def test_one_that_had_left_is_finished(self) -> None:
        """The destination saves the availability zone that nova's conductor had set in the request."""
        self.move.status = LEFT
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.recover()
        finished = self.manager._post_live_migration_update_host.call_args.args
        self.assertEqual(("zone of two", "two"), (finished[1].availability_zone, finished[2]))
        self.assertNotIn(self.server.name, self.one.engine.specs)

    def test_one_whose_evacuation_was_refused_is_finished(self) -> None:
        """Its destination has the copy, and was not let make the server anew."""
        self.move.status, self.server.task_state = LEFT, None
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        evacuation = objects.Migration(id=MOVE + 1, source_compute="one", migration_type="evacuation", status="failed")
        with mock.patch.object(objects.MigrationList, "get_by_filters", side_effect=lambda _, filters: [
                self.move] if "migration_type" in filters else [self.move, evacuation]):
            self.recover()
        self.manager._post_live_migration_update_host.assert_called_once()

    def test_one_that_had_left_a_host_which_lost_its_containers_is_finished(self) -> None:
        """Its destination has all that there is of it, and an evacuation to there was refused."""
        self.move.status, self.server.task_state = LEFT, None
        self.one.engine.specs.clear()
        self.recover()
        self.manager._post_live_migration_update_host.assert_called_once()

    def test_one_that_was_started_here_since_has_failed(self) -> None:
        self.move.status, self.server.task_state = LEFT, None
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.one.power.on(self.server, NOTHING)
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.assertEqual(frozenset(), self.recovery.recover("one", [self.server]))
        self.assertEqual("failed", self.move.status)
        self.assertIn(self.server.name, self.one.engine.specs)

    def test_what_runs_here_is_never_removed(self) -> None:
        """Nova's database was away when the server had left, and the driver started it again."""
        self.move.status = LEFT
        self.recover()
        self.manager._rollback_live_migration.assert_called_once()
        self.manager._post_live_migration_update_host.assert_not_called()
        self.recovery.recover("one", [self.server])
        self.server.host, self.server.task_state = "two", None
        self.deferred.minutes_pass()
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])

    def test_one_that_does_not_start_is_undone_nevertheless(self) -> None:
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        with mock.patch.object(self.one.power, "on", side_effect=errors.DeviceUnhealthy("its GPU is sick")):
            self.recover()
        self.manager._rollback_live_migration.assert_called_once()

    def test_one_that_had_left_needs_nothing_of_cinder(self) -> None:
        """Nova may have deleted the attachments already."""
        self.test_one_that_had_not_left_is_undone_with_its_volumes_as_they_were()
        self.move.status, self.volumes.objects[0].attachment_id = LEFT, AFTER
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.manager.reset_mock()
        self.recover()
        self.assertEqual([], self.manager.volume_api.mock_calls)
        finished = self.manager._post_live_migration_update_host.call_args.kwargs["source_bdms"]
        self.assertEqual([BEFORE], [volume.attachment_id for volume in finished])

    def test_one_that_arrived_although_its_source_was_killed_is_completed(self) -> None:
        """Also where the server has moved on since."""
        self.move.status = LEFT
        self.recovery.recover("one", [self.server])
        self.server.host, self.server.task_state = "two", None
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.deferred.minutes_pass()
        self.assertEqual("completed", self.move.status)
        self.manager.reportclient.delete_allocation_for_instance.assert_called_once()
        self.assertNotIn(self.server.name, self.one.engine.specs)

    def test_one_that_arrived_between_two_starts_is_completed_with_its_allocation(self) -> None:
        """Also where the server moves on meanwhile, whose allocations the start does not sweep."""
        self.move.status = LEFT
        self.recovery.recover("one", [self.server])
        self.server.host, self.server.task_state = "two", task_states.RESIZE_PREP
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        answering, self.manager.reportclient = self.manager.reportclient, unreachable_placement()
        self.recovery.recover("one", [])
        self.assertEqual(LEFT, self.move.status)
        self.manager.reportclient = answering
        self.recovery.recover("one", [])
        self.assertEqual("completed", self.move.status)
        answering.delete_allocation_for_instance.assert_called_once_with(
            mock.ANY, self.move.uuid, consumer_type="migration", force=True)
        self.assertNotIn(self.server.name, self.one.engine.specs)

    def test_one_that_arrived_and_was_shelved_there_is_completed(self) -> None:
        self.move.status = LEFT
        self.server.vm_state, self.server.host = vm_states.SHELVED_OFFLOADED, None
        for task_state, status in ((task_states.SPAWNING, LEFT), (None, "completed")):
            self.server.task_state = task_states.MIGRATING
            self.recovery.recover("one", [self.server])
            self.server.task_state = task_state
            self.one.engine.statuses[self.server.name] = Status.STOPPED
            self.deferred.minutes_pass()
            self.assertEqual(status, self.move.status)
        self.manager.reportclient.delete_allocation_for_instance.assert_called_once()
        self.assertNotIn(self.server.name, self.one.engine.specs)

    def test_one_that_has_ended_meanwhile_is_left(self) -> None:
        self.recovery.recover("one", [self.server])
        self.server.host, self.server.task_state = "two", None
        self.deferred.minutes_pass()
        self.assertEqual([], self.manager.mock_calls)

    def test_one_whose_request_may_wait_in_the_queue_is_waited_for(self) -> None:
        self.move.status = "accepted"
        self.recovery.recover("one", [self.server])
        self.assertLess(0, self.deferred.calls[0][0])
        self.deferred.minutes_pass()
        self.manager._rollback_live_migration.assert_called_once()

    def test_unbegun_one_is_undone_also_where_nova_33_cleared_its_task_state(self) -> None:
        """Its allocations would be the migration's for ever. Its user may have stopped it."""
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        for vm_state, after in ((vm_states.STOPPED, Status.STOPPED), (vm_states.ACTIVE, Status.RUNNING)):
            self.move.status, self.server.task_state = "accepted", task_states.MIGRATING
            self.recovery.recover("one", [self.server])
            self.server.task_state, self.server.vm_state = None, vm_state
            with self.subTest(vm_state):
                self.deferred.minutes_pass()
                self.manager._rollback_live_migration.assert_called_once()
                self.assertEqual(after, self.one.engine.statuses[self.server.name])
            self.manager.reset_mock()

    def test_unbegun_one_has_the_attachments_of_now(self) -> None:
        """What is noted may be of an earlier migration that failed."""
        self.volumes.objects.append(self.volume(BEFORE))
        self.source.check_source(None, self.server, self.data)
        self.volumes.objects[0].attachment_id = AFTER
        self.move.status, self.move.dest_compute = "accepted", None
        self.manager.volume_api.attachment_get.side_effect = exception.VolumeAttachmentNotFound(attachment_id=BEFORE)
        self.recover()
        self.assertEqual(("failed", None), (self.move.status, self.server.task_state))

    def test_unbegun_one_is_not_ended_while_placement_does_not_answer(self) -> None:
        """The server's resources here would stay those of a failed migration."""
        self.move.status, self.move.dest_compute = "accepted", None
        answering, self.manager.reportclient = self.manager.reportclient, unreachable_placement()
        self.recovery.recover("one", [self.server])
        self.assertRaises(keystone.ConnectFailure, self.deferred.minutes_pass)
        self.assertEqual(("accepted", task_states.MIGRATING), (self.move.status, self.server.task_state))
        self.manager.reportclient = answering
        self.recovery.recover("one", [self.server])
        self.deferred.minutes_pass()
        self.assertEqual(("failed", None), (self.move.status, self.server.task_state))
        answering.move_allocations.assert_called_once_with(mock.ANY, self.move.uuid, records.UUID)

    def test_killed_while_nova_undid_it(self) -> None:
        self.move.status = "error"
        self.recover()
        self.manager._rollback_live_migration.assert_called_once()

    def test_move_of_an_evacuated_server_has_failed(self) -> None:
        for host, task_state, status, after in (
                ("three", None, "running", "failed"), ("three", None, "accepted", "failed"),
                ("one", task_states.MIGRATING, "running", "running"), ("one", None, "running", "running")):
            self.server.host, self.server.task_state, self.move.status = host, task_state, status
            with self.subTest(host, task_state=task_state, status=status):
                self.recovery.recover("one", [])
                self.assertEqual(after, self.move.status)

    def test_server_that_was_evacuated_to_a_third_host_has_nothing_on_the_destination(self) -> None:
        """Nova's scheduler adds what it allocates to what the server has."""
        freed, self.server.task_state = self.manager.reportclient.remove_provider_tree_from_instance_allocation, None
        for host, status, expected in (("three", "running", True), ("three", LEFT, True), ("two", LEFT, False),
                                       ("three", "failed", False), (None, "running", False)):
            self.server.host, self.move.status = host, status
            freed.reset_mock()
            with self.subTest(host, status=status):
                self.recovery.recover("one", [])
                self.assertEqual([mock.call(mock.ANY, records.UUID, VOLUME)] if expected else [], freed.call_args_list)

    def test_what_could_not_be_freed_on_the_destination_is_freed_at_the_next_start(self) -> None:
        freed, self.server.task_state = self.manager.reportclient.remove_provider_tree_from_instance_allocation, None
        for status, after in (("running", "failed"), (LEFT, "completed")):
            self.server.host, self.move.status = "three", status
            freed.side_effect = keystone.ConnectFailure("Placement is away")
            with self.subTest(status):
                self.recovery.recover("one", [])
                self.assertEqual(status, self.move.status)
                freed.side_effect = None
                self.recovery.recover("one", [])
                self.assertEqual(after, self.move.status)
                freed.assert_called_with(mock.ANY, records.UUID, VOLUME)

    def purged(self, **changes: Any) -> bool:
        for name, value in changes.items():
            setattr(self.server if name in ("host", "deleted") else self.move, name, value)
        self.recovery.recover("one", [])
        return self.server.name not in self.one.engine.specs

    def test_container_is_removed_only_if_both_records_say_that_its_server_has_left(self) -> None:
        self.server.task_state = None
        self.assertFalse(self.purged(host="two", status="completed"), "it runs")
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.assertFalse(self.purged(host="one", status="completed"))
        self.assertFalse(self.purged(host="two", status="error"))
        self.assertFalse(self.purged(status="completed", migration_type="migration"))
        self.assertFalse(self.purged(host=None, migration_type="live-migration"))
        self.assertTrue(self.purged(host="two", status=LEFT))
        self.assertEqual("completed", self.move.status)

    def test_container_of_a_deleted_server_is_removed(self) -> None:
        self.one.engine.statuses[self.server.name] = Status.STOPPED
        self.assertTrue(self.purged(host="two", deleted=True, status="error"))
