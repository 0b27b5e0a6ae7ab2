# SPDX-License-Identifier: Apache-2.0
"""Test the requests to the two daemons, and the notifications when a transfer is over."""

from typing import Any
from unittest import mock

import testtools

from containerhost import errors
from containerhost.engines.capabilities import Offer
from containerhost.engines.lxd import migration
from containerhost.engines.lxd.migration import Transfers
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk

NAME = "instance-0000002a"
OFFER = Offer(NAME, "https://one:8443/1.0/operations/x", "PEM",
              {"volatile.last_state.idmap": "[]", "image.os": "busybox"}, {"control": "c", "fs": "f"}, "x86_64")
SPEC = ContainerSpec(NAME, "", Cpu(1), Memory(2**27), RootDisk("default", 2**30), labels={"nova.uuid": "u"})


class BodyTest(testtools.TestCase):
    def test_the_receiver_fetches_with_its_own_configuration(self) -> None:
        body = migration.instance(SPEC, OFFER, frozenset())
        self.assertEqual({
            "type": "migration", "mode": "pull", "operation": OFFER.operation, "live": False, "instance_only": True,
            "certificate": "PEM", "secrets": {"control": "c", "fs": "f"}}, body["source"])
        self.assertEqual(("x86_64", "u", "[]", "busybox", str(2**27)), (
            body["architecture"], *(body["config"][key] for key in (
                "user.nova.uuid", "volatile.last_state.idmap", "image.os", "limits.memory"))))

    def test_only_what_belongs_to_the_files_comes_along(self) -> None:
        there = {"volatile.last_state.idmap": "[]", "volatile.idmap.base": "100000", "volatile.uuid": "x",
                 "image.os": "busybox", "limits.cpu": "1", "security.nesting": "true"}
        self.assertEqual({"volatile.last_state.idmap": "[]", "image.os": "busybox"}, migration.carried(there))


class TransfersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = mock.Mock()
        self.transfers = Transfers(self.client, mock.Mock())

    def operation(self, name: str, description: str = migration.SENDING, status: int = 103) -> dict[str, Any]:
        return {"id": f"{name}-{status}", "description": description, "status_code": status,
                "resources": {"instances": [f"/1.0/instances/{name}?project=nova"]}}

    def test_only_transfers_of_the_container_that_go_on_are_ended(self) -> None:
        self.client.operations.return_value = [
            self.operation(NAME), self.operation(NAME, status=200), self.operation("other"),
            self.operation(NAME, description="Starting instance"), self.operation(f"x{NAME}")]
        self.transfers.withdraw(NAME)
        self.assertEqual([("delete", "operations", f"{NAME}-103")],
                         [call.args for call in self.client.request.call_args_list])

    def test_a_transfer_that_ended_meanwhile_is_no_error(self) -> None:
        self.client.operations.return_value = [self.operation(NAME)]
        self.client.request.side_effect = errors.EngineNotFound("operation not found")
        self.transfers.withdraw(NAME)

    def test_the_files_are_not_changed_at_the_first_start(self) -> None:
        fetched = {"config": {migration.TEMPLATE: "copy", "limits.cpu": "1"}}
        self.client.instance.return_value = (fetched, "etag")
        self.client.extensions = frozenset()
        self.transfers.fetch(SPEC, OFFER, 60)
        self.client.replace_instance.assert_called_once_with(NAME, {"config": {"limits.cpu": "1"}}, "etag")
