"""Uploads to a server that reads and answers as LXD does."""

import contextlib
import hashlib
import io
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.images import Images

CONTENT = bytes(range(256)) * 20_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Broken(Exception):
    pass


class Piped:
    """What a program prints: its length is not known before its end."""

    def __init__(self, content: bytes, *, breaks: bool = False) -> None:
        self._content = io.BytesIO(content)
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1000), b"")

    def read(self, size: int = -1, /) -> bytes:
        piece = self._content.read(size)
        if not piece and self._breaks:
            raise Broken
        return piece


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = self.chunks() if "Transfer-Encoding" in self.headers else self.rfile.read(
            int(self.headers["Content-Length"]))
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

    def chunks(self) -> bytes | None:
        """None when it does not come to its end."""
        body = b""
        while size := int(self.rfile.readline() or b"-1", 16):
            if size < 0:
                return None
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

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
    """:ivar images: what was sent; None for what was not whole
    :ivar known: it has every image already
    """

    known = False

    def __init__(self, path: str) -> None:
        self.images: list[bytes | None] = []
        super().__init__(path, Handler)


class ImagesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.server = Server(str(self.folder / "unix.socket"))
        self.addCleanup(self.server.server_close)
        serving = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        serving.start()
        self.addCleanup(serving.join)
        self.addCleanup(self.server.shutdown)
        self.client = LxdClient(Settings(endpoint=str(self.folder / "unix.socket")))
        self.addCleanup(lambda: self.client._session().close())
        self.images = Images(self.client)

    def file(self) -> Path:
        file = self.folder / "image"
        file.write_bytes(CONTENT)
        return file

    def test_a_file_and_what_a_program_prints(self) -> None:
        self.assertEqual("of-lxd", self.images.import_unified(self.file(), "a", {}))
        self.assertEqual("of-lxd", self.images.import_packed(
            lambda: contextlib.nullcontext(Piped(CONTENT)), "a", {}))
        self.assertEqual([CONTENT, CONTENT], self.server.images)

    def test_the_fingerprint_of_an_image_that_is_there_already(self) -> None:
        self.server.known = True
        self.assertEqual(DIGEST, self.images.import_unified(self.file(), "a", {}))
        self.assertEqual(DIGEST, self.images.import_packed(lambda: contextlib.nullcontext(Piped(CONTENT)), "a", {}))
        self.assertEqual(hashlib.sha256(b"metadata" + CONTENT).hexdigest(),
                         self.images.import_split(b"metadata", self.file(), "a", {}))

    def test_what_breaks_off_is_no_image(self) -> None:
        self.assertRaises(Broken, self.images.import_packed,
                          lambda: contextlib.nullcontext(Piped(CONTENT, breaks=True)), "a", {})
        self.assertEqual("of-lxd", self.images.import_unified(self.file(), "a", {}))
        self.assertEqual(CONTENT, self.server.images[-1])
        self.assertEqual([], [image for image in self.server.images[:-1] if image is not None])
