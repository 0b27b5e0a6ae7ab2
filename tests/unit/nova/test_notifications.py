# SPDX-License-Identifier: Apache-2.0
"""Test the notification of the devices that no new server gets, as nova sends it."""

from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from oslo_config import fixture as config_fixture

from containerhost.allocation.faults import Fault
from containerhost.allocation.states import State
from containerhost.allocation.store import Consumer
from containerhost.devices.model import Kind
from nova_lxd_ext.hardware import notifications

UUID = "8a1d4a4e-0f6c-4c52-b1f2-5b8a3b6f9f53"
SICK = Fault("0000:3b:00.0", Kind.GPU, ("Xid 79",), None, State.DETACHED, None,
             Consumer("nova", "lxd", "instance-1", UUID))
TAINT = "tainted by the operator: fan"


class TestNotifications(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        config = self.useFixture(config_fixture.Config(nova.conf.CONF))
        config.config(host="node1")
        config.config(notification_format="versioned", group="notifications")
        self.notifier = mock.Mock()  # oslo.messaging's, of which nova makes one for each publisher
        self.useFixture(fixtures.MockPatch("nova.rpc.NOTIFIER", self.notifier))

    def sent(self, *found: Fault) -> dict[str, Any]:
        self.notifier.reset_mock()
        notifications.emit(found)
        ((priority, _, message),) = self.notifier.prepare.return_value.method_calls
        return {**message, "priority": priority, **self.notifier.prepare.call_args.kwargs}

    def devices(self, *found: Fault) -> list[dict[str, Any]]:
        payload = self.sent(*found)["payload"]["nova_object.data"]
        self.assertEqual("node1", payload["host"])
        return [device["nova_object.data"] for device in payload["devices"]]

    def test_faults_of_all_devices_are_in_one_message(self) -> None:
        message = self.sent(SICK)
        self.assertEqual(("device_faults.update", "nova-compute:node1", "error"),
                         (message["event_type"], message["publisher_id"], message["priority"]))
        blocked = Fault("0000:af:00.0", None, (), None, State.BLOCKED, "why", Consumer("lxdone", "lxd", "one-7", "7"))
        self.assertEqual([
            {"device": "0000:3b:00.0", "kind": "gpu", "complaints": ["Xid 79"], "taint": None, "state": "detached",
             "blocked": None, "instance_uuid": UUID},
            {"device": "0000:af:00.0", "kind": None, "complaints": [], "taint": None, "state": "blocked",
             "blocked": "why", "instance_uuid": None},
        ], self.devices(SICK, blocked))

    def test_what_needs_nobody_is_for_information(self) -> None:
        tainted = SICK._replace(complaints=(TAINT,), taint="fan", state=State.FREE, consumer=None)
        self.assertEqual(["info", "info", "error", "error"], [self.sent(*found)["priority"] for found in (
            (), (tainted,), (tainted._replace(complaints=("Xid 79", TAINT)),), (tainted._replace(blocked="why"),))])
