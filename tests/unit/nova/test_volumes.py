# SPDX-License-Identifier: Apache-2.0
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.spec import BlockDevice, ContainerSpec, Cpu, Memory, RootDisk
from containerhost.inventory.scan import HostView
from nova_lxd_ext import conf
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.storage import connections, connectors, volumeconfig
from nova_lxd_ext.storage.volumes import Volumes
from tests.unit.nova import fakes, records

conf.register()
OLD, NEW = "4d1f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f01", "5e2f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f02"
OTHER = "aaaaaaaa-5c56-4b0e-9b5e-0a6f1f6d9a02"
THIRD = "6f3f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f03"
PATH = "/dev/vdb"


def connection(volume: str = OLD, **data: Any) -> dict[str, Any]:
    return {"driver_volume_type": "local", "data": {"volume_id": volume, **data}}


def requested(*volumes: str) -> RequestedResources:
    return RequestedResources(block_device_info={"block_device_mapping": [
        {"boot_index": None, "mount_device": f"/dev/vd{letter}", "connection_info": connection(volume)}
        for letter, volume in zip("bcd", volumes, strict=False)]})


class VolumesTest(testtools.TestCase):
    unable = False  # distinguishes tags

    def setUp(self) -> None:
        super().setUp()
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.options.config(instances_path=str(directory / "instances"))
        self.engine, self.connectors = fakes.FakeEngine(), fakes.FakeConnectors()
        self.copier = fakes.FakeCopier()
        self.states = States(self.engine)
        self.volumes = Volumes(self.engine, self.states, self.connectors, self.copier, self.publish_tags)
        self.told: list[str] = []
        self.server = self.made(records.instance())

    def publish_tags(self, context: Any, instance: objects.Instance, ports: Any) -> None:
        if self.unable:
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        self.told.append(instance.uuid)

    def made(self, server: objects.Instance) -> objects.Instance:
        """A server with a container."""
        server.get_network_info = lambda: ()
        self.engine.create(ContainerSpec(server.name, fakes.IMAGE, Cpu(1), Memory(1), RootDisk("default"),
                                         labels=labels.of(server)))
        self.engine.statuses[server.name] = Status.RUNNING
        self.states.changed()
        return server

    def attach(self, server: objects.Instance | None = None, volume: str = OLD) -> None:
        self.volumes.attach(None, server or self.server, volumeconfig.volume(connection(volume), PATH))

    def parts(self) -> list[BlockDevice]:
        return list(self.engine.specs[self.server.name].parts)

    def left(self) -> tuple[list[str], tuple[Any, ...]]:
        return self.connectors.connected, connections.of(records.UUID)

    def test_attached_and_detached(self) -> None:
        self.attach()
        self.assertEqual([BlockDevice(OLD, "/dev/null", PATH)], self.parts())
        self.assertEqual([records.UUID], self.told)
        self.server.save.assert_called_once_with()
        self.assertEqual(([OLD], "/dev/null"), (self.connectors.connected, connections.find(records.UUID, OLD).source))
        self.volumes.detach(self.server, PATH)
        self.assertEqual(([], ([], ())), (self.parts(), self.left()))
        self.assertRaises(exception.DiskNotFound, self.volumes.detach, self.server, PATH)

    def test_what_fails_to_attach_leaves_nothing(self) -> None:
        self.connectors.fail = {"connect": exception.VolumeAttachFailed(volume_id=OLD, reason="gone")}
        self.assertRaises(exception.VolumeAttachFailed, self.attach)
        self.assertEqual(([], ([], ())), (self.parts(), self.left()))
        self.connectors.fail, self.engine.fail = {}, {"attach": errors.EngineError("no")}
        self.assertRaises(errors.EngineError, self.attach)
        self.assertEqual(([], ([], ())), (self.parts(), self.left()))
        self.engine.fail, self.unable = {}, True
        self.assertRaises(exception.InstanceNotFound, self.attach)
        self.assertEqual(([], ([], ())), (self.parts(), self.left()))

    def test_what_is_in_use_stays(self) -> None:
        self.attach()
        self.engine.fail = {"detach": errors.DeviceInUse("/dev/vdb is in use by process 7 (dd)")}
        error = self.assertRaises(exception.DeviceDetachFailed, self.volumes.detach, self.server, PATH)
        self.assertIn("process 7 (dd)", str(error))
        self.assertEqual([OLD], self.connectors.connected)

    def test_a_volume_that_cannot_be_disconnected_can_be_detached_again(self) -> None:
        self.attach()
        self.connectors.fail = {"disconnect": connectors.BackendError(reason="busy")}
        self.assertRaises(connectors.BackendError, self.volumes.detach, self.server, PATH)
        self.connectors.fail = {}
        self.volumes.detach(self.server, PATH)
        self.assertEqual(([], ()), self.left())

    def test_without_a_container_it_is_disconnected(self) -> None:
        self.attach()
        self.engine.delete(self.server.name)
        self.states.changed()
        self.volumes.detach(self.server, PATH)
        self.assertEqual(([], ()), self.left())

    def test_a_volume_of_two_servers_is_disconnected_with_the_last(self) -> None:
        other = self.made(records.instance(uuid=OTHER, id=43))
        for server in (self.server, other):
            self.attach(server)
        self.volumes.detach(self.server, PATH)
        self.assertEqual([OLD], self.connectors.connected)
        self.volumes.detach(other, PATH)
        self.assertEqual([], self.connectors.connected)

    def test_put_on_at_every_start_and_taken_off_at_the_end(self) -> None:
        for _ in range(2):
            parts = self.volumes.attach_all(self.server, requested(OLD, NEW), HostView())
            self.assertEqual([("/dev/vdb", OLD), ("/dev/vdc", NEW)], [(part.path, part.name) for part in parts])
        self.assertEqual([OLD, NEW], self.connectors.connected)
        for _ in range(2):
            self.volumes.release_all(self.server, RequestedResources(), HostView())
            self.assertEqual(([], ()), self.left())

    def test_a_backend_that_is_gone_keeps_no_server_from_its_end(self) -> None:
        self.volumes.attach_all(self.server, requested(OLD, NEW), HostView())
        self.connectors.fail = {"disconnect": connectors.BackendError(reason="gone")}
        self.volumes.release_all(self.server, RequestedResources(), HostView())

    def test_a_volume_without_a_connection_is_not_attached(self) -> None:
        """Nova keeps a volume whose attachment it began, and passes it to a resize; the attachment may be lost."""
        found = requested(OLD, NEW)
        found.block_device_info["block_device_mapping"][0]["connection_info"] = None
        self.volumes.require_possible(self.server, found, HostView())
        self.assertEqual([NEW], [part.name for part in self.volumes.attach_all(self.server, found, HostView())])

    def test_what_servers_without_a_container_left_is_disconnected_at_the_start(self) -> None:
        self.volumes.attach_all(self.server, requested(OLD), HostView())
        self.volumes.attach_all(records.instance(uuid=OTHER, id=43), requested(NEW), HostView())
        self.volumes.reconcile([ContainerState(self.server.name, Status.STOPPED, {labels.UUID: self.server.uuid})])
        self.assertEqual([OLD], self.connectors.connected)
        self.volumes.reconcile([])
        self.assertEqual([], self.connectors.connected)

    def test_a_late_connection_leaves_a_successful_retry_alone(self) -> None:
        self.options.config(volume_timeout=1, group="lxd")
        backend, slow = mock.Mock(), threading.Event()

        def connect(data: Any) -> dict[str, str]:
            slow.wait(60)
            return {"path": "/dev/null"}
        backend.connect_volume.side_effect = connect
        self.useFixture(fixtures.MockPatchObject(connectors.connector.InitiatorConnector, "factory",
                                                 return_value=backend))
        self.useFixture(fixtures.MockPatchObject(connectors, "require_block_device"))
        self.volumes = Volumes(self.engine, self.states, connectors.Connectors(nova.conf.CONF), fakes.FakeCopier(),
                               self.publish_tags)
        over = threading.Event()
        original = self.volumes._disconnect_late
        self.volumes._disconnect_late = lambda *args: (original(*args), over.set())
        self.assertRaises(exception.VolumeAttachFailed, self.attach)
        threading.Timer(0.2, slow.set).start()
        self.attach()
        self.assertTrue(over.wait(60))
        backend.disconnect_volume.assert_not_called()
        self.assertEqual([OLD], [kept.volume for kept in connections.of(records.UUID)])

    def test_a_late_connection_that_nobody_uses_is_undone(self) -> None:
        self.connectors.connected.append(OLD)
        self.volumes._disconnect_late(connections.Connection(OLD, "local", {}, PATH), {"path": "/dev/null"})
        self.assertEqual([], self.connectors.connected)

    def test_extended(self) -> None:
        self.volumes.extend(connection(size=2**31), 2**31)
        error = self.assertRaises(connectors.BackendError, self.volumes.extend, connection(size=2**30), 2**31)
        self.assertIn(str(2**30), str(error))

    def test_swapped(self) -> None:
        self.attach()
        self.volumes.swap(self.server, PATH, connection(), volumeconfig.volume(connection(NEW), PATH))
        self.assertEqual([BlockDevice(NEW, "/dev/null", PATH)], self.parts())
        self.assertEqual([NEW], self.connectors.connected)
        self.assertEqual([NEW], [kept.volume for kept in connections.of(records.UUID)])

    def leave(self, volume: str, source: str = "/dev/zero") -> None:
        """Record a connection at the path, of a volume whose attachment or swap was killed."""
        self.connectors.connected.append(volume)
        connections.keep(records.UUID, connections.Connection(volume, "local", {}, PATH, {"path": source}))

    def test_a_swap_copies_the_volume_that_is_attached(self) -> None:
        """Not one that is recorded at its path since a swap or an attachment was killed."""
        for stale in (OLD, OTHER):
            self.attach(volume=NEW)
            self.leave(stale)
            self.volumes.swap(self.server, PATH, connection(NEW), volumeconfig.volume(connection(THIRD), PATH))
            self.assertEqual([("/dev/null", "/dev/null")], self.copier.copied)
            self.assertEqual([THIRD], [part.name for part in self.parts()])
            self.assertEqual([THIRD], self.connectors.connected)
            self.volumes.detach(self.server, PATH)
            self.assertEqual(([], ()), self.left())
            self.copier.copied.clear()

    def test_a_start_disconnects_what_was_left_at_the_path_of_a_volume(self) -> None:
        self.leave(OLD)
        self.volumes.attach_all(self.server, requested(NEW), HostView())
        self.assertEqual([NEW], self.connectors.connected)
        self.assertEqual([NEW], [kept.volume for kept in connections.of(records.UUID)])

    def test_a_start_keeps_the_connection_of_a_volume_that_cinder_gave_another_id(self) -> None:
        self.leave(NEW, "/dev/null")
        self.volumes.attach_all(self.server, requested(OLD), HostView())
        self.assertEqual([NEW, OLD], self.connectors.connected)

    def test_a_swap_that_fails_changes_nothing(self) -> None:
        self.attach()
        before = self.parts()
        new = volumeconfig.volume(connection(NEW), PATH)
        for step, failure, seen in (("fenced", errors.DeviceInUse("in use"), exception.DeviceDetachFailed),
                                    ("detach", errors.EngineError("no"), errors.EngineError)):
            with self.subTest(step):
                self.engine.fail = {step: failure}
                self.assertRaises(seen, self.volumes.swap, self.server, PATH, connection(), new)
                self.engine.fail = {}
                self.assertEqual((before, [OLD]), (self.parts(), self.connectors.connected))

    def test_a_volume_that_cinder_migrated_is_found_by_its_place(self) -> None:
        self.attach()
        self.volumes.swap(self.server, PATH, connection(), volumeconfig.volume(connection(NEW), PATH))
        # From now on Cinder calls the new one OLD.
        self.volumes.attach_all(self.server, requested(OLD), HostView())
        self.volumes.detach(self.server, PATH)
        self.assertEqual(([], ()), self.left())
