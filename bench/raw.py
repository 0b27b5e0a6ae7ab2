# SPDX-License-Identifier: Apache-2.0
"""The engines' APIs with nothing around them: what the drivers' time is compared with."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any


class Raw(http.client.HTTPConnection):
    """One connection to the daemon's socket, kept open."""

    def __init__(self, path: str) -> None:
        super().__init__("lxd", timeout=300)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's metadata; an operation is waited for.

        :raises RuntimeError: with LXD's words
        """
        answer = self._ask(method, path, body)
        if answer["type"] != "async":
            return answer["metadata"]
        done = self.call("GET", f"operations/{answer['metadata']['id']}/wait")
        if done["status_code"] != 200:
            raise RuntimeError(f"{method} {path}: {done['err']}")
        return done

    def upload(self, image: Path) -> str:
        """Import an image of one file.

        :returns: its fingerprint
        """
        with image.open("rb") as content:
            self.request("POST", "/1.0/images", content, {"Content-Type": "application/octet-stream",
                                                          "Content-Length": str(image.stat().st_size)})
            answer = json.loads(self.getresponse().read())
        if answer["type"] == "error":
            raise RuntimeError(f"import {image}: {answer['error']}")
        return str(self.call("GET", f"operations/{answer['metadata']['id']}/wait")["metadata"]["fingerprint"])

    def begin(self, method: str, path: str, body: Any) -> Any:
        """Return the operation that the request started, which goes on."""
        return self._ask(method, path, body)["metadata"]

    def _ask(self, method: str, path: str, body: Any) -> Any:
        self.request(method, f"/1.0/{path}" if path else "/1.0", json.dumps(body) if body is not None else None)
        answer = json.loads(self.getresponse().read())
        if answer["type"] == "error":
            raise RuntimeError(f"{method} {path}: {answer['error']}")
        return answer


class RawDocker(http.client.HTTPConnection):
    """Docker's API with nothing around it: one connection to the daemon's socket, kept open."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("docker", timeout=300)
        self._endpoint = endpoint

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._endpoint.removeprefix("unix://"))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to Docker.

        :raises RuntimeError: with Docker's words
        """
        self.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = self.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {content.decode()}")
        return json.loads(content) if content else None
