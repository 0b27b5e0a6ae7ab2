# SPDX-License-Identifier: Apache-2.0
"""A server runs from a rescue image with its broken root at hand, and then from its own root again."""

import json
from collections.abc import Callable
from typing import Any

import fixtures

from containerhost import errors
from containerhost.engines.contract import Status
from nova_lxd_ext.instance import labels
from nova_lxd_ext.server.rescue import TARGET
from tests import levels
from tests.functional.nova import base


class RescueCase(base.LxdServers):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self._delete_images)

    def shell(self, server: dict[str, Any], script: str) -> str:
        done = self.inside(server, "sh", "-c", script)
        self.assertEqual(0, done.status, done.output)
        return done.output

    def rescued(self, server: dict[str, Any], expected: str = "RESCUE", **request: str) -> None:
        self.api.post_server_action(server["id"], {"rescue": {"adminPass": "for-rescue"} | request})
        self._wait_for_state_change(server, expected)
        self.assertNotIn("does not have the password", self.stdlog.logger.output)

    def containers(self) -> dict[str, Status]:
        return {state.name: state.status for state in self.lxd.engine.containers()}


class RescueTest(RescueCase):
    def test_the_broken_root_can_be_mended(self) -> None:
        flavor = self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1")
        server = self.server(flavor, config_drive=True)
        self.shell(server, "echo mine > /root/letter; chown 1000:100 /root/letter; echo broken > /etc/state")
        devices, held = self.shell(server, "ls /dev /sys/class/net"), self.held()

        self.rescued(server, rescue_image_ref=self.image("tar.gz"))
        name = self.instance(server).name
        self.assertEqual({name: Status.RUNNING, f"{name}{labels.ASIDE}": Status.STOPPED}, self.containers())
        self.assertEqual([server["id"]], self.driver.list_instance_uuids())
        self.assertEqual(1, self.inside(server, "test", "-e", "/root/letter").status)
        self.assertEqual("1000:100\n0:0\n", self.shell(
            server, f"stat -c %u:%g {TARGET}/root/letter {TARGET}/etc/state"))
        self.shell(server, f"echo repaired > {TARGET}/etc/state; echo new > {TARGET}/root/new")
        self.assertEqual(devices, self.shell(server, "ls /dev /sys/class/net"))
        self.assertEqual(held, self.held())
        self.assertEqual("for-rescue", self.drive(server)["admin_pass"])
        self.assertTrue(self.root_has(server, "for-rescue"))

        self.lxd.engine.stop(name, timeout=10, force=True)  # as the host's restart does
        self.driver.resume_state_on_host_boot(base.nova_context.get_admin_context(), self.instance(server), None, None)
        self.assertEqual("repaired\n", self.shell(server, f"cat {TARGET}/etc/state"))
        self._unrescue_server(server)
        self.assertEqual({name: Status.RUNNING}, self.containers())
        self.assertEqual("mine\nrepaired\nnew\n1000:100\n0:0\n", self.shell(
            server, "cat /root/letter /etc/state /root/new; stat -c %u:%g /root/letter /root/new"))
        self.assertEqual(devices, self.shell(server, "ls /dev /sys/class/net"))
        self.assertNotEqual("for-rescue", self.drive(server).get("admin_pass"))
        self.assertFalse(self.root_has(server, "for-rescue"))
        self._delete_server(server)
        self.assert_nothing_left()

    def root_has(self, server: dict[str, Any], password: str) -> bool:
        """Return whether it is the password of the running container's administrator."""
        shadow = self.shell(server, "grep ^root: /etc/shadow").split(":")[1]
        return shadow.startswith("$6$") and shadow == self.shell(
            server, f"mkpasswd -m sha512 {password} {shadow.split('$')[2]}").strip()

    def drive(self, server: dict[str, Any]) -> dict[str, Any]:
        return json.loads(self.shell(server, "cat /config-drive/openstack/latest/meta_data.json"))

    @levels.exhaustive("units restart nova-compute beside a rescued server; a rescue remains")
    def test_a_rescued_server_outlives_a_restart_of_nova_compute_and_goes_without_a_trace(self) -> None:
        server = self.server(self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1"), config_drive=True)
        self.rescued(server)
        before = self.containers()
        self.restart_compute_service(self.computes[base.HOST])
        self.assertEqual(before, self.containers())
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("the same steps on another kind of pool")
    def test_on_a_pool_of_plain_directories(self) -> None:
        client = self.lxd.engine.client
        client.finish(client.request("post", "storage-pools", asked="make the pool", json={
            "name": "plain", "driver": "dir", "config": {}}), "make the pool")
        self.driver._backend.lifecycle._conf.set_override("storage_pool", "plain", group="lxd")
        server = self.server()
        self.shell(server, "echo mine > /root/letter")
        self.rescued(server)
        self.assertEqual("mine\n", self.shell(server, f"cat {TARGET}/root/letter"))
        self._unrescue_server(server)
        self.assertEqual("mine\n", self.shell(server, "cat /root/letter"))
        self._delete_server(server)
        self.assert_nothing_left()
        client.request("delete", "storage-pools", "plain", asked="remove the pool")


class FaultTest(RescueCase):
    @levels.exhaustive("units interrupt both at every step, and RecoveryTest has them in turn")
    def test_a_rescue_that_fails_leaves_the_server_to_a_hard_reboot(self) -> None:
        server = self.server(self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1"))
        self.shell(server, "echo mine > /root/letter")
        name = self.instance(server).name
        for step in ("create", "start"):
            with self.subTest(step), self.broken(step):
                self.rescued(server, expected="ERROR")
                self.assertEqual({name: Status.STOPPED}, self.containers())
            self._reboot_server(server, hard=True)
            self.assertEqual("mine\n", self.shell(server, "cat /root/letter"))
            self.assertEqual({server["id"]}, set(self.held().values()))

    def broken(self, method: str) -> fixtures.MonkeyPatch:
        """The engine does what it is asked to and then says that it failed."""
        target = f"containerhost.engines.lxd.engine.LxdEngine.{method}"
        original: Callable[..., None] = getattr(type(self.driver._backend.engine), method)

        def fail(this: Any, *arguments: Any) -> None:
            original(this, *arguments)
            raise errors.EngineError(f"{method} failed in the end")
        return fixtures.MonkeyPatch(target, fail)

    @levels.exhaustive("units interrupt both at every step, and RecoveryTest has them in turn")
    def test_an_interrupted_unrescue_is_ended_at_the_next_start(self) -> None:
        server = self.server()
        self.shell(server, "echo mine > /root/letter")
        self.rescued(server)
        name = self.instance(server).name
        self.lxd.engine.delete(name)
        self.restart_compute_service(self.computes[base.HOST])
        self.assertEqual({name: Status.STOPPED}, self.containers())
        self._unrescue_server(server)
        self.assertEqual("mine\n", self.shell(server, "cat /root/letter"))
        self._delete_server(server)
        self.assert_nothing_left()
