# SPDX-License-Identifier: Apache-2.0
"""Test faults of operation: nova and LXD disagree, a daemon restarts, two operations on one server at once."""

from tests.functional.nova import base  # isort: skip

from typing import Any, ClassVar

from nova import context as nova_context

from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests import levels
from tests.functional.lxd import POOL
from tests.functional.nova.interrupting import Interrupted
from tests.waiting import await_that

TIMEOUT = 20  # s for LXD to end a container


class OperationsCase(Interrupted):
    options: ClassVar = {("workarounds", "handle_virt_lifecycle_events"): True, ("lxd", "ready_timeout"): 60}

    def end(self, server: dict[str, Any]) -> None:
        self.lxd.engine.stop(self.container(server).name, timeout=TIMEOUT, force=True)

    def act(self, server: dict[str, Any], action: str, state: str, **how: Any) -> None:
        self.api.post_server_action(server["id"], {action: how or {}})
        self._wait_for_state_change(server, state)

    def settled(self, server: dict[str, Any], state: str) -> None:
        """Wait until the server is in ``state`` and nova does nothing with it."""
        self._wait_for_server_parameter(server, {"status": state, "OS-EXT-STS:task_state": None})

    def device_flavor(self) -> str:
        return self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1")

    def status(self, server: dict[str, Any]) -> Status:
        return self.container(server).status


@levels.exhaustive("tests/model/nova deletes at any moment",
                   tests=("test_a_server_deleted_while_nova_compute_was_down",))
class DisagreementTest(OperationsCase):
    """Each case leaves servers that can be used, and a host with nothing else on it."""

    @levels.exhaustive("a guest that ends itself and an end without a container remain")
    def test_power_states_that_nova_did_not_bring_about(self) -> None:
        server = self.server()
        self.end(server)
        self._wait_for_state_change(server, "SHUTOFF")
        self.lxd.engine.start(self.container(server).name)
        await_that(lambda: self.status(server) is Status.STOPPED, "the end of a container that nova has stopped")
        self.settled(server, "SHUTOFF")
        self._start_server(server)
        self.act(server, "pause", "PAUSED")
        self.end(server)
        self._wait_for_state_change(server, "SHUTOFF")
        self._start_server(server)
        self.act(server, "suspend", "SUSPENDED")
        self.end(server)
        self.act(server, "resume", "ACTIVE")
        self.assertEqual(Status.RUNNING, self.status(server))

    @levels.exhaustive("a guest that ends itself and an end without a container remain")
    def test_a_container_that_is_gone_can_be_rebuilt(self) -> None:
        server = self.server(self.device_flavor())
        held = self.held()
        self.lxd.engine.delete(self.container(server).name)
        self.api.post_server_action(server["id"], {"rebuild": {"imageRef": self.image()}})
        self.settled(server, "ACTIVE")
        self.assertEqual((Status.RUNNING, held), (self.status(server), self.held()))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_a_server_deleted_while_nova_compute_was_down(self) -> None:
        server = self.server(self.device_flavor())
        self.admin_api.put_service_force_down(self.service_id(), True)  # so that the API does not query it
        self.api.delete_server(server["id"])
        self._wait_until_deleted(server)
        self.assertEqual(Status.RUNNING, self.status(server))
        self.admin_api.put_service_force_down(self.service_id(), False)
        compute = self.restart_compute_service(self.computes[base.HOST])
        self.assertIn(f"is of server {server['id']}", self.stdlog.logger.output)
        compute.manager._cleanup_running_deleted_instances(nova_context.get_admin_context())
        self.assert_nothing_left()

    def service_id(self) -> str:
        (service,) = self.admin_api.get_services(binary="nova-compute")
        return service["id"]

    @levels.exhaustive("a host that is taken out of service stays")
    def test_an_orphan_is_told_and_not_touched(self) -> None:
        for name, marks in (("orphan", {"nova.uuid": "0" * 36}), ("foreign", {})):
            self.lxd.engine.create(ContainerSpec(name, self.lxd.imported(), Cpu(1), Memory(64 << 20), RootDisk(POOL),
                                                 labels=marks))
        self.restart_compute_service(self.computes[base.HOST])
        self.assertIn("Container orphan is of server 0000", self.stdlog.logger.output)
        self.assertNotIn("Container foreign", self.stdlog.logger.output)
        self.assertEqual({"orphan", "foreign"}, {state.name for state in self.lxd.engine.containers()})

    def test_a_host_is_taken_out_of_service(self) -> None:
        server = self.server()
        self.admin_api.put_service(self.service_id(), {"status": "disabled"})
        self.assertEqual("ERROR", self.server(expected="ERROR")["status"])
        self.assertEqual(Status.RUNNING, self.status(server))
        for words, method, arguments in (("switch off", self.driver.host_power_action, ("reboot",)),
                                         ("disable the", self.driver.host_maintenance_mode, (base.HOST, True))):
            self.assertIn(words, str(self.assertRaises(NotImplementedError, method, *arguments)))


class InterruptionTest(OperationsCase):
    @levels.exhaustive("EngineFaultTest restarts the daemon in the middle of a boot; units do of power operations")
    def test_the_daemon_restarts_in_the_middle_of_power_operations(self) -> None:
        server = self.server()
        for asked, action, how, state in (
            ("stop container", "os-stop", {}, "SHUTOFF"),
            ("start container", "os-start", {}, "ACTIVE"),
            ("stop container", "reboot", {"type": "HARD"}, "ACTIVE"),
            ("freeze container", "pause", {}, "PAUSED"),
            ("unfreeze container", "unpause", {}, "ACTIVE"),
        ):
            with self.subTest(action):
                self.restart_at(asked)
                self.api.post_server_action(server["id"], {action: how})
                self.settled(server, state)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_two_operations_at_once_leave_a_server_or_nothing(self) -> None:
        requests = ({"os-stop": None}, {"reboot": {"type": "HARD"}}, {"pause": None})
        for first in levels.budget(gate=(levels.turn(requests),), exhaustive=requests):
            with self.subTest(first):
                server = self.server(self.device_flavor())
                self.api.post_server_action(server["id"], first)
                self.api.delete_server(server["id"])
                self._wait_until_deleted(server)
                await_that(lambda: not self.lxd.engine.containers() and not self.held(), "the end of both")
                self.assert_nothing_left()
