# SPDX-License-Identifier: Apache-2.0
"""Test the protocol between the two nodes of a live migration."""

import dataclasses
import os
from typing import Any
from unittest import mock

import testtools

from containerhost.engines.capabilities import ChangesOffer
from lxdone import livemigration, translate
from onedriver import actions
from onedriver.errors import BadInput, DriverError, NotSupported
from tests.unit.lxdone import machines

OFFER = ChangesOffer(name="one-1", operation="https://192.0.2.1:8443/1.0/operations/6f1c-2", certificate="PEM",
                     config={}, secrets={"control": "s"}, architecture="x86_64", pool_type="btrfs")


class ConversationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.stdin, self.asked, self.answered, self.stdout = (
            self.opened(fd, mode) for fd, mode in zip((*os.pipe(), *os.pipe()), ("rb", "wb", "rb", "wb"), strict=True))
        self.transfers, self.take_over = mock.MagicMock(), mock.Mock()
        spec = mock.MagicMock()
        self.arrival = livemigration.Arrival(self.transfers, spec, ("https://192.0.2.1:8443",), 60, self.take_over)

    def opened(self, fd: int, mode: str) -> Any:
        file = open(fd, mode, buffering=0)  # noqa: SIM115
        self.addCleanup(file.close)
        return file

    def serve(self) -> None:
        livemigration.serve(self.arrival, livemigration.requests(self.stdin, 5), self.stdout)

    def ask(self, **request: object) -> None:
        livemigration.write(self.asked, request)

    def test_changes_are_fetched_and_then_the_vm_starts(self) -> None:
        offer = {"offer": dataclasses.asdict(OFFER)}
        livemigration.serve(self.arrival, iter([offer, offer, {"start": True}]), self.stdout)
        self.assertEqual([False, True], [call.kwargs["refresh"] for call in self.transfers.fetch_changes.mock_calls])
        self.assertEqual(OFFER, self.transfers.fetch_changes.mock_calls[0].args[1])
        self.take_over.assert_called_once_with()
        self.assertEqual(b"{}\n{}\n", self.answered.read(100))

    def test_source_that_is_gone_ends_it_before_the_start(self) -> None:
        self.ask(offer=dataclasses.asdict(OFFER))
        self.asked.close()
        self.assertIn("has stopped", str(self.assertRaises(DriverError, self.serve)))
        self.take_over.assert_not_called()

    def test_pool_of_another_type_is_refused_with_the_remedy(self) -> None:
        self.transfers.takes_changes.return_value = False
        self.ask(offer=dataclasses.asdict(OFFER))
        self.assertIn("onevm migrate", str(self.assertRaises(NotSupported, self.serve)))
        self.transfers.fetch_changes.assert_not_called()

    def test_nothing_is_fetched_from_an_address_that_the_node_does_not_name(self) -> None:
        for operation in ("https://192.0.2.66:8443/1.0/operations/6f1c-2", "https://192.0.2.1:8443@x/1.0/operations/1",
                          "https://192.0.2.1:8443/1.0/operations/../x", "https://192.0.2.1:8443", ""):
            offer = dataclasses.replace(OFFER, operation=operation)
            error = str(self.assertRaises(NotSupported, self.arrival.fetch_changes, offer))
            self.assertIn("migration_peers", error)
        self.transfers.fetch_changes.assert_not_called()

    def test_anything_else_is_refused(self) -> None:
        for line in (b"{}\n", b"[]\n", b"no JSON\n", b'{"stop": 1}\n'):
            self.asked.write(line)
            self.assertRaises(DriverError, self.serve)
        self.assertRaises(DriverError, livemigration.read, self.stdin, 0.01)
        self.assertRaises(DriverError, livemigration.document_of, {"document": "<VM/>"})

    def test_offer_that_is_malformed_is_refused(self) -> None:
        whole = dataclasses.asdict(OFFER)
        for offer in ({}, whole | {"more": 1}, whole | {"operation": 1}, whole | {"secrets": "s"}):
            with self.subTest(offer):
                error = self.assertRaises(DriverError, livemigration.serve, self.arrival, iter([{"offer": offer}]),
                                          self.stdout)
                self.assertIn("offer", str(error))
        self.transfers.fetch_changes.assert_not_called()

    def test_line_that_is_nested_too_deep_is_refused(self) -> None:
        self.asked.write(b"[" * 4_000 + b"\n")
        self.assertIn("the other node sends", str(self.assertRaises(DriverError, self.serve)))

    def test_reader_that_is_gone_is_seen(self) -> None:
        self.assertFalse(livemigration.is_abandoned(self.stdout.fileno()))
        self.answered.close()
        self.assertTrue(livemigration.is_abandoned(self.stdout.fileno()))


class ConsentTest(testtools.TestCase):
    def test_vm_leaves_only_where_its_template_and_its_node_let_it(self) -> None:
        vm = machines.machine()._replace(pcis=(), own={translate.LIVE_MIGRATION: "Restart"})
        livemigration.require_allowed(vm, "https://192.0.2.1:8443")
        for refused, address in ((vm._replace(own={}), "https://192.0.2.1:8443"), (vm, ""),
                                 (vm._replace(pcis=machines.machine().pcis), "https://192.0.2.1:8443")):
            self.assertIn("onevm migrate", str(self.assertRaises(
                NotSupported, livemigration.require_allowed, refused, address)))
        self.assertRaises(BadInput, translate.restarts_to_migrate, {translate.LIVE_MIGRATION: "yes"})

    def test_socket_of_the_agent_follows_the_arguments_of_oned(self) -> None:
        argv = ["one-2", "node2", "node1", "2", "node1"]
        for more in ([], ["/tmp/agent"]):
            found, vm_id, host = actions.split("migrate", [*argv, *more])
            self.assertEqual((2, "node1", [*more, ""][0]), (vm_id, host, found.get("agent", "")))
        self.assertNotIn("agent", actions.split("cancel", ["one-2", "node1", "2", "node1", "/tmp/agent"])[0])
