# SPDX-License-Identifier: Apache-2.0
"""Test what Horizon asks a host's exporter, and what it makes of slow, hostile or other releases' exporters."""

import json
import socket
import threading
import time
from collections.abc import Callable

import fixtures

from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostreader import read_map
from nova_lxd_dashboard.accelerators import Service
from tests.unit.containerhost.hosts import shared
from tests.unit.dashboard import base

MAP = json.dumps(document.dump(read_map(shared("small"), {}))).encode()
JSON = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
HOST = Service(up=True, ip="127.0.0.1")


class Server(fixtures.Fixture):
    """A server that does to each connection what a test says, after the request was read."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self.requests: list[bytes] = []

    def _setUp(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self._listener.close)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection:
                self.requests.append(connection.recv(1 << 16))
                try:
                    self._serve(connection)
                except OSError:  # the client is gone
                    continue


class ExporterCase(base.HorizonCase):
    def setUp(self) -> None:
        super().setUp()
        from nova_lxd_dashboard import exporter
        self.exporter = exporter
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_dashboard.exporter.TIMEOUT", 1))

    def setting(self, value: str) -> None:
        from django.test import override_settings
        changed = override_settings(NOVA_LXD_EXPORTER_URL=value)
        changed.enable()
        self.addCleanup(changed.disable)

    def serving(self, content: bytes) -> Server:
        return self.answering(lambda connection: connection.sendall(content))

    def answering(self, serve: Callable[[socket.socket], None]) -> Server:
        server: Server = self.useFixture(Server(serve))
        self.setting(f"http://{{ip}}:{server.port}")
        return server

    def reason(self) -> str:
        return str(self.assertRaises(self.exporter.ExporterFailed, self.exporter.host_map, "node1", HOST))


class UrlTest(ExporterCase):
    def url(self, pattern: str, host: str = "node1.example.org", ip: str = "10.0.0.5") -> str:
        return self.exporter.url(pattern, host, ip)

    def test_name_or_address_of_the_host(self) -> None:
        self.assertEqual("http://10.0.0.5:9869/topology", self.url("http://{ip}:9869"))
        self.assertEqual("http://[fd00::5]:9869/topology", self.url("http://{ip}:9869", ip="fd00::5"))
        self.assertEqual("http://node1.example.org:9869/topology", self.url("http://{host}:9869/", ip=""))
        self.assertEqual("https://proxy/exporters/node1.example.org/topology", self.url("https://proxy/exporters/{host}"))

    def refused(self, *arguments: str) -> str:
        return str(self.assertRaises(self.exporter.ExporterFailed, self.url, *arguments))

    def test_names_that_would_lead_elsewhere(self) -> None:
        for name in ("", "a/b", "evil.org/?", "a@evil.org", "a:80", "{ip}", "a b", "a\r\nX: y", "-a", ".", "a" * 300):
            self.assertIn("the host's name", self.refused("http://{host}:9869", name))

    def test_addresses_that_are_none(self) -> None:
        for address in ("", "node1", "10.0.0.5:80", "10.0.0.5/x", "fe80::1%eth0/x"):
            self.assertIn("nova has no address of the host", self.refused("http://{ip}:9869", "node1", address))

    def test_wrong_settings(self) -> None:
        for pattern in ("http://10.0.0.5:9869", "{ip}:9869", "file://{host}/etc", "http://{ip}:x", "http://{ip}:0",
                        "http:///{host}"):
            self.assertIn("it should be like http://{ip}:9869", self.refused(pattern))

    def test_off_by_default(self) -> None:
        self.assertFalse(self.exporter.configured())
        self.setting("http://{ip}:9869")
        self.assertTrue(self.exporter.configured())


class AnswerTest(ExporterCase):
    def test_map(self) -> None:
        server = self.serving(JSON + MAP)
        self.assertEqual(read_map(shared("small"), {}), self.exporter.host_map("node1", HOST))
        self.assertTrue(server.requests[0].startswith(b"GET /topology HTTP/1.1\r\nHost: 127.0.0.1:"))

    def test_map_in_chunks(self) -> None:
        self.serving(JSON.replace(b"1.0", b"1.1").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
                     + b"%x\r\n%b\r\n0\r\n\r\n" % (len(MAP), MAP))
        self.assertEqual(read_map(shared("small"), {}), self.exporter.host_map("node1", HOST))

    def test_no_proxy_of_the_environment(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("http_proxy", "http://127.0.0.1:9"))
        self.serving(JSON + MAP)
        self.assertEqual(read_map(shared("small"), {}), self.exporter.host_map("node1", HOST))

    def test_redirect_is_not_followed(self) -> None:
        other = self.serving(JSON + MAP)
        self.serving(b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:%d/\r\n\r\n" % other.port)
        self.assertIn("answers 302 Found", self.reason())
        self.assertEqual([], other.requests)

    def test_own_words_of_an_exporter_that_fails(self) -> None:
        self.serving(b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
                     b"allocation record 3b cannot be trusted\x1b\n" + b"x" * 9999)
        reason = self.reason()
        self.assertIn("/topology answers 503 Service Unavailable: allocation record 3b cannot be trusted?", reason)
        self.assertEqual(self.exporter.TOLD, len(reason))

    def test_exporter_of_an_older_release(self) -> None:
        self.serving(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n# HELP containerhost_device")
        self.assertIn("upgrade nova-lxd-ext there", self.reason())

    def test_answers_that_are_no_map(self) -> None:
        for content in (JSON, JSON + MAP[:-9], JSON + b"[]", JSON + b"[" * 100_000, JSON + b'{"title": 1}',
                        JSON + b"9" * 9999, JSON + b"\xff", b"", b"SSH-2.0-OpenSSH\r\n", b"\x00" * 99,
                        JSON.replace(b"\r\n\r\n", b"\r\nContent-Length: 9999\r\n\r\n") + MAP[:9]):
            with self.subTest(content=content[:90]):
                self.serving(content)
                reason = self.reason()
                self.assertTrue("does not answer" in reason, (content[:90], reason))


class LimitTest(ExporterCase):
    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.setting(f"http://{{ip}}:{listener.getsockname()[1]}")
        self.assertIn("does not answer: [Errno 111] Connection refused", self.reason())

    def assert_timeout(self) -> None:
        begun = time.monotonic()
        self.assertIn("has not answered within 1 s", self.reason())
        self.assertLess(time.monotonic() - begun, 5)

    def test_silence(self) -> None:
        self.answering(lambda connection: time.sleep(2))
        self.assert_timeout()

    def test_silence_instead_of_tls(self) -> None:
        server = self.answering(lambda connection: time.sleep(2))
        self.setting(f"https://{{ip}}:{server.port}")
        self.assert_timeout()

    def test_one_byte_now_and_then(self) -> None:
        def trickle(connection: socket.socket) -> None:
            connection.sendall(JSON)
            for _ in range(60):
                connection.sendall(b" ")
                time.sleep(0.05)

        self.answering(trickle)
        self.assert_timeout()

    def test_endless_answer(self) -> None:
        def flood(connection: socket.socket) -> None:
            connection.sendall(JSON)
            while True:
                connection.sendall(b" " * (1 << 16))

        self.answering(flood)
        self.assertIn(f"longer than {self.exporter.LARGEST} bytes", self.reason())
