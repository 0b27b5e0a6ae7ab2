# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.linux.process.processes import Process
from nova_lxd_ext import conf
from nova_lxd_ext.instance.requested import NOTHING
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0

conf.register()


class PowerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.clock = fakes.Clock(step=1.0)
        self.world = fakes.world(self.directory, nova.conf.CONF, self.clock)
        self.engine, self.power = self.world.engine, self.world.power
        self.on = lambda server: self.power.on(server, NOTHING)
        self.reboot = lambda server, soft: self.power.reboot(server, NOTHING, soft)
        self.server = records.instance(("gpu", GPU_0))
        self.world.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, NOTHING, True)

    def did(self, action: object, *arguments: object, status: Status | None = None) -> list[str]:
        """Return what the engine was made to do, without look-ups."""
        if status is not None:
            self.engine.statuses[self.server.name] = status
        self.engine.asked.clear()
        action(self.server, *arguments)
        return [call for call in self.engine.asked if call != "container"]

    def test_what_each_call_does_from_each_state(self) -> None:
        renewed = ["update_devices", "start", "verify"]
        running, stopped, frozen = Status.RUNNING, Status.STOPPED, Status.FROZEN
        power = self.power
        table = [
            ("on, stopped", self.on, (), stopped, renewed, running),
            ("on, running", self.on, (), running, [], running),
            ("on, frozen", self.on, (), frozen, ["unfreeze"], running),
            ("off, running", power.off, (), running, ["kill"], stopped),
            ("off, stopped", power.off, (), stopped, [], stopped),
            ("off, frozen", power.off, (60, 10), frozen, ["kill"], stopped),
            ("off in time", power.off, (60, 10), running, ["stop"], stopped),
            ("soft reboot", self.reboot, (True,), running, ["stop", *renewed], running),
            ("hard reboot", self.reboot, (False,), running, ["kill", *renewed], running),
            ("hard reboot, stopped", self.reboot, (False,), stopped, renewed, running),
            ("hard reboot, frozen", self.reboot, (False,), frozen, ["kill", *renewed], running),
            ("freeze", power.freeze, (), running, ["freeze"], frozen),
            ("unfreeze", power.unfreeze, (), frozen, ["unfreeze"], running),
            ("resume after the host restarted", self.on, (), stopped, renewed, running),
        ]
        for name, action, arguments, before, expected, after in table:
            with self.subTest(name):
                self.assertEqual(expected, self.did(action, *arguments, status=before))
                self.assertEqual(after, self.engine.statuses[self.server.name])

    def test_a_deaf_guest_is_asked_again_and_then_ended(self) -> None:
        self.engine.deaf.add(self.server.name)
        did = self.did(self.power.off, 10, 2)
        self.assertEqual("kill", did.pop())
        self.assertEqual({"stop"}, set(did))
        self.assertGreater(len(did), 1)

    def test_a_deaf_guest_is_rebooted_all_the_same(self) -> None:
        self.engine.deaf.add(self.server.name)
        self.assertEqual(["kill", "update_devices", "start", "verify"], self.did(self.reboot, True)[-4:])

    def test_an_interval_of_zero_asks_once(self) -> None:
        self.engine.deaf.add(self.server.name)
        self.clock.step = 6.0
        self.assertEqual(["stop", "kill"], self.did(self.power.off, 10, 0))

    def test_a_soft_reboot_allows_what_the_image_says(self) -> None:
        self.engine.deaf.add(self.server.name)
        self.server.system_metadata["image_os_shutdown_timeout"] = "0"
        self.assertEqual("kill", self.did(self.reboot, True)[0])

    def test_a_daemon_that_restarts_in_the_middle_is_waited_for(self) -> None:
        for name, action, arguments, method in (("off", self.power.off, (), "kill"), ("on", self.on, (), "start"),
                                                ("freeze", self.power.freeze, (), "freeze")):
            with self.subTest(name):
                self.engine.fail[method] = errors.EngineUnavailable("the daemon restarted")
                # Asking whether it is back is what brings it back.
                self.engine.server = lambda method=method: self.engine.fail.pop(method)
                self.assertEqual(2, self.did(action, *arguments).count(method))

    def test_a_daemon_that_stays_away_is_told(self) -> None:
        self.useFixture(config_fixture.Config(nova.conf.CONF)).config(ready_timeout=0, group="lxd")
        for method in ("container", "server"):
            self.engine.fail[method] = errors.EngineUnavailable("no daemon")
        self.assertRaises(errors.EngineUnavailable, self.power.off, self.server)

    def test_it_does_not_start_without_its_devices(self) -> None:
        self.engine.statuses[self.server.name] = Status.STOPPED
        self.world.owners.block(GPU_0, "memory could not be cleared")
        error = self.assertRaises(errors.DeviceHeld, self.on, self.server)
        self.assertIn("memory could not be cleared", str(error))
        self.assertEqual(Status.STOPPED, self.engine.statuses[self.server.name])

    def test_soft_reboot_ends_no_server_that_could_not_start_again(self) -> None:
        """A hard reboot does, as it resets a sick GPU."""
        (self.directory / f"host/sys/bus/pci/devices/{GPU_0}").unlink()
        self.assertRaises(errors.DeviceNotFound, self.did, self.reboot, True)
        self.assertEqual(Status.RUNNING, self.engine.statuses[self.server.name])

    def test_device_that_its_container_kept_is_cleaned_when_that_is_off(self) -> None:
        """Also when the guest ended by itself, or one was killed."""
        for status in (Status.RUNNING, Status.STOPPED):
            for grant in self.engine.specs[self.server.name].grants:
                self.engine.detach(self.server.name, grant)
            self.world.owners.begin_cleaning(GPU_0, holders=[Process(1 << 30, 1)])
            self.world.owners.block(GPU_0, "process 7 (python3) may use it")
            self.engine.statuses[self.server.name] = status
            self.power.off(self.server)
            self.assertNotIn(GPU_0, self.world.owners.records())
            self.engine.statuses[self.server.name] = Status.STOPPED
            self.on(self.server)

    def test_what_is_gone_is_off(self) -> None:
        self.engine.asked.clear()
        self.power.off(records.instance(id=7))
        self.assertEqual(["container"], self.engine.asked)

    def test_no_container_is_not_found(self) -> None:
        for name, action in {"on": self.on, "freeze": self.power.freeze, "unfreeze": self.power.unfreeze}.items():
            with self.subTest(name):
                self.assertRaises(exception.InstanceNotFound, action, records.instance(id=7))
