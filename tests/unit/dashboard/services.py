# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers as Placement and nova do, for the panels."""

import http.server
import json
import threading
from typing import Any
from urllib.parse import urlsplit

import fixtures

Answers = dict[str, tuple[int, Any]]


class Services(fixtures.Fixture):
    """:ivar answers: path -> status and JSON. May be changed while it runs; what is not there is not found
    :ivar asked: the paths with their queries, in order
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: Answers = {}

    def _setUp(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.addCleanup(self.stop)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        for service, versions in (("placement", ("1.0", "1.39")), ("compute", ("2.1", "2.100"))):
            self.answers[f"/{service}"] = 200, {"versions": [{
                "id": f"v{versions[0]}", "status": "CURRENT", "min_version": versions[0], "max_version": versions[1],
                "version": versions[1], "links": [{"rel": "self", "href": f"{self.url}/{service}"}]}]}

    def stop(self) -> None:
        """End the server: connections are refused. Idempotent."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        services = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                services.asked.append(self.path)
                status, content = services.answers.get(urlsplit(self.path).path.rstrip("/"), (404, {}))
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler
