"""The daemon restarts in the middle of what is done to a server: it is done all the same, or all is as it was."""

from tests.functional.nova import base  # isort: skip

from typing import ClassVar

from containerhost.engines import Status
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

    def test_volumes_and_ports_come_and_go(self) -> None:
        server, port, (volume, _) = self.the_server, self.port(), self.cinder.volume()
        self.restart_at("change container")
        self.attach(server, volume)
        self.assertEqual(["/dev/vdb"], self.nodes(server))
        self.write(server, "kept")
        self.restart_at("change container")
        self.detach(server, volume)
        self.assertEqual([], self.nodes(server))
        self.assert_free(volume)
        self.restart_at("change container")
        self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": port["id"]}})
        self.assert_is_wired(server, port)
        self.restart_at("change container")
        self.api.detach_interface(server["id"], port["id"])
        self._wait_for_assert(lambda: self.assertEqual([], self.switch.ports()), max_retries=base.PATIENCE)
        self.assert_runs()
        self.gone(server)

    def test_a_resize_succeeds_or_changes_nothing(self) -> None:
        large = self.flavor(memory_mb=160, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        for asked in ("stop container", "change container"):
            with self.subTest(asked):
                self.restart_at(asked)
                self.resize(self.the_server, large)
                self.restart_at("change container")
                self.revert(self.the_server)
                self.assert_runs()
        self.gone(self.the_server)

    def test_a_failed_rescue_leaves_the_server_to_a_hard_reboot(self) -> None:
        for asked in ("rename container", "create container"):
            with self.subTest(asked):
                self.restart_at(asked)
                self.api.post_server_action(self.the_server["id"], {"rescue": {}})
                self._wait_for_server_parameter(self.the_server, {"status": "ERROR", "OS-EXT-STS:task_state": None})
                self.assertEqual([self.instance(self.the_server).name],
                                 [container.name for container in self.lxd.engine.containers()])
                self._reboot_server(self.the_server, hard=True)
                self.assert_runs()
        self.gone(self.the_server)
