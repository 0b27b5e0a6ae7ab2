# SPDX-License-Identifier: Apache-2.0
import http.server
import threading

from onedock.datastore import image_sources, options, registry
from tests.unit.onedock.datastore.base import DatastoreTestCase

ENDLESS = 1 << 40  # bytes
PIECE = bytes(1 << 20)
MOST = 64 << 20  # bytes that may lie in the sockets between


class Handler(http.server.BaseHTTPRequestHandler):
    """Send every caller on to /there, with an answer that does not end."""

    sent = 0

    def do_GET(self) -> None:
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
