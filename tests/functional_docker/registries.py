# SPDX-License-Identifier: Apache-2.0
"""A registry that says what a test wants it to say, as far as the OCI distribution specification's "Pull" goes."""

import http.server
import threading
from collections.abc import Callable
from typing import Any

import fixtures

from tests.unit.onedock.images import Image, digest

Answer = tuple[int, dict[str, str], bytes]


class Registry(fixtures.Fixture):
    """:ivar host: as a reference names it
    :ivar answers: by path; what is not there is answered with 404
    :ivar challenge: what requests without ``authorization`` are answered with; None for an open registry
    :ivar asked: paths in order, each with the Authorization that came
    """

    def _setUp(self) -> None:
        self.answers: dict[str, Answer | Callable[[str], Answer]] = {}
        self.challenge: str | None = None
        self.authorization = ""
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = registry._answer(self.path, self.headers.get("Authorization"))
                self.send_response(status)
                for key, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """The test's output is not the place."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.host = f"127.0.0.1:{server.server_port}"

    def _answer(self, path: str, authorization: str | None) -> Answer:
        self.asked.append((path, authorization))
        if path.startswith("/v2/") and self.challenge and authorization != self.authorization:
            return 401, {"WWW-Authenticate": self.challenge}, b"{}"
        found = self.answers.get(path.partition("?")[0], (404, {}, b"{}"))
        return found(path) if callable(found) else found

    def keep(self, image: Image, name: str = "tool", tag: str = "1") -> str:
        """:returns: the digest of what the tag leads to"""
        files = image.layout()
        index = files["index.json"]
        for path, content in files.items():
            if path.startswith("blobs/"):
                found = path.removeprefix("blobs/").replace("/", ":")
                for kind in ("blobs", "manifests"):
                    self.answers[f"/v2/{name}/{kind}/{found}"] = (200, {}, content)
        for version in (tag, digest(index)):
            self.answers[f"/v2/{name}/manifests/{version}"] = (200, {}, index)
        return digest(index)
