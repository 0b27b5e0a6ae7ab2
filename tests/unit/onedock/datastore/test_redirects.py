# SPDX-License-Identifier: Apache-2.0
import http.server
import threading
from pathlib import Path
from typing import ClassVar

import fixtures
import testtools

from onedock.datastore import image_sources, options, registry, web
from onedriver.errors import BadInput
from tests.unit.onedock.datastore.base import DatastoreTestCase

ENDLESS = 1 << 40  # bytes
PIECE = bytes(1 << 20)
MOST = 64 << 20  # bytes that may lie in the sockets between


class Handler(http.server.BaseHTTPRequestHandler):
    """Send every caller on to /there, with an answer that does not end."""

    sent = 0
    authorized: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        Handler.authorized.append(self.headers.get("Authorization"))
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            target = self.path.partition("?")[2].partition("&")[0]
            self.send_header("Location", self.path if target.startswith("/elsewhere") else target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.startswith("/there"):
            content = b'{"token": "abc"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_response(302)
        self.send_header("Location", "/there")
        self.send_header("Content-Length", str(ENDLESS))
        self.end_headers()
        self.close_connection = True
        try:
            while Handler.sent < ENDLESS:
                self.wfile.write(PIECE)
                Handler.sent += len(PIECE)
        except ConnectionError:
            return

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class RedirectTest(DatastoreTestCase):
    """requests reads all of an answer that sends it on into memory, also where its caller reads piece by piece."""

    def setUp(self) -> None:
        super().setUp()
        Handler.sent = 0
        Handler.authorized = []
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.host = f"127.0.0.1:{server.server_port}"

    def test_an_answer_that_sends_on_is_not_read(self) -> None:
        chosen = options.Options("amd64", True, frozenset(), frozenset({self.host}), None, None, (), 1 << 30)
        with image_sources.asked(f"http://{self.host}/here", chosen) as response:
            self.assertEqual(b'{"token": "abc"}', response.raw.read())
        self.assertLess(Handler.sent, MOST)

    def test_nor_that_of_a_server_of_tokens(self) -> None:
        found = registry.Registry(self.host, plain=True)._fetched_token(
            {"realm": f"http://{self.host}/here"}, registry.Reference(self.host, "team/image", "1", None))
        self.assertEqual("abc", found)
        self.assertLess(Handler.sent, MOST)

    def asked(self, path: str, hosts: set[str] | None = None, plain: set[str] | None = None) -> bytes:
        chosen = options.Options("amd64", True, frozenset(hosts or ()), frozenset(plain or ()), None, None, (), 1 << 30)
        with image_sources.asked(f"http://{path}", chosen) as response:
            return bytes(response.raw.read())

    def test_redirects_lead_only_to_hosts_that_are_permitted(self) -> None:
        """localhost is another name of the same server."""
        other = self.host.replace("127.0.0.1", "localhost")
        path = f"{self.host}/elsewhere?http://{other}/there"
        self.assertIn(b"abc", self.asked(path, {self.host, other}))
        error = self.assertRaises(BadInput, self.asked, path, {self.host})
        self.assertIn(f"images from this source are not permitted: {other}", str(error))
        self.assertEqual([None] * 3, Handler.authorized)

    def test_this_machine_is_not_asked_unless_it_is_listed(self) -> None:
        other = self.host.replace("127.0.0.1", "localhost")
        for path in (f"{self.host}/there", f"{other}/there", f"{self.host.replace('127.0.0.1', '0.0.0.0')}/there",
                     f"{self.host.replace('127.0.0.1', '[::ffff:127.0.0.1]')}/there"):
            error = self.assertRaises(BadInput, self.asked, path)
            self.assertIn("an address of the front-end itself or a link-local one", str(error))
        self.assertRaises(BadInput, self.asked, f"{self.host}/elsewhere?http://{other}/there", plain={self.host})
        self.assertEqual([None], Handler.authorized)

    def test_redirects_end(self) -> None:
        for wrong in ("file:///etc/passwd", "ftp://a/b", ""):
            self.assertRaises(BadInput, self.asked, f"{self.host}/elsewhere?{wrong}", {self.host})
        error = self.assertRaises(BadInput, self.asked, f"{self.host}/elsewhere?/elsewhere?/", {self.host})
        self.assertIn("more than 5 times", str(error))

    def test_token_server_on_this_machine_is_not_asked_unless_it_is_listed(self) -> None:
        other = self.host.replace("127.0.0.1", "localhost")
        of = registry.Registry(self.host, plain=True)
        reference = registry.Reference(self.host, "team/image", "1", None)
        self.assertRaises(BadInput, of._fetched_token, {"realm": f"http://{other}/there"}, reference)
        self.assertEqual([], Handler.authorized)

    def test_credentials_of_the_user_stay(self) -> None:
        home = Path(self.useFixture(fixtures.TempDir()).path)
        (home / ".netrc").write_text("machine 127.0.0.1 login a password b\nmachine localhost login a password b\n")
        (home / ".netrc").chmod(0o600)
        self.useFixture(fixtures.EnvironmentVariable("HOME", str(home)))
        other = self.host.replace("127.0.0.1", "localhost")
        self.asked(f"{self.host}/elsewhere?http://{other}/there", {self.host, other})
        self.assertEqual([None, None], Handler.authorized)

    def test_credentials_of_the_registry_go_to_no_other_host(self) -> None:
        other = self.host.replace("127.0.0.1", "localhost")
        client = web.Web({self.host, other})
        for target, authorized in ((f"http://{other}/there", False), ("/there", True)):
            Handler.authorized = []
            client.get(f"http://{self.host}/elsewhere?{target}", lambda at: None, ("user", "word")).close()
            self.assertEqual([True, authorized], [each is not None for each in Handler.authorized])


class ForeignTest(testtools.TestCase):
    def test_addresses_of_this_machine_and_its_link_are_refused(self) -> None:
        for address in ("127.0.0.1", "127.8.9.1", "::1", "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "::",
                        "::ffff:169.254.169.254", "224.0.0.1"):
            self.assertRaises(BadInput, web.require_foreign, address, "host")
        for address in ("10.0.0.1", "192.168.1.1", "93.184.216.34", "2001:db8::1", "::ffff:10.0.0.1"):
            web.require_foreign(address, "host")
