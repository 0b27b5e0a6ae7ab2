# SPDX-License-Identifier: Apache-2.0
"""Test how a container of LXD is fetched in a live migration, and which VMs may leave by one."""

import dataclasses
from unittest import mock

import testtools

from containerhost.engines.capabilities import ChangesOffer
from lxdone import livemigration, translate
from onedriver import section
from onedriver.errors import BadInput, DriverError, NotSupported
from tests.unit.lxdone import machines

OFFER = ChangesOffer(name="one-1", operation="https://192.0.2.1:8443/1.0/operations/6f1c-2", certificate="PEM",
                     config={}, secrets={"control": "s"}, architecture="x86_64", pool_type="btrfs")


class ArrivalTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.transfers, self.take_over = mock.MagicMock(), mock.Mock()
        self.arrival = livemigration.Arrival(self.transfers, mock.MagicMock(), ("https://192.0.2.1:8443",), 60,
                                             self.take_over)

    def test_changes_are_fetched_and_then_the_vm_starts(self) -> None:
        for _ in range(2):
            self.arrival.fetch({"offer": dataclasses.asdict(OFFER)})
        self.arrival.start()
        self.assertEqual([False, True], [call.kwargs["refresh"] for call in self.transfers.fetch_changes.mock_calls])
        self.assertEqual(OFFER, self.transfers.fetch_changes.mock_calls[0].args[1])
        self.take_over.assert_called_once_with()

    def test_pool_of_another_type_is_refused_with_the_remedy(self) -> None:
        self.transfers.takes_changes.return_value = False
        self.assertIn("onevm migrate", str(self.assertRaises(
            NotSupported, self.arrival.fetch, {"offer": dataclasses.asdict(OFFER)})))
        self.transfers.fetch_changes.assert_not_called()

    def test_nothing_is_fetched_from_an_address_that_the_node_does_not_name(self) -> None:
        for operation in ("https://192.0.2.66:8443/1.0/operations/6f1c-2", "https://192.0.2.1:8443@x/1.0/operations/1",
                          "https://192.0.2.1:8443/1.0/operations/../x", "https://192.0.2.1:8443", ""):
            offer = dataclasses.replace(OFFER, operation=operation)
            error = str(self.assertRaises(NotSupported, self.arrival.fetch_changes, offer))
            self.assertIn("migration_peers", error)
        self.transfers.fetch_changes.assert_not_called()

    def test_anything_else_is_refused(self) -> None:
        for request in ({}, {"stop": 1}, {"start": 1}):
            self.assertRaises(DriverError, self.arrival.fetch, request)

    def test_offer_that_is_malformed_is_refused(self) -> None:
        whole = dataclasses.asdict(OFFER)
        for offer in ({}, whole | {"more": 1}, whole | {"operation": 1}, whole | {"secrets": "s"}):
            with self.subTest(offer):
                error = self.assertRaises(DriverError, self.arrival.fetch, {"offer": offer})
                self.assertIn("offer", str(error))
        self.transfers.fetch_changes.assert_not_called()

class ConsentTest(testtools.TestCase):
    def test_vm_leaves_only_where_its_template_and_its_node_let_it(self) -> None:
        vm = machines.machine()._replace(pcis=(), own={translate.LIVE_MIGRATION: "Restart"})
        livemigration.require_allowed(vm, "https://192.0.2.1:8443")
        for refused, address in ((vm._replace(own={}), "https://192.0.2.1:8443"), (vm, ""),
                                 (vm._replace(pcis=machines.machine().pcis), "https://192.0.2.1:8443")):
            self.assertIn("onevm migrate", str(self.assertRaises(
                NotSupported, livemigration.require_allowed, refused, address)))
        key = translate.LIVE_MIGRATION
        self.assertRaises(BadInput, section.restarts_to_migrate, {key: "yes"}, key)
