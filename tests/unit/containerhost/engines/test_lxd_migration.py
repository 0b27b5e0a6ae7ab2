# SPDX-License-Identifier: Apache-2.0
"""Test the requests to the two daemons, and the notifications when a transfer is over."""

import dataclasses
from typing import Any
from unittest import mock

import testtools

from containerhost import errors
from containerhost.engines.capabilities import ChangesOffer, Offer
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

    def test_offer_of_anybody_sets_no_other_key(self) -> None:
        hostile = dataclasses.replace(OFFER, config={"raw.lxc": "lxc.mount.auto = proc:rw", "image.os": "busybox"})
        config = migration.instance(SPEC, hostile, frozenset())["config"]
        self.assertNotIn("raw.lxc", config)
        self.assertEqual("busybox", config["image.os"])

    def test_only_what_belongs_to_the_files_comes_along(self) -> None:
        there = {"volatile.last_state.idmap": "[]", "volatile.idmap.base": "100000", "volatile.uuid": "x",
                 "image.os": "busybox", "limits.cpu": "1", "security.nesting": "true"}
        self.assertEqual({"volatile.last_state.idmap": "[]", "image.os": "busybox"}, migration.carried(there))


class TransfersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = mock.Mock()
        self.client.get.return_value = []  # snapshots
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


class ChangesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client, self.create = mock.Mock(), mock.Mock()
        self.client.extensions = frozenset({migration.LISTS_SUBVOLUMES})
        self.client.pool.return_value = {"driver": "btrfs"}
        self.client.instance.return_value = ({
            "name": NAME, "architecture": "x86_64", "config": {},
            "expanded_devices": {"root": {"pool": "default"}}}, "etag")
        self.client.server.return_value = {"environment": {"certificate": "PEM"}}
        self.client.request.return_value.json.return_value = {"type": "async", "metadata": {"id": "x", "metadata": {}}}
        self.transfers = Transfers(self.client, self.create)
        self.has(())

    def has(self, snapshots: tuple[str, ...]) -> None:
        self.client.get.return_value = [f"/1.0/instances/{NAME}/snapshots/{name}" for name in snapshots]

    def requests(self) -> list[tuple[Any, ...]]:
        return [(call.args[0], *call.args[3:], (call.kwargs.get("json") or {}).get("name"))
                for call in self.client.request.call_args_list]

    def test_first_round(self) -> None:
        offer = self.transfers.offer_changes(NAME, "https://one:8443")
        assert offer is not None
        self.assertEqual(("btrfs", "https://one:8443/1.0/operations/x"), (offer.pool_type, offer.operation))
        self.assertEqual([("post", "snapshots", "containerhost-move-000001"), ("post", None)], self.requests())
        self.assertFalse(self.client.request.call_args.kwargs["json"]["instance_only"])

    def test_next_round_deletes_nothing(self) -> None:
        self.has(("containerhost-move-000008", "containerhost-move-000009", "mine"))
        self.transfers.offer_changes(NAME, "https://one:8443")
        self.assertEqual([("post", "snapshots", "containerhost-move-000010"), ("post", None)], self.requests())

    def test_not_offered_where_each_round_would_send_everything(self) -> None:
        for driver, extensions in (("dir", [migration.LISTS_SUBVOLUMES]), ("btrfs", [])):
            with self.subTest(driver):
                self.client.pool.return_value, self.client.extensions = {"driver": driver}, frozenset(extensions)
                self.assertIsNone(self.transfers.offer_changes(NAME, "https://one:8443"))
                self.client.request.assert_not_called()

    def test_withdrawal_removes_own_snapshots_only(self) -> None:
        self.client.operations.return_value = []
        self.has(("containerhost-move-000009", "mine"))
        self.transfers.withdraw(NAME)
        self.assertEqual([("delete", "snapshots", "containerhost-move-000009", None)], self.requests())

    def test_purge_removes_what_a_withdrawal_could_not(self) -> None:
        self.client.operations.return_value = []
        self.client.instances_with_states.return_value = [
            {"name": NAME, "snapshots": [{"name": "containerhost-move-000009"}, {"name": "mine"}]},
            {"name": "other", "snapshots": [{"name": "containerhost-move-000001"}]}, {"name": "c2", "snapshots": None},
            {"name": "c3"}]
        self.has(("containerhost-move-000009", "mine"))
        self.transfers.purge({NAME, "c2", "c3"})
        self.assertEqual([("delete", "snapshots", "containerhost-move-000009", None)], self.requests())
        self.assertEqual([NAME], [call.args[2] for call in self.client.request.call_args_list])

    def test_withdrawal_does_not_hide_the_error_that_led_to_it(self) -> None:
        self.client.operations.return_value = []
        self.client.get.side_effect = errors.EngineUnavailable("away")
        self.transfers.withdraw(NAME)

    def test_end_of_a_refresh_must_be_known(self) -> None:
        """A creation whose end LXD forgot is judged by the container, which says nothing about a refresh."""
        offer = ChangesOffer(**dataclasses.asdict(OFFER), pool_type="btrfs")
        self.assertTrue(self.transfers.takes_changes(SPEC, offer))
        self.transfers.fetch_changes(SPEC, offer, 60, refresh=True)
        self.create.assert_not_called()
        (body, timeout), source = self.client.create_instance.call_args.args, {"instance_only": False, "refresh": True}
        self.assertEqual((60, source), (timeout, {key: body["source"][key] for key in source}))
        self.transfers.fetch_changes(SPEC, offer, 60, refresh=False)
        self.create.assert_called_once()

    def test_pool_of_another_type_takes_no_difference(self) -> None:
        self.assertFalse(self.transfers.takes_changes(SPEC, ChangesOffer(**dataclasses.asdict(OFFER), pool_type="zfs")))
