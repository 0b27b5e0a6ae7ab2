# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ restarts while one host's driver waits for another's: the wait ends, and the next one is served."""

import tests.functional.nova.base  # noqa: F401  # isort: skip (decides how nova runs)

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
import testtools
from nova import context, exception, objects, rpc
from oslo_messaging import conffixture

from nova_lxd_ext import conf
from nova_lxd_ext.peers import Peers
from tests import levels
from tests.unit.nova import records
from tests.waiting import await_that
from tools.cloud.daemons import Daemons
from tools.cloud.layout import Layout, Passwords, Ports
from tools.cloud.messages import RabbitMq

CONF = nova.conf.CONF
conf.register()
SILENCE = 10  # s without a sign of life after which a peer counts as gone


class Bus(fixtures.Fixture):
    """A RabbitMQ of its own.

    :ivar url: as oslo.messaging is told
    """

    def _setUp(self) -> None:
        layout = Layout(Path(self.useFixture(fixtures.TempDir()).path))
        messages = RabbitMq(layout, Ports(), Passwords(layout.state / "passwords.json"))
        messages.configure()
        self.url = messages.transport_url()
        self._daemons = Daemons(layout.logs)
        self.addCleanup(self._daemons.kill_leftovers)
        self.addCleanup(self._daemons.stop)
        mapper, self._node = messages.daemons()
        self._daemons.bring_up([mapper, self._node])

    def restart(self) -> None:
        self._daemons.stop([self._node.name])
        self._daemons.bring_up([self._node])


class Receiver:
    """:ivar during: done once, while it receives
    :ivar received: the offers
    """

    def __init__(self, during: Callable[[], None]) -> None:
        self.during: Callable[[], None] | None = during
        self.received: list[dict[str, Any]] = []

    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.received.append(offer)
        act, self.during = self.during, None
        if act:
            act()

    receive_disk = receive

    def forget(self, context: Any, instance: objects.Instance) -> None:
        raise AssertionError("nobody asked for this")


class BusTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.bus = self.useFixture(Bus())
        self.useFixture(conffixture.ConfFixture(CONF)).transport_url = self.bus.url
        CONF.set_override("rpc_response_timeout", SILENCE)
        self.addCleanup(CONF.clear_override, "rpc_response_timeout")
        rpc.init(CONF)
        self.addCleanup(rpc.cleanup)
        self.peers = Peers(CONF)
        self.addCleanup(self.peers.close)

    def fetches(self, number: int) -> bool:
        try:
            self.peers.fetch(context.get_admin_context(), "there", records.instance(), {"number": number})
        except exception.MigrationError as error:
            self.assertIn("did not answer", str(error))
            return False
        return True

    @levels.exhaustive("tests/model loses requests at every step; a request that is lost in a resize remains")
    def test_a_restart_while_a_server_moves(self) -> None:
        receiver = Receiver(self.bus.restart)
        self.peers.listen("there", receiver)
        self.fetches(1)
        self.assertEqual([{"number": 1}], receiver.received)
        await_that(lambda: self.fetches(2), "an answer after the restart")
        self.assertIn({"number": 2}, receiver.received)
        self.assertEqual(1, receiver.received.count({"number": 1}))
