# SPDX-License-Identifier: Apache-2.0
"""Test the requests to the two daemons for a disk that goes from one to the other."""

from unittest import mock

import testtools

from containerhost.engines.capabilities import DiskOffer
from containerhost.engines.lxd import disktransfers
from containerhost.engines.lxd.disktransfers import DiskTransfers

NAME = "instance-0000002a-ephemeral0"
OFFER = DiskOffer(NAME, "https://one:8443/1.0/operations/x", "PEM", {"size": "5", "volatile.idmap.last": "[]"},
                  {"control": "c", "fs": "secret"})


class BodyTest(testtools.TestCase):
    def test_the_receiver_marks_it_as_its_own(self) -> None:
        self.assertEqual({
            "name": NAME, "config": {"size": "5", "volatile.idmap.last": "[]", "user.nova.uuid": "u"},
            "source": {"type": "migration", "mode": "pull", "operation": OFFER.operation, "volume_only": True,
                       "certificate": "PEM", "secrets": {"control": "c", "fs": "secret"}},
        }, disktransfers.body(OFFER, {"nova.uuid": "u"}))

    def test_the_secrets_are_not_shown(self) -> None:
        self.assertNotIn("secret", repr(OFFER))


class TransfersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = mock.Mock()
        self.transfers = DiskTransfers(self.client, "fast")

    def test_only_what_belongs_to_the_files_comes_along(self) -> None:
        self.client.get.return_value = {"config": {"size": "5", "volatile.idmap.next": "x", "user.nova.uuid": "u"}}
        self.client.server.return_value = {"environment": {"certificate": "PEM"}}
        self.client.request.return_value.json.return_value = {
            "type": "async", "metadata": {"id": "x", "metadata": {"control": "c", "fs": "secret"}}}
        offer = self.transfers.offer(NAME, "https://one:8443")
        self.assertEqual(({"size": "5"}, OFFER.operation, OFFER.secrets),
                         (offer.config, offer.operation, offer.secrets))

    def test_only_transfers_of_the_disk_that_go_on_are_ended(self) -> None:
        self.client.operations.return_value = [
            {"id": f"{name}-{status}", "description": description, "status_code": status, "resources": {
                "storage_volumes": [f"/1.0/storage_volumes/fast/volumes/custom/{name}"]}}
            for name, description, status in (
                (NAME, disktransfers.SENDING, 103), (NAME, disktransfers.SENDING, 200),
                ("other", disktransfers.SENDING, 103), (NAME, "Copying storage volume", 103))]
        self.transfers.withdraw(NAME)
        self.assertEqual([("delete", "operations", f"{NAME}-103")],
                         [call.args for call in self.client.request.call_args_list])
