# SPDX-License-Identifier: Apache-2.0
"""Kill nova-compute during all that it does to a server: its next start finishes or undoes it, and frees the rest."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import objects
from nova.compute import rpcapi
from nova.scheduler.client import report

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from containerhost.engines.lxd.client import LxdClient
from nova_lxd_ext.instance import labels
from tests import levels
from tests.functional.nova.glance import Uploads, filtered
from tests.functional.nova.killing import Killer
from tests.waiting import await_that

IN_FLIGHT = 90.0  # s
QUEUE_TIMEOUT = 5.0  # s; these hosts have no other requests
STATES = {"ACTIVE": Status.RUNNING, "SHUTOFF": Status.STOPPED, "PAUSED": Status.FROZEN, "SUSPENDED": Status.FROZEN,
          "RESCUE": Status.RUNNING, "VERIFY_RESIZE": Status.RUNNING}


class RecoveryServers(base.LxdServers):
    options: ClassVar[Mapping[tuple[str | None, str], Any]] = {
        (None, "allow_resize_to_same_host"): True, ("lxd", "ready_timeout"): 60, (None, "shelved_offload_time"): 0}

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.server.recovery.QUEUE_TIMEOUT", QUEUE_TIMEOUT))
        Uploads(self.glance)
        self.glance.detail = filtered(self.glance)
        self.addCleanup(self._delete_images)
        self.killer = Killer()
        installed = self.killer.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)
        self.small = self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        self.large = self.flavor(memory_mb=160, pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1")
        self.cold = self.flavor(memory_mb=160, lxd__nested_allowed="true",
                                pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1")
        self.outcomes: list[tuple[str, int, str]] = []

    def act(self, server: Mapping[str, Any], **action: Any) -> None:
        self.api.post_server_action(server["id"], action)

    def status(self, server: Mapping[str, Any]) -> tuple[str, str | None]:
        shown = self.admin_api.get_server(server["id"])
        return shown["status"], shown["OS-EXT-STS:task_state"]

    def settled(self, server: Mapping[str, Any]) -> str:
        """The server's status, once nothing is going on: nova frees what a move has after the server's state."""
        def over() -> bool:
            busy = self.computes[base.HOST].manager._in_progress_tasks
            return self.status(server)[1] is None and not self.moving(server) and not busy
        try:
            await_that(over, f"server {server['id']} settles", IN_FLIGHT)
        except AssertionError as error:
            moves = [(move.id, move.status) for move in self.moves(server)]
            raise AssertionError(f"{error}: {self.status(server)}, moves {moves}, {self.events(server)}") from None
        return self.status(server)[0]

    @staticmethod
    def moves(server: Mapping[str, Any]) -> list[objects.Migration]:
        return list(objects.MigrationList.get_by_filters(nova_context.get_admin_context(),
                                                         {"instance_uuid": server["id"]}))

    def moving(self, server: Mapping[str, Any]) -> bool:
        return any(move.status in ("confirming", "reverting", "pre-migrating", "migrating", "post-migrating")
                   for move in self.moves(server))

    def restart(self) -> None:
        self.restart_compute_service(self.computes[base.HOST])

    def killed(self, server: Mapping[str, Any], begin: Callable[[], None], step: int) -> bool:
        """Kill nova-compute at ``step`` of what ``begin`` asks for; whether it had not finished before."""
        self.killer.arm(step, base.HOST)
        begin()

        def over() -> bool:
            return self.killer.happened.is_set() or self.idle(server)
        await_that(over, "the request ends or is killed", IN_FLIGHT)
        happened = self.killer.happened.is_set()
        self.killer.arm(None, base.HOST)
        if happened:
            self.restart()
        return happened

    def events(self, server: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return those of the server's latest action."""
        actions = self.admin_api.get_instance_actions(server["id"])
        url = f"/servers/{server['id']}/os-instance-actions/{actions[0]['request_id']}"
        return list(self.admin_api.api_get(url).body["instanceAction"]["events"])

    def idle(self, server: Mapping[str, Any]) -> bool:
        events = self.events(server)
        return self.status(server)[1] is None and not self.moving(server) and bool(events) \
            and all(event["finish_time"] for event in events)

    # Invariants while no request is in progress

    def leftovers(self, server: Mapping[str, Any]) -> list[str]:
        """Return what is wrong on the host, in nova's records and in Placement, in words."""
        self.computes[base.HOST].manager.update_available_resource(nova_context.get_admin_context())
        return [*self._host_leftovers(server), *self._nova_leftovers(server)]

    def _host_leftovers(self, server: Mapping[str, Any]) -> Iterator[str]:
        instance, status = self.instance(server), self.status(server)[0]
        found = {state.name: state.status for state in self.lxd.engine.containers()}
        expected = {instance.name: STATES[status]} if status in STATES else {}
        if status == "RESCUE":
            expected[labels.aside(instance)] = Status.STOPPED
        if status != "ERROR" and found != expected:
            yield f"containers {found} for a server that is {status}"
        held = set(AllocationStore(self.state / "owners").records())
        claimed = {device.address for device in instance.pci_devices}
        if held != (claimed if status in STATES and status != "VERIFY_RESIZE" else held & claimed):
            yield f"records of devices {sorted(held)}, nova's are {sorted(claimed)}, status {status}"
        if status != "VERIFY_RESIZE":
            requests = {request.request_id for request in instance.pci_requests.requests}
            extra = [device.address for device in instance.pci_devices if device.request_id not in requests]
            if extra:
                yield f"devices {extra} that no request of the server is for"

    def _nova_leftovers(self, server: Mapping[str, Any]) -> Iterator[str]:
        context, status = nova_context.get_admin_context(), self.status(server)[0]
        client = report.report_client_singleton()
        for move in objects.MigrationList.get_by_filters(context, {"instance_uuid": server["id"]}):
            has = client.get_allocations_for_consumer(context, move.uuid)
            if bool(has) != (move.status == "finished" and status == "VERIFY_RESIZE"):
                yield f"move {move.id} is {move.status} and has {has} in Placement"
        allocated: dict[str, int] = {}
        for allocation in client.get_allocations_for_consumer(context, server["id"]).values():
            allocated.update(allocation["resources"])
        memory = self.instance(server).flavor.memory_mb
        wanted = None if status == "SHELVED_OFFLOADED" else memory
        if allocated.get("MEMORY_MB") != wanted:
            yield f"{allocated.get('MEMORY_MB')} MiB in Placement, and the server has {wanted}"

    def check(self, name: str, server: Mapping[str, Any], step: int, happened: bool) -> str:
        try:
            status = self.settled(server)
        except AssertionError as error:
            raise AssertionError(f"{name} killed at step {step}: {error}") from None
        if happened:
            self.outcomes.append((name, step, status))
        wrong = self.leftovers(server)
        self.assertEqual([], wrong, f"{name} killed at step {step}: the server is {status}")
        return status

    # Operations: preparation of the server, and the request

    def normal(self, server: Mapping[str, Any]) -> None:
        """Bring the server back to ACTIVE with its small flavor, by requests that its user could make."""
        status = self.settled(server)
        back: dict[str, dict[str, Any]] = {
            "VERIFY_RESIZE": {"revertResize": None}, "RESCUE": {"unrescue": None}, "PAUSED": {"unpause": None},
            "SHELVED_OFFLOADED": {"unshelve": None}, "SUSPENDED": {"resume": None}, "SHUTOFF": {"os-start": None},
            "ERROR": {"rebuild": {"imageRef": self.instance(server).image_ref}}}
        if status in back:
            self.act(server, **back[status])
            self.assertEqual("ACTIVE", self.settled(server))
        if self.instance(server).flavor.flavorid != self.small:
            self.resize(server, self.small)
            self.act(server, confirmResize=None)
            self.assertEqual("ACTIVE", self.settled(server))

    def operations(self) -> dict[str, tuple[Callable[[Any], None], Callable[[Any], None]]]:
        def resized(flavor: str) -> Callable[[Any], None]:
            return lambda server: self.resize(server, flavor)

        def nothing(server: Any) -> None:
            """The server is as it must be."""

        def after(status: str, **action: Any) -> Callable[[Any], None]:
            def prepare(server: Any) -> None:
                self.act(server, **action)
                self._wait_for_state_change(server, status)
                # Nova frees a shelved server's devices after that: killed in between, it schedules without them.
                await_that(lambda: self.idle(server), f"{action} ends", IN_FLIGHT)
            return prepare

        def ask(**action: Any) -> Callable[[Any], None]:
            return lambda server: self.act(server, **action)
        return {
            "live resize": (nothing, ask(resize={"flavorRef": self.large})),
            "cold resize": (nothing, ask(resize={"flavorRef": self.cold})),
            "revert of a live resize": (resized(self.large), ask(revertResize=None)),
            "revert of a cold resize": (resized(self.cold), ask(revertResize=None)),
            "confirm": (resized(self.large), ask(confirmResize=None)),
            "rescue": (nothing, ask(rescue={})),
            "unrescue": (after("RESCUE", rescue={}), ask(unrescue=None)),
            "rebuild": (nothing, lambda server: self.act(server, rebuild={"imageRef": server["image"]["id"]})),
            "hard reboot": (nothing, ask(reboot={"type": "HARD"})),
            "soft reboot": (nothing, ask(reboot={"type": "SOFT"})),
            "shelve": (nothing, ask(shelve=None)),
            "unshelve": (after("SHELVED_OFFLOADED", shelve=None), ask(unshelve=None)),
            "snapshot": (nothing, ask(createImage={"name": "one"})),
            "pause": (nothing, ask(pause=None)),
            "unpause": (after("PAUSED", pause=None), ask(unpause=None)),
            "suspend": (nothing, ask(suspend=None)),
            "resume": (after("SUSPENDED", suspend=None), ask(resume=None)),
            "stop": (nothing, ask(**{"os-stop": None})),
            "start": (after("SHUTOFF", **{"os-stop": None}), ask(**{"os-start": None})),
        }

    def effects(self, server: Mapping[str, Any], name: str) -> tuple[str | None, ...]:
        """Return what each step of the operation changes outside when nothing kills it."""
        prepare, request = self.operations()[name]
        prepare(server)
        self.killer.arm(None, base.HOST)
        request(server)
        await_that(lambda: self.idle(server), f"{name} ends", IN_FLIGHT)
        effects = self.killer.effects
        self.check(name, server, -1, False)
        self.normal(server)
        return effects

    def kill_once(self, server: Mapping[str, Any], name: str, step: int) -> bool:
        prepare, request = self.operations()[name]
        prepare(server)
        happened = self.killed(server, lambda: request(server), step)
        self.check(name, server, step, happened)
        self.normal(server)
        self.assertEqual([], self.leftovers(server), f"{name} killed at step {step}, then brought back")
        return happened


@levels.exhaustive("tests/model/nova loses each message", tests=("test_resize_lost_between_its_two_requests",))
class RecoveryTest(RecoveryServers):
    def each(self, *names: str) -> None:
        server = self.server(self.small)
        server = self.admin_api.get_server(server["id"])
        for name in names:
            for step in levels.points(self.effects(server, name)):
                self.kill_once(server, name, step)
        self._delete_server(server)
        self.assert_nothing_left()

    def each_in_turn(self, *names: str) -> None:
        """Try similar operations, in the gate the one whose turn it is."""
        self.each(*levels.budget(gate=(levels.turn(names),), exhaustive=names))

    def test_one_request_of_all(self) -> None:
        self.each(levels.turn(list(self.operations())))

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_live_resize(self) -> None:
        self.each("live resize")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_cold_resize(self) -> None:
        self.each("cold resize")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_revert(self) -> None:
        self.each_in_turn("revert of a live resize", "revert of a cold resize")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_confirm(self) -> None:
        self.each("confirm")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_rescue(self) -> None:
        self.each_in_turn("rescue", "unrescue")

    @levels.exhaustive("another moment of a kill, which unit tests of the recovery and tests/model have")
    def test_killed_while_the_guest_shuts_down(self) -> None:
        """The engine has asked it to: the server that still runs at the next start stops a moment later."""
        server = self.admin_api.get_server(self.server(self.small)["id"])
        request = LxdClient.request

        def asked(client: LxdClient, *args: Any, **kwargs: Any) -> Any:
            response = request(client, *args, **kwargs)
            if kwargs["asked"].startswith("stop container"):
                self.killer.arm(0, base.HOST)
            return response
        for name in ("rescue", "soft reboot", "shelve"):
            with self.subTest(name):
                with mock.patch.object(LxdClient, "request", asked):
                    self.operations()[name][1](server)
                    await_that(self.killer.happened.is_set, "nova-compute is killed", IN_FLIGHT)
                self.killer.arm(None, base.HOST)
                self.restart()
                self.assertEqual("ACTIVE", self.settled(server))
                self.assertEqual([], self.leftovers(server))
                self.normal(server)
                self.assertEqual([], self.leftovers(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_rebuild(self) -> None:
        self.each("rebuild")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_reboot(self) -> None:
        self.each_in_turn("hard reboot", "soft reboot")

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_shelve(self) -> None:
        self.each_in_turn("shelve", "unshelve")

    @levels.exhaustive("another moment of a kill, which unit tests of the recovery and tests/model have")
    def test_unshelving_whose_image_is_gone_is_finished(self) -> None:
        """Nova deletes the image of a shelving before it records that the server runs, and a lock is an action too."""
        server = self.admin_api.get_server(self.server(self.small)["id"])
        self.act(server, shelve=None)
        self._wait_for_state_change(server, "SHELVED_OFFLOADED")
        delete = self.glance.delete

        def deleted(context: Any, image_id: str) -> None:
            delete(context, image_id)
            self.act(server, lock=None)
            self.killer.arm(0, base.HOST)
        self.glance.delete = deleted
        self.act(server, unshelve=None)
        await_that(self.killer.happened.is_set, "nova-compute is killed", IN_FLIGHT)
        self.killer.arm(None, base.HOST)
        self.restart()
        self.assertEqual("ACTIVE", self.settled(server))
        self.act(server, unlock=None)
        self.assertEqual([], self.leftovers(server))
        self.act(server, reboot={"type": "HARD"})
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_snapshot(self) -> None:
        self.each("snapshot")

    @levels.exhaustive("another moment of a kill, which unit tests of the recovery and tests/model have")
    def test_killed_before_the_first_event(self) -> None:
        """Nova has recorded nothing of the request but the task state that its API set: nova's own start, the driver
        some time later or an administrator's reset-state ends it, with nothing done and nothing left."""
        found = {}
        server = self.admin_api.get_server(self.server(self.small)["id"])
        for name in ("suspend", "shelve", "rescue", "pause", "snapshot", "rebuild", "stop", "soft reboot"):
            self.killed(server, lambda name=name: self.operations()[name][1](server), 0)
            found[name] = self.status(server)[1]
            if found[name] is not None and name != "rebuild":
                self.act(server, **{"os-resetState": {"state": "active"}})
            self.check(name, server, 0, happened=True)
            self.normal(server)
        stuck = {name: state for name, state in found.items() if state is not None}
        self.assertEqual({"suspend": "suspending", "shelve": "shelving", "rescue": "rescuing",
                          "rebuild": "rebuilding"}, stuck)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_resize_lost_between_its_two_requests(self) -> None:
        """nova-compute took the second one and was killed before its event. Nova would forget the server's task state,
        and keep the move and all that it has claimed."""
        server = self.admin_api.get_server(self.server(self.small)["id"])
        for flavor in (self.large, self.cold):
            with mock.patch.object(rpcapi.ComputeAPI, "resize_instance") as second:
                self.act(server, resize={"flavorRef": flavor})
                await_that(lambda second=second: second.called, "nova-compute has claimed", IN_FLIGHT)
            self.restart()
            self.assertEqual("ACTIVE", self.settled(server))
            self.assertEqual([], self.leftovers(server))
        self.resize(server, self.large)
        self.normal(server)
        self.assertEqual([], self.leftovers(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("another moment of a kill, which unit tests of the recovery and tests/model have")
    def test_move_lost_between_its_last_two_requests(self) -> None:
        """nova-compute took the second one and was killed before its event: nova would never send it again."""
        server = self.admin_api.get_server(self.server(self.small)["id"])
        for request, second, status in (
                ({"resize": {"flavorRef": self.cold}}, "finish_resize", "VERIFY_RESIZE"),
                ({"revertResize": None}, "finish_revert_resize", "ACTIVE")):
            with self.subTest(second):
                with mock.patch.object(rpcapi.ComputeAPI, second) as lost:
                    self.act(server, **request)
                    await_that(lambda lost=lost: lost.called, "the first request ends", IN_FLIGHT)
                    await_that(lambda: all(event["finish_time"] for event in self.events(server)), "it has ended")
                self.restart()
                self.assertEqual(status, self.settled(server))
                self.assertEqual([], self.leftovers(server))
        self.normal(server)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("another moment of a kill, which unit tests of the recovery and tests/model have")
    def test_move_whose_last_request_waits_in_the_queue(self) -> None:
        """It is not sent a second time: nova would call the server broken."""
        server = self.admin_api.get_server(self.server(self.small)["id"])
        sent: list[Callable[[], None]] = []

        def keep(api: rpcapi.ComputeAPI, *args: Any, **kwargs: Any) -> None:
            sent.append(lambda: finish(api, *args, **kwargs))
        finish = rpcapi.ComputeAPI.finish_resize
        with mock.patch.object(rpcapi.ComputeAPI, "finish_resize", keep):
            self.act(server, resize={"flavorRef": self.cold})
            await_that(lambda: sent, "the first request ends", IN_FLIGHT)
            await_that(lambda: all(event["finish_time"] for event in self.events(server)), "it has ended")
            self.restart()
            sent[0]()
            self.assertEqual("VERIFY_RESIZE", self.settled(server))
            time.sleep(QUEUE_TIMEOUT + 1)  # nothing may happen, so there is nothing to wait for
        self.assertEqual(1, len(sent))
        self.normal(server)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("test_one_request_of_all kills one of these; tests/model kills at every step")
    def test_power(self) -> None:
        self.each_in_turn("pause", "unpause", "suspend", "resume", "stop", "start")


