# SPDX-License-Identifier: Apache-2.0
import datetime
from typing import Any

import fixtures
import testtools
from nova import objects
from nova.compute import instance_actions

from nova_lxd_ext.server import lostrequests
from tests.unit.nova import records

NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


class LostTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.actions: list[objects.InstanceAction] = []  # the latest first
        self.result: str | None = "Success"
        self.events: dict[int, list[objects.InstanceActionEvent]] = {}
        self.useFixture(fixtures.MockPatchObject(objects.InstanceActionList, "get_by_instance_uuid",
                                                 side_effect=self.page))
        self.useFixture(fixtures.MockPatchObject(objects.InstanceActionEventList, "get_by_action",
                                                 side_effect=lambda _, action: self.events.get(action, [])))

    def page(self, context: Any, uuid: str, limit: int, marker: str | None) -> list[objects.InstanceAction]:
        begin = 1 + [action.request_id for action in self.actions].index(marker) if marker else 0
        return self.actions[begin:begin + limit]

    def record(self, action: str, *events: tuple[str, str, bool]) -> None:
        """Record an action and its events: method, host, whether it has ended."""
        number = len(self.actions)
        self.actions.insert(0, objects.InstanceAction(id=number, action=action, request_id=f"req-{number}"))
        self.events[number] = [objects.InstanceActionEvent(event=f"compute_{method}", host=host,
                                                           finish_time=NOW if ended else None, result=self.result)
                               for method, host, ended in events]

    def lost(self) -> lostrequests.Lost:
        return lostrequests.of(None, records.UUID, "one")

    def test_server_without_actions_lost_nothing(self) -> None:
        self.assertEqual((None, frozenset()), (self.lost().action, self.lost().methods))

    def test_requests_of_latest_task(self) -> None:
        self.record(instance_actions.REBUILD, ("rebuild_instance", "one", False))
        self.record(instance_actions.RESIZE, ("prep_resize", "two", True), ("resize_instance", "one", False))
        self.assertEqual(({"resize_instance"}, {"prep_resize"}, {"prep_resize"}),
                         (self.lost().methods, self.lost().others, self.lost().ended))

    def test_requests_of_the_latest_task_that_has_begun_a_method(self) -> None:
        self.record(instance_actions.RESIZE, ("prep_resize", "two", True), ("resize_instance", "one", False))
        self.record(instance_actions.MIGRATE, ("prep_resize", "one", False))
        self.assertEqual({"prep_resize"}, self.lost().methods)
        self.assertEqual({"resize_instance"}, lostrequests.of(None, records.UUID, "one", "resize_instance").methods)
        self.assertIsNone(lostrequests.of(None, records.UUID, "one", "finish_resize").action)

    def test_request_that_failed(self) -> None:
        self.record(instance_actions.RESCUE, ("rescue_instance", "one", True))
        self.assertEqual(frozenset(), self.lost().failed)
        self.result = "Error"
        self.record(instance_actions.RESCUE, ("rescue_instance", "one", True))
        self.assertEqual({"rescue_instance"}, self.lost().failed)

    def test_request_that_no_host_has_begun(self) -> None:
        self.record(instance_actions.RESCUE)
        self.assertTrue(self.lost().is_unbegun)
        self.record(instance_actions.RESCUE, ("rescue_instance", "two", True))
        self.assertFalse(self.lost().is_unbegun)

    def test_actions_without_a_task_hide_none(self) -> None:
        """A tenant may lock a server at any time and as often as it likes."""
        self.record(instance_actions.RESIZE, ("resize_instance", "one", False))
        for _ in range(lostrequests.PAGE):
            self.record(instance_actions.LOCK)
            self.record(instance_actions.UNLOCK)
        self.record(instance_actions.ATTACH_VOLUME, ("attach_volume", "one", True))
        self.assertEqual({"resize_instance"}, self.lost().methods)

    def test_server_with_only_such_actions_lost_nothing(self) -> None:
        self.record(instance_actions.LOCK)
        self.assertIsNone(self.lost().action)

    def test_reset_by_an_administrator_ends_the_task(self) -> None:
        self.record(instance_actions.RESIZE, ("resize_instance", "one", False))
        self.record(instance_actions.RESET_STATE)
        self.assertEqual(frozenset(), self.lost().methods)
