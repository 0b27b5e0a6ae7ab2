# SPDX-License-Identifier: Apache-2.0
"""nova-compute of a host is killed while a server leaves it for another one."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report

from containerhost.engines.contract import Status
from tests import levels
from tests.functional.nova import base
from tests.functional.nova.killing import Killer
from tests.functional.nova.twohosts import FIRST, SECOND
from tests.waiting import await_that

TIMEOUT = 300.0  # s
SILENCE = 20  # s that the other host may take for an answer
UNDER_WAY = ("confirming", "reverting", "pre-migrating", "migrating", "post-migrating")


@levels.exhaustive("tests/model/nova kills and loses each request", tests=("test_migration_killed_on_the_old_host",))
class MovesTest(twohosts.TwoHosts):
    def setUp(self) -> None:
        super().setUp()
        base.CONF.set_override("rpc_response_timeout", SILENCE)
        self.addCleanup(base.CONF.clear_override, "rpc_response_timeout")
        self.killer = Killer()
        installed = self.killer.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)
        flavor = self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        self.the_server = self.server(flavor, host=FIRST)

    def act(self, **action: Any) -> None:
        self.admin_api.post_server_action(self.the_server["id"], action)

    def status(self) -> tuple[str, str | None]:
        shown = self.admin_api.get_server(self.the_server["id"])
        return shown["status"], shown["OS-EXT-STS:task_state"]

    def moves(self) -> list[objects.Migration]:
        return list(objects.MigrationList.get_by_filters(nova_context.get_admin_context(),
                                                         {"instance_uuid": self.the_server["id"]}))

    def settled(self) -> bool:
        """Nova ends its record of a move before the server's own."""
        moves, (status, task) = self.moves(), self.status()
        waits = [move for move in moves if move.status == "finished"]
        return task is None and all(move.status not in UNDER_WAY for move in moves) \
            and bool(waits) == (status == "VERIFY_RESIZE")

    def idle(self) -> bool:
        action = self.admin_api.get_instance_actions(self.the_server["id"])[0]
        url = f"/servers/{self.the_server['id']}/os-instance-actions/{action['request_id']}"
        events = self.admin_api.api_get(url).body["instanceAction"]["events"]
        return self.settled() and bool(events) and all(event["finish_time"] for event in events)

    def effects(self, host: str, request: Callable[[], None]) -> tuple[str | None, ...]:
        self.killer.arm(None, host)
        request()
        await_that(self.idle, "the request ends", TIMEOUT)
        self.assert_nothing_more()
        return self.killer.effects

    def killed(self, host: str, step: int, request: Callable[[], None]) -> None:
        self.killer.arm(step, host)
        request()
        await_that(lambda: self.killer.happened.is_set() or self.idle(), "the request ends or is killed", TIMEOUT)
        self.killer.arm(None, host)
        self.restart_compute_service(self.computes[host])
        await_that(self.settled, f"the server settles after step {step} on {host}", TIMEOUT)
        self.assert_nothing_more(f"killed at step {step} on {host}")

    def assert_nothing_more(self, message: str = "") -> None:
        status, home = self.status()[0], self.host_of(self.the_server)
        self.assertIn(status, ("ACTIVE", "VERIFY_RESIZE"), message)
        for host, compute in self.computes.items():
            compute.manager.update_available_resource(nova_context.get_admin_context())
            found = [state.status for state in self.on(host).values()]
            kept = [Status.STOPPED] if status == "VERIFY_RESIZE" else []
            self.assertEqual([Status.RUNNING] if host == home else kept, found, f"containers on {host}, {message}")
            self.assertEqual(int(host == home), len(self.held_on(host)), f"devices of {host}, {message}")
        context, client = nova_context.get_admin_context(), report.report_client_singleton()
        for move in self.moves():
            has = client.get_allocations_for_consumer(context, move.uuid)
            self.assertEqual(move.status == "finished" and status == "VERIFY_RESIZE", bool(has),
                             f"allocations of a move that is {move.status}, {message}")
        self.assertEqual(1, len(client.get_allocations_for_consumer(context, self.the_server["id"])), message)

    def back_on_the_first(self) -> None:
        if self.status()[0] == "VERIFY_RESIZE":
            self.revert(self.the_server)
        if self.host_of(self.the_server) != FIRST:
            self._migrate_server(self.the_server)
            self._confirm_resize(self.the_server)

    def migrate(self) -> None:
        self.act(migrate=None)

    def test_migration_killed_on_the_old_host(self) -> None:
        self.each(FIRST, lambda: None, self.migrate)

    def moved(self) -> None:
        self._migrate_server(self.the_server)

    @levels.exhaustive("nova-compute of either host recovers in the same way; a migration and an evacuation remain")
    def test_confirm_killed_on_the_old_host(self) -> None:
        self.each(FIRST, self.moved, lambda: self.act(confirmResize=None))

    @levels.exhaustive("nova-compute of either host recovers in the same way; a migration and an evacuation remain")
    def test_migration_killed_on_the_new_host(self) -> None:
        self.each(SECOND, lambda: None, self.migrate)

    @levels.exhaustive("nova-compute of either host recovers in the same way; a migration and an evacuation remain")
    def test_revert_killed_on_the_new_host(self) -> None:
        self.each(SECOND, self.moved, lambda: self.act(revertResize=None))

    @levels.exhaustive("nova-compute of either host recovers in the same way; a migration and an evacuation remain")
    def test_revert_killed_on_the_old_host(self) -> None:
        self.each(FIRST, self.moved, lambda: self.act(revertResize=None))

    def each(self, host: str, prepare: Callable[[], Any], request: Callable[[], None]) -> None:
        prepare()
        effects = self.effects(host, request)
        self.back_on_the_first()
        for step in levels.points(effects):
            prepare()
            self.killed(host, step, request)
            self.back_on_the_first()
        self._delete_server(self.the_server)
        self.assert_both_empty()

    # Evacuation

    @levels.exhaustive("a migration remains; tests/model kills evacuations at every step")
    def test_evacuation_killed(self) -> None:
        self.old_host_fails()
        self.killer.arm(None, SECOND)
        self.evacuate()
        await_that(self.idle, "the evacuation ends", TIMEOUT)
        effects = self.killer.effects
        self.old_host_returns()
        for step in levels.points(effects):
            self.old_host_fails()
            self.killer.arm(step, SECOND)
            self.evacuate()
            await_that(lambda: self.killer.happened.is_set() or self.idle(), "it ends or is killed", TIMEOUT)
            self.killer.arm(None, SECOND)
            self.restart_compute_service(self.computes[SECOND])
            await_that(self.settled, f"the server settles after step {step}", TIMEOUT)
            if self.status()[0] == "ERROR":
                self.assert_nothing_arrived(f"killed at step {step}")
                self.evacuate()
                await_that(self.idle, "the evacuation that is asked for again ends", TIMEOUT)
            self.old_host_returns(f"killed at step {step}")
        self._delete_server(self.the_server)
        self.assert_both_empty()

    def evacuate(self) -> None:
        self.act(evacuate={})

    def old_host_fails(self) -> None:
        first = self.computes[FIRST]
        first.stop()
        self.admin_api.put_service_force_down(first.service_ref.uuid, True)

    def old_host_returns(self, message: str = "") -> None:
        """The server runs on the new host alone. Let it go back."""
        self.assertEqual(SECOND, self.host_of(self.the_server), message)
        first = self.computes[FIRST]
        self.restart_compute_service(first)
        self.admin_api.put_service_force_down(first.service_ref.uuid, False)
        if self.status()[0] == "SHUTOFF":  # what nova evacuates stays off, unless it was in ERROR
            self._start_server(self.the_server)
        self.assert_nothing_more(message)
        self.back_on_the_first()

    def assert_nothing_arrived(self, message: str) -> None:
        self.assertEqual(FIRST, self.host_of(self.the_server), message)
        self.assertEqual(({}, set()), (self.on(SECOND), self.held_on(SECOND)), message)
        context, client = nova_context.get_admin_context(), report.report_client_singleton()
        self.assertEqual([{}], [client.get_allocations_for_consumer(context, move.uuid) for move in self.moves()][-1:])
        self.assertEqual(1, len(client.get_allocations_for_consumer(context, self.the_server["id"])), message)
