# SPDX-License-Identifier: Apache-2.0
"""Uploads to a server that reads and answers as LXD does."""

import contextlib
import hashlib
import io
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.images import Images

CONTENT = bytes(range(256)) * 20_000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/1.0/images":
            self.server.images.append(body)
            self.answer({"type": "async", "metadata": {"id": "1"}}, 202)
        else:
            self.answer({"type": "sync", "metadata": {}})

    def do_GET(self) -> None:
        known = self.server.known
        done = {"status_code": 400, "err": "Image with same fingerprint already exists"} if known else {
            "status_code": 200, "metadata": {"fingerprint": "of-lxd"}}
        self.answer({"type": "sync", "metadata": {"status": "", **done}})

    def answer(self, document: object, status: int = 200) -> None:
        text = json.dumps(document).encode()
        with contextlib.suppress(BrokenPipeError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def address_string(self) -> str:
        return "a client"

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


class Server(socketserver.ThreadingUnixStreamServer):
    """:ivar images: what was sent
    :ivar known: it has every image already
    """

    known = False

    def __init__(self, path: str) -> None:
        self.images: list[bytes] = []
        super().__init__(path, Handler)


class ImagesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.server = Server(str(self.directory / "unix.socket"))
        self.addCleanup(self.server.server_close)
        serving = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        serving.start()
        self.addCleanup(serving.join)
        self.addCleanup(self.server.shutdown)
        self.client = LxdClient(Settings(endpoint=str(self.directory / "unix.socket")))
        self.images = Images(self.client)

    def test_both_halves_are_sent(self) -> None:
        self.assertEqual("of-lxd", self.images.import_split(b"metadata", io.BytesIO(CONTENT), "a", {}))
        (body,) = self.server.images
        self.assertIn(CONTENT, body)
        self.assertIn(b"metadata", body.replace(CONTENT, b""))

    def test_the_fingerprint_of_an_image_that_is_there_already(self) -> None:
        self.server.known = True
        self.assertEqual(hashlib.sha256(b"metadata" + CONTENT).hexdigest(),
                         self.images.import_split(b"metadata", io.BytesIO(CONTENT), "a", {}))
