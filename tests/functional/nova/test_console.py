# SPDX-License-Identifier: Apache-2.0
"""Serial consoles through nova's own websocket proxy."""

from tests.functional.nova import base  # isort: skip

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fixtures
from nova import exception
from nova.console import websocketproxy
from nova.tests.functional.api import client as api_client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests import levels
from tests.waiting import await_that

TIMEOUT = 60  # s
ANSWER_TIMEOUT = 1  # s without a byte, after which the query is repeated
ROUNDS = 3
PORTS = "20000:20020"


class SerialProxy(fixtures.Fixture):
    """Nova's proxy in this process; its own server forks, and a fork has no message bus here.

    :ivar url: what ``[serial_console] base_url`` is to be
    """

    def _setUp(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._proxy = websocketproxy.NovaWebSocketProxy(
            RequestHandlerClass=websocketproxy.NovaProxyRequestHandler, listen_port=1, target_host="ignored",
            target_port=1)
        self.addCleanup(self._listening.close)
        self.addCleanup(self._listening.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()
            except OSError:
                return  # the test is over
            threading.Thread(target=self._serve, args=client, daemon=True).start()

    def _serve(self, client: socket.socket, address: tuple[str, int]) -> None:
        with client, contextlib.suppress(exception.InvalidToken):
            self._proxy.do_handshake(client, address)


class ConsoleTest(base.LxdServers):
    options: ClassVar = {("serial_console", "enabled"): True, ("serial_console", "port_range"): PORTS}

    def setUp(self) -> None:
        super().setUp()
        self.flags(base_url=self.useFixture(SerialProxy()).url, group="serial_console")

    def console(self, server: dict[str, Any], protocol: str = "serial", kind: str = "serial") -> str:
        body = {"remote_console": {"protocol": protocol, "type": kind}}
        return self.api.api_post(f"/servers/{server['id']}/remote-consoles", body).body["remote_console"]["url"]

    def visit(self, url: str) -> ClientConnection:
        client = connect(url, subprotocols=["binary"], open_timeout=TIMEOUT, close_timeout=1, proxy=None, legacy=True)
        self.addCleanup(client.close)
        return client

    def shell(self, server: dict[str, Any]) -> None:
        """Let a shell read the container's console, as a getty would."""
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        shell = subprocess.Popen(["nsenter", "--target", str(pid), "--all", "setsid", "sh", "-c",
                                  "exec sh < /dev/console > /dev/console 2>&1"], env={"PATH": "/bin:/usr/bin"},
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)

    def answers(self, client: ClientConnection, question: str, answer: str) -> None:
        """Type ``question`` until its answer comes, which its echo lacks: LXD loses what is typed while it attaches."""
        seen = b""

        def answered() -> bool:
            nonlocal seen
            client.send(question.encode() + b"\n")
            with contextlib.suppress(TimeoutError):
                while True:
                    seen += client.recv(ANSWER_TIMEOUT)
            return answer.encode() in seen

        await_that(answered, f"an answer to {question!r}")

    def read_to_the_end(self, client: ClientConnection) -> None:
        """:raises ConnectionClosed:"""
        while True:
            client.recv(TIMEOUT)

    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name in ("console", "console-out")]

    def test_a_console_is_typed_at_and_read_through_novas_proxy(self) -> None:
        server = self.server()
        self.shell(server)
        first = self.visit(self.console(server))
        self.answers(first, "echo $((6 * 7))", "42")
        # The latest client has the console; the connection of the earlier one is closed.
        second = self.visit(self.console(server))
        self.answers(second, "echo $((6 * 8))", "48")
        self.assertRaises(ConnectionClosed, self.read_to_the_end, first)
        second.close()
        await_that(lambda: not self.threads(), "the sessions' end")
        third = self.visit(self.console(server))
        self.answers(third, "echo $((6 * 9))", "54")
        self._stop_server(server)
        self.assertRaises(ConnectionClosed, self.read_to_the_end, third)
        await_that(lambda: not self.threads(), "the session's end")
        self.assert_refused(409, lambda: self.console(server))

    @levels.exhaustive("a console that is used remains; units have refusals and ends")
    def test_servers_that_end_under_their_clients(self) -> None:
        server, daemon = self.server(), self.lxd.daemon.pid
        for _ in range(levels.budget(gate=1, exhaustive=ROUNDS)):
            client = self.visited(server)
            self._reboot_server(server, hard=True)
            self.assertRaises(ConnectionClosed, self.read_to_the_end, client)
            client = self.visited(server)
            self._stop_server(server)
            self.assertRaises(ConnectionClosed, self.read_to_the_end, client)
            self._start_server(server)
        client = self.visited(server)
        self._delete_server(server)
        self.assertRaises(ConnectionClosed, self.read_to_the_end, client)
        self.assertEqual(daemon, self.lxd.daemon.pid)

    def visited(self, server: dict[str, Any]) -> ClientConnection:
        """A console at which something is printed all the time."""
        self.shell(server)
        client = self.visit(self.console(server))
        self.answers(client, "echo $((6 * 7))", "42")
        client.send(b"while usleep 3000; do echo a line; done\n")
        return client

    def test_nobody_has_a_console_without_its_ticket(self) -> None:
        server = self.server()
        told = self.driver.get_serial_console(None, self.instance(server))
        self.assertEqual("127.0.0.1", told.host)
        for greeting in (b"CONNECT /wrong HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"ls\n" * 200):
            with self.subTest(greeting), socket.create_connection((told.host, told.port), TIMEOUT) as client:
                client.sendall(greeting)
                self.assertIn(b"403", client.recv(100))
        stranger = self.visit(self.console(server).partition("?")[0] + "?token=wrong")
        self.assertRaises(ConnectionClosed, self.read_to_the_end, stranger)
        # All consoles of the host end with nova-compute.
        self.driver.cleanup_host(base.HOST)
        self.assertRaises(ConnectionRefusedError, socket.create_connection, (told.host, told.port), TIMEOUT)
        self.assertEqual([], [thread.name for thread in threading.enumerate() if thread.name == "console"])

    @levels.exhaustive("a console that is used remains; units have refusals and ends")
    def test_a_screen_is_refused_with_a_reason(self) -> None:
        error = self.assert_refused(400, lambda: self.console(self.server(), "vnc", "novnc"))
        self.assertIn("a container has no screen", error)

    def assert_refused(self, status: int, ask: Callable[[], Any]) -> str:
        error = self.assertRaises(api_client.OpenStackApiException, ask)
        self.assertEqual(status, error.response.status_code)
        return error.response.text
