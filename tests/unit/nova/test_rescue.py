# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import Executed, Status
from containerhost.engines.spec import RescueMount
from nova_lxd_ext import conf
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server.rescue import TARGET, Rescue
from nova_lxd_ext.storage import configdrive, directories
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0, Killed
from tests.unit.nova.test_lifecycle import Metadata

conf.register()
META = objects.ImageMeta(id=records.IMAGE, properties=objects.ImageMetaProps(os_admin_user="admin"))
STEPS = ("update_devices", "rename", "create", "start", "verify")


class RescueTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(config_fixture.Config(nova.conf.CONF)).config(instances_path=str(self.directory / "instances"))
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.storage.configdrive.metadata.InstanceMetadata", Metadata))
        self.start()
        self.server = records.instance(("gpu", GPU_0), config_drive="True", vm_state=vm_states.ACTIVE)
        self.aside = labels.aside(self.server)
        self.world.lifecycle.spawn(None, self.server, META, (), None, NOTHING, True)
        self.own = self.engine.specs[self.server.name]

    def start(self) -> None:
        world = fakes.world(self.directory, nova.conf.CONF)
        self.world = world
        self.rescue = Rescue(nova.conf.CONF, world.engine, world.states, world.lifecycle, world.power,
                             world.attachments, fakes.FakeImages())  # type: ignore[arg-type]

    @property
    def engine(self) -> fakes.FakeEngine:
        return self.world.engine

    def enter(self) -> None:
        self.rescue.enter(None, self.server, META, "secret", NOTHING)

    def leave(self) -> None:
        self.rescue.leave(self.server, NOTHING)

    def restart(self, **changes: Any) -> None:
        """A new nova-compute on the same host; the engine lived on."""
        before = self.engine
        self.start()
        self.engine.specs, self.engine.statuses = before.specs, before.statuses
        self.server = records.instance(("gpu", GPU_0), config_drive="True", **changes)
        self.world.lifecycle.reconcile([self.server])
        self.rescue.reconcile([self.server])

    def assert_rescued(self) -> None:
        self.assertEqual({self.server.name, self.aside}, set(self.engine.specs))
        rescuing, own = self.engine.specs[self.server.name], self.engine.specs[self.aside]
        self.assertEqual(RescueMount(self.aside, TARGET), rescuing.rescue_mount)
        self.assertEqual(([GPU_0], []), ([grant.device.id for grant in rescuing.grants], list(own.grants)))
        self.assertEqual((Status.RUNNING, Status.STOPPED), (self.engine.statuses[self.server.name],
                                                            self.engine.statuses[self.aside]))

    def assert_own(self, status: Status) -> None:
        self.assertEqual({self.server.name: status}, self.engine.statuses)
        self.assertIsNone(self.engine.specs[self.server.name].rescue_mount)
        self.assertEqual({GPU_0: self.server.name}, self.world.held())
        self.assertFalse((directories.of(self.server.uuid) / configdrive.RESCUE).exists())
        self.assertTrue((directories.of(self.server.uuid) / "configdrive").exists())

    def test_there_and_back(self) -> None:
        self.enter()
        self.assert_rescued()
        self.assertTrue((directories.of(self.server.uuid) / configdrive.RESCUE).exists())
        self.leave()
        self.assert_own(Status.RUNNING)
        self.assertEqual(self.own.grants, self.engine.specs[self.server.name].grants)

    def test_the_rescuing_container_gets_the_password_where_it_can(self) -> None:
        self.enter()
        self.assertEqual([(("chpasswd",), b"admin:secret\n")], self.engine.executed)
        for lack in (lambda: setattr(self.engine, "done", Executed(127, b"")),
                     lambda: self.engine.fail.update(execute=errors.EngineTimeout("chpasswd does not end"))):
            self.leave()
            lack()
            self.enter()
            self.assert_rescued()

    def test_both_may_be_repeated(self) -> None:
        self.enter()
        self.enter()
        self.assert_rescued()
        self.leave()
        self.leave()
        self.assert_own(Status.RUNNING)

    def test_a_rescued_server_is_one_server(self) -> None:
        self.enter()
        self.assertEqual([records.UUID], self.world.states.uuids())
        self.assertEqual([self.server.name], [state.name for state in self.world.states.all()])

    def test_its_end_takes_both_containers(self) -> None:
        self.enter()
        self.world.lifecycle.remove(self.server)
        self.assertEqual(({}, {}), (self.engine.specs, self.world.held()))

    def test_any_error_leaves_the_server_as_it_was(self) -> None:
        for step in ("require_rescuable", *STEPS):
            with self.subTest(step):
                self.engine.fail = {step: errors.EngineError(f"no {step}")}
                self.assertRaises(errors.EngineError, self.enter)
                self.engine.fail = {}
                self.assert_own(Status.RUNNING if step == "require_rescuable" else Status.STOPPED)
                self.world.power.on(self.server, NOTHING)
                self.assertEqual(self.own.grants, self.engine.specs[self.server.name].grants)

    def test_killed_at_any_step_of_a_rescue(self) -> None:
        for step in STEPS:
            with self.subTest(step):
                self.killed(step, self.enter)
                self.restart(vm_state=vm_states.ACTIVE, task_state=task_states.RESCUING)
                self.assert_own(Status.STOPPED)
                self.world.power.on(self.server, NOTHING)
        self.enter()
        self.restart(vm_state=vm_states.ACTIVE, task_state=task_states.RESCUING)
        self.assert_own(Status.STOPPED)

    def test_killed_at_any_step_of_an_unrescue(self) -> None:
        for step in ("delete", "rename", "update_devices", "start", "verify"):
            with self.subTest(step):
                self.enter()
                self.killed(step, self.leave)
                self.restart(vm_state=vm_states.RESCUED)
                self.leave()
                self.assert_own(Status.RUNNING)

    def killed(self, step: str, action: Any) -> None:
        """A killed process rolls nothing back: from this step on the engine hears no more of it."""
        original = self.engine._called

        def called(method: str, name: str | None = None) -> None:
            if method == step or self.dead:
                self.dead = True
                raise Killed
            original(method, name)
        self.dead = False
        self.engine._called = called  # type: ignore[method-assign]
        self.assertRaises(Killed, action)
        self.engine._called = original  # type: ignore[method-assign]

    def test_a_rescued_server_stays_rescued_over_a_restart(self) -> None:
        self.enter()
        self.restart(vm_state=vm_states.RESCUED)
        self.assert_rescued()

    def test_rescued_server_in_error_keeps_what_runs_until_its_user_reboots_it(self) -> None:
        """An operator sets the state, or an unrescue fails."""
        self.enter()
        self.restart(vm_state=vm_states.ERROR)
        self.assert_rescued()
        self.rescue.abandon(self.server)
        self.assert_own(Status.STOPPED)

    def test_reboot_leaves_a_rescued_server_rescued(self) -> None:
        self.enter()
        self.server.vm_state = vm_states.RESCUED
        self.rescue.abandon(self.server)
        self.assert_rescued()

    def test_another_servers_container_is_not_brought_back(self) -> None:
        other = records.instance(vm_state=vm_states.ACTIVE, uuid="3b0b25f5-9a92-4b8b-9a7d-6d1a0a4b3c11")
        self.enter()
        self.assertIsNone(self.world.states.aside_of(other))

    def test_without_a_container_there_is_nothing_to_rescue(self) -> None:
        self.world.lifecycle.remove(self.server)
        self.assertRaises(exception.InstanceNotFound, self.enter)
