# SPDX-License-Identifier: Apache-2.0
"""Two drivers on a message bus in memory."""

import threading
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import oslo_messaging as messaging
import testtools
from nova import context, exception, objects, rpc
from oslo_messaging import conffixture

from containerhost import errors
from nova_lxd_ext import conf
from nova_lxd_ext.peers import Endpoint, Peers
from tests.unit.nova import records

CONF = nova.conf.CONF
conf.register()
TIMEOUT = 30  # s


class Receiver:
    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.forgotten = threading.Event()

    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.received.append((instance.uuid, offer))
        if self.fault:
            raise self.fault

    receive_disk = receive

    def receive_changes(self, context: Any, instance: objects.Instance, offer: dict[str, Any], last: bool) -> bool:
        self.receive(context, instance, offer)
        return last

    def forget(self, context: Any, instance: objects.Instance) -> None:
        self.forgotten.set()


class PeersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(conffixture.ConfFixture(CONF)).transport_url = "fake:/"
        rpc.init(CONF)
        self.addCleanup(rpc.cleanup)
        self.peers = Peers(CONF)
        self.addCleanup(self.peers.close)
        self.server, self.context = records.instance(), context.get_admin_context()

    def listening(self, fault: Exception | None = None) -> Receiver:
        receiver = Receiver(fault)
        self.peers.listen("there", receiver)
        return receiver

    def fetch(self) -> None:
        self.peers.fetch(self.context, "there", self.server, {"secrets": {"fs": "s"}})

    def test_the_other_host_is_asked(self) -> None:
        receiver = self.listening()
        self.fetch()
        self.peers.fetch_disk(self.context, "there", self.server, {"name": "disk"})
        self.assertEqual([(self.server.uuid, {"secrets": {"fs": "s"}}), (self.server.uuid, {"name": "disk"})],
                         receiver.received)
        self.peers.forget(self.context, "there", self.server)
        self.assertTrue(receiver.forgotten.wait(TIMEOUT))

    def test_answer_of_the_other_host_arrives(self) -> None:
        self.listening()
        for answer in (True, False):
            self.assertIs(answer, self.peers.fetch_changes(self.context, "there", self.server, {}, answer))
        self.listening(errors.StorageFull("no space left"))
        self.assertRaises(exception.MigrationError, self.peers.fetch_changes, self.context, "there", self.server, {},
                          True)

    def test_host_with_the_release_before(self) -> None:
        with mock.patch.object(Endpoint, "target", messaging.Target(version="1.1")):
            receiver = self.listening()
            self.assertIs(False, self.peers.fetch_changes(self.context, "there", self.server, {}, False))
            self.fetch()
        self.assertEqual(1, len(receiver.received))

    def test_why_it_could_not_is_told(self) -> None:
        for fault in (errors.StorageFull("no space left"), OSError("no space left"),
                      exception.MigrationError(reason="no space left")):
            with self.subTest(type(fault).__name__):
                self.listening(fault)
                error = self.assertRaises(exception.MigrationError, self.fetch)
                self.assertIn("no space left", str(error))

    def test_a_host_that_does_not_answer(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.peers.TOPIC", "nobody-listens"))
        CONF.set_override("migration_timeout", 1, "lxd")
        self.addCleanup(CONF.clear_override, "migration_timeout", "lxd")
        error = self.assertRaises(exception.MigrationError, self.fetch)
        self.assertIn("nova-compute on there did not answer", str(error))
