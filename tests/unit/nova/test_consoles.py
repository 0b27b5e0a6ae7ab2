# SPDX-License-Identifier: Apache-2.0
"""Test consoles without a daemon: tokens, greetings, and messages to clients."""

import contextlib
import queue
import socket
import threading

import nova.conf
import testtools
from nova import exception
from nova.console import serial  # noqa: F401  (registers its options)
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import Status
from nova_lxd_ext import conf
from nova_lxd_ext.access import consoles, consolesession
from nova_lxd_ext.access.console_tokens import ConsoleTokens
from nova_lxd_ext.instance import labels, states
from tests.unit.nova import fakes, records
from tests.unit.nova.guestfakes import GuestEngine
from tests.waiting import await_that

conf.register()
TIMEOUT = 30  # s


class FakeConsole:
    """Answers what is typed with the same in capital letters."""

    def __init__(self) -> None:
        self.said: queue.Queue[bytes | None] = queue.Queue()

    def receive(self) -> bytes | None:
        return self.said.get()

    def send(self, data: bytes) -> None:
        self.said.put(data.upper())

    def close(self) -> None:
        self.said.put(None)


class ConsoleTokensTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = fakes.Clock()
        self.tokens = ConsoleTokens(600, self.clock)

    def test_a_ticket_is_the_same_while_it_lasts(self) -> None:
        first = self.tokens.issue("c1")
        self.clock.now += 599
        self.assertEqual(first, self.tokens.issue("c1"))
        self.clock.now += 599
        self.assertEqual("c1", self.tokens.container(first))
        self.clock.now += 2
        self.assertIsNone(self.tokens.container(first))
        self.assertNotEqual(first, self.tokens.issue("c1"))

    def test_each_container_has_its_own(self) -> None:
        issued = {self.tokens.issue(name): name for name in ("c1", "c2")}
        for text, name in issued.items():
            self.assertEqual(name, self.tokens.container(text))
        for text in ("", "c1", "é"):
            self.assertIsNone(self.tokens.container(text))


class GreetingTest(testtools.TestCase):
    def test_only_a_greeting_is_read(self) -> None:
        for sent, expected, left in (
            (b"CONNECT /abc_-1 HTTP/1.1\r\n\r\nls\n", "abc_-1", b"ls\n"),
            (b"CONNECT / HTTP/1.1\r\n\r\n", None, b""),
            (b"GET /abc HTTP/1.1\r\n\r\n", None, b""),
            (b"CONNECT /a/../b HTTP/1.1\r\n\r\n", None, b""),
            (b"CONNECT /abc", None, b""),
            (b"", None, b""),
            (b"x" * 300, None, b"x" * 44),
        ):
            with self.subTest(sent):
                here, there = socket.socketpair()
                with here, there:
                    there.sendall(sent)
                    there.shutdown(socket.SHUT_WR)
                    self.assertEqual(expected, consolesession.greeting(here))
                    self.assertEqual(left, here.recv(1000))


    def test_a_slow_greeting_ends_at_its_time_limit(self) -> None:
        self.patch(consolesession, "GREETING_TIMEOUT", 0.5)
        here, there = socket.socketpair()
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(0.1):
                there.sendall(b"x")

        thread = threading.Thread(target=trickle)
        with here, there:
            thread.start()
            try:
                self.assertRaises(TimeoutError, consolesession.greeting, here)
            finally:
                over.set()
                thread.join()


class ConsolesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        options.config(port_range="21000:21050", proxyclient_address="127.0.0.1", group="serial_console")
        self.engine = GuestEngine(FakeConsole)
        self.server = records.instance()
        self.engine.add(self.server.name, labels.of(self.server), Status.RUNNING)
        self.consoles = consoles.Consoles(nova.conf.CONF, self.engine, states.States(self.engine))
        self.addCleanup(self.consoles.close)

    def visit(self, path: str | None = None) -> socket.socket:
        told = self.consoles.serial(self.server)
        client, inner = socket.socketpair()
        self.addCleanup(client.close)
        client.settimeout(TIMEOUT)
        self.consoles.admit(inner)
        with contextlib.suppress(BrokenPipeError):  # turned away already
            client.sendall(f"CONNECT {path or told.internal_access_path} HTTP/1.1\r\n\r\n".encode())
        return client

    def welcomed(self) -> socket.socket:
        client = self.visit()
        self.assertEqual(consolesession.WELCOME, client.recv(100))
        return client

    def test_bytes_go_both_ways(self) -> None:
        client = self.welcomed()
        client.sendall(b"hello")
        self.assertEqual(b"HELLO", client.recv(100))

    def test_who_comes_later_has_the_console(self) -> None:
        first = self.welcomed()
        second = self.welcomed()
        self.assertEqual(b"", first.recv(100))
        second.sendall(b"mine")
        self.assertEqual(b"MINE", second.recv(100))

    def test_a_wrong_ticket_opens_nothing(self) -> None:
        client = self.visit("/wrong")
        self.assertEqual(consolesession.FORBIDDEN, client.recv(100))
        self.assertEqual(b"", client.recv(100))
        self.assertNotIn("console", self.engine.asked)

    def test_a_console_that_cannot_be_had_is_told(self) -> None:
        self.engine.fail["console"] = errors.EngineError("Instance is not running")
        self.assertEqual(consolesession.UNAVAILABLE, self.visit().recv(100))

    def test_too_many_are_turned_away(self) -> None:
        self.patch(consoles, "MAX_CLIENTS", 1)
        self.welcomed()
        self.assertEqual(b"", self.visit().recv(100))

    def test_those_without_a_ticket_make_room_for_one_with(self) -> None:
        """Test that access to the port alone cannot keep every tenant from every console of the host."""
        self.patch(consoles, "MAX_CLIENTS", 3)
        self.consoles.serial(self.server)
        silent = []
        for _ in range(3):
            here, inner = socket.socketpair()
            self.addCleanup(here.close)
            here.settimeout(TIMEOUT)
            self.consoles.admit(inner)
            silent.append(here)
        client = self.welcomed()
        self.assertEqual(b"", silent[0].recv(100))
        client.sendall(b"hello")
        self.assertEqual(b"HELLO", client.recv(100))

    def test_nothing_stays_after_the_end(self) -> None:
        client = self.welcomed()
        self.consoles.close()
        self.assertEqual(b"", client.recv(100))
        late, inner = socket.socketpair()
        self.addCleanup(late.close)
        self.consoles.admit(inner)
        self.assertEqual(b"", late.recv(100))
        await_that(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("console")],
                   "the end of the consoles' threads")

    def test_an_address_that_is_not_the_hosts_is_told_at_once(self) -> None:
        for address in ("192.0.2.1", "no-such-host.invalid"):
            nova.conf.CONF.set_override("proxyclient_address", address, "serial_console")
            error = self.assertRaises(exception.ConsoleTypeUnavailable, self.consoles.serial, self.server)
            self.assertIn(address, str(error))

    def test_no_port_is_left(self) -> None:
        nova.conf.CONF.set_override("port_range", "21000:21000", "serial_console")
        self.assertRaises(exception.SocketPortRangeExhaustedException, self.consoles.serial, self.server)

    def test_a_server_that_does_not_run_is_not_ready(self) -> None:
        self.engine.statuses[self.server.name] = Status.STOPPED
        self.assertRaises(exception.InstanceNotReady, self.consoles.serial, self.server)
