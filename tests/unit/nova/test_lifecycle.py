# SPDX-License-Identifier: Apache-2.0
import dataclasses
import errno
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.network import model
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import ContainerState, Status
from containerhost.guest import resources
from nova_lxd_ext import conf
from nova_lxd_ext.access import console
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.storage import configdrive, directories
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0, GPU_1, Killed

conf.register()
META = objects.ImageMeta(id=records.IMAGE)
STEPS = ("create", "start", "verify")


class LifecycleTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.options.config(instances_path=str(self.directory / "instances"))
        self.world = self.restarted()
        # Its content needs nova's database; the functional tests read the real one.
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.storage.configdrive.metadata.InstanceMetadata", Metadata))

    def restarted(self) -> fakes.World:
        """Return what a new nova-compute on the same host has; the engine kept running."""
        found = fakes.world(self.directory, nova.conf.CONF)
        if hasattr(self, "world"):
            found.engine.specs = self.world.engine.specs
            found.engine.statuses = self.world.engine.statuses
        return found

    def spawn(self, instance: objects.Instance, *, files: Any = (), network_info: Any = None,
              block_device_info: Any = None, power_on: bool = True) -> None:
        self.world.lifecycle.spawn(None, instance, META, files, "secret",
                                   RequestedResources.of(network_info, block_device_info), power_on)

    def leftovers(self) -> dict[str, Any]:
        drives = sorted(path.name for path in (self.directory / "instances").glob("*"))
        found = {"containers": self.world.engine.specs, "devices": self.world.held(), "drives": drives}
        return {name: left for name, left in found.items() if left}


class SpawnTest(LifecycleTest):
    def test_makes_and_starts_what_the_flavor_says(self) -> None:
        server = records.instance(("gpu", GPU_1), config_drive="True", extra_specs={"lxd:nested_allowed": "true"})
        self.spawn(server)
        spec = self.world.engine.specs[server.name]
        self.assertEqual([GPU_1], [grant.device.id for grant in spec.grants])
        self.assertEqual((fakes.IMAGE, 4 * 2**30, 512 * 2**20, 2, True, records.UUID),
                         (spec.image, spec.root.size, spec.memory.size, spec.cpu.count, spec.security.nesting,
                          spec.labels["nova.uuid"]))
        self.assertEqual({"/config-drive", "/var/lib/cloud/seed/config_drive"}, {mount.target for mount in spec.mounts})
        self.assertEqual({GPU_1: server.name}, self.world.held())
        self.assertEqual(Status.RUNNING, self.world.engine.statuses[server.name])
        self.assertEqual(100, server.progress)

    def test_progress_of_an_evacuation_saves_nothing_of_its_claim(self) -> None:
        """Nova boots the server with its claim applied; saved, that would be the server's when the boot is undone."""
        old, new = (objects.InstancePCIRequests(instance_uuid=records.UUID, requests=[]) for _ in range(2))
        devices = objects.PciDeviceList(objects=[])
        server = records.instance(
            vm_state=vm_states.ACTIVE, task_state=task_states.REBUILD_SPAWNING, pci_requests=old, resources=None,
            migration_context=objects.MigrationContext(
                old_pci_requests=old, new_pci_requests=new, old_pci_devices=devices, new_pci_devices=devices,
                old_numa_topology=None, new_numa_topology=None, old_resources=None, new_resources=None))
        saved: list[bool] = []
        server.save = mock.Mock(side_effect=lambda **_: saved.append(server.pci_requests is old))
        with server.mutated_migration_context():
            self.spawn(server)
            self.assertIs(new, server.pci_requests)
        self.assertEqual([True] * 3, saved)

    def test_without_power_it_does_not_start(self) -> None:
        server = records.instance()
        self.spawn(server, power_on=False)
        self.assertEqual(Status.STOPPED, self.world.engine.statuses[server.name])

    def test_bad_input_changes_nothing(self) -> None:
        port = model.NetworkInfo([model.VIF(id="p", type="vhostuser")])
        volume = {"block_device_mapping": [{"mount_device": "/dev/vdb", "boot_index": 0, "connection_info": {}}]}
        scratch = {"ephemerals": [{"size": 1, "guest_format": "xfs", "encrypted": False}]}
        table: list[tuple[str, objects.Instance, dict[str, Any], type[Exception], str]] = [
            ("port", records.instance(), {"network_info": port}, errors.SpecError, "vhostuser"),
            ("volume", records.instance(), {"block_device_info": volume}, errors.SpecError, "boot from a volume"),
            ("swap", records.instance(flavor_changes={"swap": 64}), {}, errors.SpecError, "swap"),
            ("ephemeral", records.instance(), {"block_device_info": scratch}, errors.SpecError, "xfs"),
            ("files", records.instance(), {"files": [("/etc/motd", "hi")]}, exception.BuildAbortException,
             "config drive"),
            ("no such device", records.instance(("gpu", "0000:99:00.0")), {}, errors.DeviceNotFound, "0000:99:00.0"),
            ("privileged", records.instance(extra_specs={"lxd:privileged_allowed": "true"}), {}, errors.SpecError,
             "allow_privileged"),
            ("user data", records.instance(user_data="abcde"), {}, errors.SpecError, "base64"),
        ]
        for name, server, arguments, kind, words in table:
            with self.subTest(name):
                error = self.assertRaises(kind, self.spawn, server, **arguments)
                self.assertIn(words, str(error))
                self.assertEqual({}, self.leftovers())
                self.assertEqual([], [step for step in self.world.engine.asked if step in ("create", "delete")])

    def test_a_device_another_container_holds_is_refused(self) -> None:
        self.spawn(records.instance(("gpu", GPU_0)))
        other = records.instance(("gpu", GPU_0), id=43, uuid=records.IMAGE)
        self.assertRaises(errors.DeviceHeld, self.spawn, other)
        self.assertEqual({GPU_0: "instance-0000002a"}, self.world.held())
        self.assertEqual(["instance-0000002a"], list(self.world.engine.specs))

    def test_a_failure_at_any_step_leaves_nothing(self) -> None:
        for step in STEPS:
            with self.subTest(step):
                self.world.engine.fail = {step: errors.StorageFull("pool is full")}
                server = records.instance(("gpu", GPU_0), config_drive="True")
                self.assertRaises(errors.StorageFull, self.spawn, server)
                self.assertEqual({}, self.leftovers())

    def test_a_server_deleted_during_its_boot_leaves_nothing(self) -> None:
        gone = exception.UnexpectedDeletingTaskStateError(instance_uuid=records.UUID, expected={}, actual={})
        for call in (1, 2):
            with self.subTest(call):
                server = records.instance(("gpu", GPU_0))
                server.save.side_effect = [None] * (call - 1) + [gone]
                self.assertRaises(exception.UnexpectedDeletingTaskStateError, self.spawn, server)
                self.assertEqual({}, self.leftovers())

    def test_a_container_that_cannot_be_removed_keeps_its_devices(self) -> None:
        self.world.engine.fail = {"start": errors.EngineError("no"), "delete": errors.EngineUnavailable("gone")}
        self.assertRaises(errors.EngineError, self.spawn, records.instance(("gpu", GPU_0)))
        self.assertEqual({GPU_0: "instance-0000002a"}, self.world.held())
        self.world.engine.fail = {}
        self.world.lifecycle.remove(records.instance(("gpu", GPU_0)))
        self.assertEqual({}, self.leftovers())

    def test_a_server_that_has_a_container_is_not_made_again(self) -> None:
        self.spawn(records.instance(("gpu", GPU_0)))
        self.assertRaises(exception.InstanceExists, self.spawn, records.instance(("gpu", GPU_0)))
        self.assertEqual({GPU_0: "instance-0000002a"}, self.world.held())
        self.assertIn("instance-0000002a", self.world.engine.specs)

    def test_another_servers_container_of_the_same_name_is_left_alone(self) -> None:
        self.spawn(records.instance())
        stranger = records.instance(("gpu", GPU_0), uuid=records.IMAGE)
        self.assertRaises(errors.EngineConflict, self.spawn, stranger)
        self.world.lifecycle.remove(stranger)
        self.assertEqual(records.UUID, self.world.engine.specs["instance-0000002a"].labels["nova.uuid"])
        self.assertEqual({}, self.world.held())


class ConfirmTest(LifecycleTest):
    def test_container_keeps_the_document_of_its_resources_when_reserved_cores_go(self) -> None:
        server = records.instance()
        self.spawn(server)
        state = ContainerState(server.name, Status.RUNNING, {resources.LABEL: "its document", "other": "mark"},
                               reserved=frozenset({1}))
        with (mock.patch.object(self.world.states, "find", return_value=state),
              mock.patch.object(self.world.engine, "set_limits") as set_limits):
            self.world.lifecycle.release_reserved_cores(server)
        _, spec = set_limits.call_args.args
        self.assertEqual(("its document", frozenset(), False), (
            spec.labels[resources.LABEL], spec.cpu.reserved, "other" in spec.labels))


class RemoveTest(LifecycleTest):
    def test_leaves_nothing_and_may_be_repeated(self) -> None:
        server = records.instance(("gpu", GPU_0), config_drive="True")
        self.spawn(server)
        for _ in range(2):
            self.world.lifecycle.remove(server)
            self.assertEqual({}, self.leftovers())

    def test_unreadable_record_of_another_servers_device_keeps_none(self) -> None:
        self.spawn(records.instance(("gpu", GPU_0)))
        (self.directory / "owners" / f"{GPU_0}.json").write_text("")
        other = records.instance(id=43, uuid=records.IMAGE)
        self.spawn(other)
        self.world.lifecycle.remove(other)
        self.assertEqual(["instance-0000002a"], list(self.world.engine.specs))
        self.assertRaises(errors.AllocationsUnreadable, self.world.lifecycle.remove, records.instance())

    def test_works_when_the_engine_lost_the_container(self) -> None:
        server = records.instance(("gpu", GPU_0), config_drive="True")
        self.spawn(server)
        self.world.engine.specs.clear()
        self.world.lifecycle.remove(server)
        self.assertEqual({}, self.leftovers())

    def test_can_keep_the_disk(self) -> None:
        server = records.instance(("gpu", GPU_0), config_drive="True")
        self.spawn(server)
        self.world.lifecycle.remove(server, keep_disk=True)
        self.assertEqual((Status.STOPPED, {}), (self.world.engine.statuses[server.name], self.world.held()))
        self.assertTrue((directories.of(records.UUID) / "configdrive").is_dir())


class KilledTest(LifecycleTest):
    """nova-compute is killed and started again; nova says which servers it was building."""

    def restart(self, *servers: objects.Instance) -> None:
        self.world = self.restarted()
        self.world.lifecycle.reconcile(servers)
        self.world.lifecycle.end_interrupted_boots(servers)

    def kill_at(self, step: str, action: Any) -> None:
        self.world.engine.fail = {step: Killed()}
        # The undo of a killed process does not run.
        patch = fixtures.MonkeyPatch("containerhost.rollback.Rollback.__exit__", lambda *_: None)
        with patch:
            self.assertRaises(Killed, action)

    def test_in_a_boot(self) -> None:
        for step in ("create", "start", "verify"):
            with self.subTest(step):
                server = records.instance(("gpu", GPU_0), config_drive="True")
                self.kill_at(step, lambda server=server: self.spawn(server))
                self.assertEqual({GPU_0: server.name}, self.world.held())
                self.restart(server)
                self.assertEqual({}, self.leftovers())

    def test_in_a_boot_of_a_server_that_nova_has_deleted_since(self) -> None:
        self.kill_at("create", lambda: self.spawn(records.instance(("gpu", GPU_0), config_drive="True")))
        self.restart()
        self.assertEqual({}, self.leftovers())

    def test_in_an_unshelving_keeps_what_may_be_the_only_copy(self) -> None:
        """Nova deletes the shelved image before it records that the server runs."""
        server = records.instance(vm_state=vm_states.SHELVED_OFFLOADED, task_state=task_states.SPAWNING)
        self.spawn(server)
        self.restart(server)
        self.assertEqual(Status.RUNNING, self.world.engine.statuses[server.name])

    def test_in_an_end(self) -> None:
        server = records.instance(("gpu", GPU_0), config_drive="True")
        self.spawn(server)
        self.kill_at("delete", lambda: self.world.lifecycle.remove(server))
        self.restart()
        self.assertEqual({GPU_0: server.name}, self.world.held())  # nova deletes it again
        self.world.lifecycle.remove(server)
        self.assertEqual({}, self.leftovers())

    def test_between_the_end_of_the_container_and_of_the_rest(self) -> None:
        server = records.instance(("gpu", GPU_0), config_drive="True")
        self.spawn(server)
        self.world.engine.delete(server.name)
        self.restart()
        self.assertEqual({}, self.leftovers())

    def test_the_parts_of_servers_that_only_the_engine_lacks_stay(self) -> None:
        """An empty answer (another project, a restored database) is no proof that a server is gone."""
        lost = records.instance(("gpu", GPU_0), config_drive="True", vm_state=vm_states.ACTIVE, task_state=None)
        moved = records.instance(("gpu", GPU_1), id=43, uuid=records.IMAGE, config_drive="True")
        for server in (lost, moved):
            self.spawn(server)
        containers = dict(self.world.engine.specs)
        self.world.engine.specs.clear()
        self.restart(lost)
        self.assertEqual({GPU_0: lost.name, GPU_1: moved.name}, self.world.held())
        self.assertTrue((directories.of(lost.uuid) / "configdrive").is_dir())
        self.world.engine.specs["another"] = dataclasses.replace(
            containers[lost.name], name="another", labels={labels.UUID: "5c0c1d3e-0000-4000-8000-000000000001"})
        self.world.engine.statuses["another"] = Status.STOPPED
        self.restart(lost)
        self.assertEqual({GPU_0: lost.name}, self.world.held())
        self.assertTrue((directories.of(lost.uuid) / "configdrive").is_dir())
        self.assertFalse(directories.of(moved.uuid).exists())

    def test_built_servers_stay(self) -> None:
        built = records.instance(("gpu", GPU_0), config_drive="True", vm_state=vm_states.ACTIVE, task_state=None)
        rebooting = records.instance(("gpu", GPU_1), id=43, uuid=records.IMAGE, vm_state=vm_states.ACTIVE,
                                     task_state=task_states.REBOOTING)
        self.spawn(built)
        self.spawn(rebooting)
        self.restart(built, rebooting)
        self.assertEqual({built.name, rebooting.name}, set(self.world.engine.specs))
        self.assertEqual({GPU_0: built.name, GPU_1: rebooting.name}, self.world.held())
        self.assertTrue((directories.of(records.UUID) / "configdrive").is_dir())


class Metadata:
    def __init__(self, instance: objects.Instance, **_: Any) -> None:
        self.uuid = instance.uuid

    def metadata_for_config_drive(self) -> list[tuple[str, str]]:
        return [("openstack/latest/meta_data.json", f'{{"uuid": "{self.uuid}"}}')]


class DirectoryTest(LifecycleTest):
    def test_a_file_system_without_acls_leaves_the_drive_readable_with_a_warning(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        configdrive.write(records.instance(config_drive="True"), (), None, None)
        self.useFixture(fixtures.MonkeyPatch("os.setxattr", mock.Mock(side_effect=OSError(errno.ENOTSUP, "no ACLs"))))
        configdrive.let_read(records.UUID, 100000)
        file = directories.of(records.UUID) / "configdrive/openstack/latest/meta_data.json"
        self.assertEqual(0o644, file.stat().st_mode & 0o777)
        self.assertIn("has no POSIX ACLs", log.output)

    def test_the_drive_is_written_anew(self) -> None:
        for _ in range(2):
            configdrive.write(records.instance(config_drive="True"), (), None, None)
            stale = directories.of(records.UUID) / "configdrive" / "stale"
            self.assertFalse(stale.exists())
            stale.touch()

    def test_other_hosts_on_a_shared_path_keep_theirs(self) -> None:
        directories.make(records.UUID)
        self.options.config(host="other")
        directories.make(records.UUID)
        theirs = directories.make(records.IMAGE)
        self.options.config(host="mine")
        self.assertEqual((), directories.remove_all_but(()))
        directories.remove(records.UUID)
        self.assertTrue(theirs.is_dir())
        self.options.config(host="other")
        self.assertEqual((records.UUID,), directories.remove_all_but([records.IMAGE]))
        self.assertTrue(theirs.is_dir())


class ConsoleTest(LifecycleTest):
    def setUp(self) -> None:
        super().setUp()
        self.server = records.instance()
        self.spawn(self.server)
        self.pieces: list[bytes] = []
        self.world.engine.console_log = lambda name: self.pieces.pop(0)

    def output(self) -> bytes:
        return console.output(self.world.engine, self.server, self.world.states.require(self.server))

    def test_what_was_read_once_is_kept(self) -> None:
        self.pieces = [b"one\n", b"", b"two\n"]
        self.assertEqual([b"one\n", b"one\n", b"one\ntwo\n"], [self.output() for _ in range(3)])

    def test_a_daemon_that_repeats_itself_is_not_repeated(self) -> None:
        self.pieces = [b"one\n", b"one\ntwo\n"]
        self.assertEqual([b"one\n", b"one\ntwo\n"], [self.output() for _ in range(2)])

    def test_a_stopped_container_tells_the_whole_or_the_rest_again_and_again(self) -> None:
        for rest in (b"one\ntwo\n", b"two\n"):
            with self.subTest(rest):
                self.world.engine.statuses[self.server.name] = Status.RUNNING
                directories.remove(records.UUID)
                self.pieces = [b"one\n", rest, rest]
                self.output()
                self.world.engine.statuses[self.server.name] = Status.STOPPED
                self.assertEqual([b"one\ntwo\n"] * 2, [self.output() for _ in range(2)])

    def test_the_same_line_twice_is_two_lines(self) -> None:
        self.pieces = [b"tick\n", b"tock\ntick\n", b"tick\n"]
        self.assertEqual(b"tick\ntock\ntick\ntick\n", [self.output() for _ in range(3)][-1])

    def test_a_flood_is_cut_at_a_line(self) -> None:
        line = b"x" * 99 + b"\n"
        self.pieces = [line * 2000, line]
        for _ in range(2):
            found = self.output()
            self.assertLessEqual(len(found), console.LIMIT)
            self.assertEqual((0, line), (len(found) % 100, found[:100]))

    def test_goes_with_the_server(self) -> None:
        self.pieces = [b"one\n"]
        self.output()
        self.world.lifecycle.remove(self.server)
        self.assertEqual({}, self.leftovers())
