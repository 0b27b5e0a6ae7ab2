# SPDX-License-Identifier: Apache-2.0
"""The daemon restarts in the middle of what is done to a server: it is done all the same, or all is as it was."""

from tests.functional.nova import base  # isort: skip

from typing import ClassVar

from nova.tests.functional.api.client import OpenStackApiException

from containerhost.engines.contract import Status
from tests import levels
from tests.functional.nova.interrupting import Interrupted
from tests.functional.nova.test_ports import PortServers
from tests.functional.nova.test_volumes import VolumeServers


class RestartTest(Interrupted, PortServers, VolumeServers):
    options: ClassVar = {("lxd", "ready_timeout"): 60, (None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        self.small = self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        self.the_server = self.server(self.small)
        self.assertEqual(0, self.inside(self.the_server, "sh", "-c", "echo mine > /root/file").status)

    def assert_runs(self) -> None:
        self._wait_for_server_parameter(self.the_server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assertEqual(Status.RUNNING, self.container(self.the_server).status)
        self.assertEqual("mine\n", self.inside(self.the_server, "cat", "/root/file").output)
        self.assertEqual({self.the_server["id"]}, set(self.held().values()))

    @levels.exhaustive("a restart of the daemon is shown at resizes")
    def test_volumes_come_and_go(self) -> None:
        """A daemon killed at a point from which it cannot go on leaves nothing, and the next try works."""
        server, (volume, _) = self.the_server, self.cinder.volume()
        self.restart_at("change container")
        self.api.post_server_volume(server["id"], {"volumeAttachment": {"volumeId": volume}})
        if self.outcome(server, "attach_volume") == "Error":
            self.assertEqual([], self.nodes(server))
            self.assert_free(volume)
            self.api.post_server_volume(server["id"], {"volumeAttachment": {"volumeId": volume}})
            self.ended(server, "attach_volume", "Success")
        self.assertEqual(["/dev/vdb"], self.nodes(server))
        self.write(server, "kept")
        self.restart_at("change container")
        self.api.delete_server_volume(server["id"], volume)
        if self.outcome(server, "detach_volume") == "Error":
            self.api.delete_server_volume(server["id"], volume)
            self.ended(server, "detach_volume", "Success")
        self.assertEqual([], self.nodes(server))
        self.assert_free(volume)
        self.assert_runs()
        self.gone(server)

    @levels.exhaustive("a restart of the daemon is shown at resizes")
    def test_ports_come_and_go(self) -> None:
        server, port = self.the_server, self.port()
        asked = {"interfaceAttachment": {"port_id": port["id"]}}
        self.restart_at("change container")
        try:
            self.api.attach_interface(server["id"], asked)
        except OpenStackApiException:
            self.assertEqual(({}, []), (self.links(server), self.switch.ports()))
            self.api.attach_interface(server["id"], asked)
        self.assert_is_wired(server, port)
        self.restart_at("change container")
        self.api.detach_interface(server["id"], port["id"])
        if self.outcome(server, "detach_interface") == "Error":
            self._reboot_server(server, hard=True)
            self.api.detach_interface(server["id"], port["id"])
            self.ended(server, "detach_interface", "Success")
        self.assertEqual(({}, []), (self.links(server), self.switch.ports()))
        self.assert_runs()
        self.gone(server)

    @levels.exhaustive("EngineFaultTest restarts the daemon in the middle of a boot; units do of every operation")
    def test_a_resize_succeeds_or_changes_nothing(self) -> None:
        other = self.flavor(memory_mb=160, lxd__nested_allowed="true",  # not while it runs
                            pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        for asked in ("stop container", "change container"):
            with self.subTest(asked):
                self.restart_at(asked)
                self.resize(self.the_server, other)
                self.restart_at("change container")
                self.revert(self.the_server)
                self.assert_runs()
        self.gone(self.the_server)

    @levels.exhaustive("a restart of the daemon is shown at resizes")
    def test_a_rescue_succeeds_or_leaves_the_server_to_a_hard_reboot(self) -> None:
        for asked in ("rename container", "create container"):
            with self.subTest(asked):
                self.restart_at(asked)
                self.api.post_server_action(self.the_server["id"], {"rescue": {}})
                if self.outcome(self.the_server, "rescue") == "Error":
                    self._wait_for_server_parameter(self.the_server, {"status": "ERROR", "OS-EXT-STS:task_state": None})
                    self.assertEqual([self.instance(self.the_server).name],
                                     [container.name for container in self.lxd.engine.containers()])
                    self._reboot_server(self.the_server, hard=True)
                else:
                    self._wait_for_state_change(self.the_server, "RESCUE")
                    self.api.post_server_action(self.the_server["id"], {"unrescue": None})
                    self._wait_for_state_change(self.the_server, "ACTIVE")
                self.assert_runs()
        self.gone(self.the_server)
