# SPDX-License-Identifier: Apache-2.0
"""LXD's REST API for many hosts at once, with instances that are documents in memory: nothing runs.

    python -m bench.manyhosts.memorylxd DIRECTORY HOSTS

Each host has a socket of its own, DIRECTORY/N.socket, and each image is on all hosts. DIRECTORY/description is what a
real daemon answers to ``GET /1.0``. One line for each request, with its method and path, goes to DIRECTORY/requests.
"""

import base64
import hashlib
import http.server
import json
import socketserver
import sys
import threading
import uuid
from pathlib import Path
from typing import Any
from urllib import parse

STOPPED, RUNNING, FROZEN = 102, 103, 110
STATES = {"start": RUNNING, "restart": RUNNING, "stop": STOPPED, "freeze": FROZEN, "unfreeze": RUNNING}
NAMES = {STOPPED: "Stopped", RUNNING: "Running", FROZEN: "Frozen"}
IDS = json.dumps([{"Isuid": True, "Isgid": True, "Hostid": 1000000, "Nsid": 0, "Maprange": 65536}])
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
GIB = 1 << 30
DONE = {"status_code": 200, "status": "Success", "metadata": {}}
# What does not depend on the instances, by the kind of its path.
FIXED: dict[str, Any] = {
    "projects/NAME": {"name": "default", "config": {}},
    "storage-pools/NAME": {"name": "pool", "driver": "btrfs", "config": {}},
    "storage-pools/NAME/resources": {"space": {"total": 10000 * GIB, "used": GIB}},
    "storage-pools/NAME/volumes/custom": [],
    "operations": {}, "operations/NAME": DONE, "operations/NAME/wait": DONE,
}


class NotFound(Exception):
    """There is no such object."""


class Store:
    """The images of all hosts."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}


class Daemon:
    """One host's daemon. Requests to it are answered one at a time.

    :param description: the answer to ``GET /1.0``
    """

    def __init__(self, description: dict[str, Any], store: Store) -> None:
        self._description, self._store = description, store
        self._instances: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def answer(self, method: str, path: list[str], body: Any) -> Any:
        """Return the metadata of the answer; None stands for an operation that has ended.

        :raises NotFound: the object is not there
        """
        match path:
            case ["images", *rest]:
                return self._image(method, rest, body)
            case ["instances", name, *rest]:
                if name not in self._instances:
                    raise NotFound(f"Instance {name} not found")
                return self._instance(method, name, rest, body)
            case ["instances"] if method == "POST":
                return self._create(body)
            case ["instances"]:
                return list(self._instances.values())
        return self._host(path)

    def _host(self, path: list[str]) -> Any:
        kind = kind_of(path)
        if kind and kind not in FIXED:
            raise NotFound(f"{kind} is not simulated")
        return FIXED[kind] if kind else self._description

    def _create(self, body: dict[str, Any]) -> None:
        config = body["config"] | {"volatile.idmap.base": "1000000", "volatile.idmap.next": IDS,
                                   "volatile.idmap.current": IDS}
        self._instances[body["name"]] = {
            "name": body["name"], "type": "container", "project": "default", "status": NAMES[STOPPED],
            "status_code": STOPPED, "profiles": [], "architecture": "x86_64", "config": config,
            "devices": body["devices"], "expanded_config": config, "expanded_devices": body["devices"]}

    def _instance(self, method: str, name: str, rest: list[str], body: Any) -> Any:
        instance = self._instances[name]
        match method, rest:
            case "GET", []:
                return instance
            case "GET", ["state"]:
                return {"status_code": instance["status_code"], "pid": 0}
            case "PUT", ["state"]:
                code = STATES[body["action"]]
                instance |= {"status_code": code, "status": NAMES[code]}
            case "PUT" | "PATCH", []:
                for part in ("config", "devices"):
                    changed = body.get(part, {})
                    instance[part] = instance[part] | changed if method == "PATCH" else changed
                    instance[f"expanded_{part}"] = instance[part]
            case "DELETE", []:
                del self._instances[name]
            case _:
                raise NotFound(f"{method} {rest} of an instance is not simulated")
        return None

    def _image(self, method: str, rest: list[str], body: Any) -> Any:
        images, aliases = self._store.images, self._store.aliases
        match method, rest:
            case "GET", []:
                return list(images.values())
            case "POST", []:
                fingerprint = hashlib.sha256(uuid.uuid4().bytes).hexdigest()
                images[fingerprint] = {"fingerprint": fingerprint, "properties": {}, "aliases": []}
                return {"fingerprint": fingerprint}
            case "POST", ["aliases"]:
                aliases[body["name"]] = body["target"]
                images[body["target"]]["aliases"].append({"name": body["name"]})
                return {}
            case "GET", ["aliases", name]:
                if name not in aliases:
                    raise NotFound(f"Image alias {name} not found")
                return {"name": name, "target": aliases[name]}
            case "GET", [fingerprint] if fingerprint in images:
                return images[fingerprint]
            case "PATCH", [fingerprint] if fingerprint in images:
                images[fingerprint] |= body
                return {}
        raise NotFound("Image not found")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answer one request; the driver opens a connection for each."""

    server: "Server"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        path = [parse.unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")[1:]]
        if path == ["events"]:
            self._listen()
            return
        self.server.log.write(f"{self.command} /{kind_of(path)}\n")
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw and (self.command, path) != ("POST", ["images"]) else None
        try:
            with self.server.daemon.lock:
                found = self.server.daemon.answer(self.command, path, body)
        except NotFound as error:
            self._send(404, {"type": "error", "error": str(error), "error_code": 404})
        else:
            if found is None:
                self._send(202, ended())
            else:
                self._send(200, {"type": "sync", "status_code": 200, "metadata": found})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for key, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("ETag", "1")):
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def _listen(self) -> None:
        """Accept a websocket for events, of which there are none."""
        accepted = hashlib.sha1(f"{self.headers['Sec-WebSocket-Key']}{WEBSOCKET}".encode()).digest()
        self.protocol_version = "HTTP/1.1"
        self.send_response(101)
        for key, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"),
                           ("Sec-WebSocket-Accept", base64.b64encode(accepted).decode())):
            self.send_header(key, value)
        self.end_headers()
        self.rfile.read(1)
        self.close_connection = True

    def log_message(self, *words: Any) -> None:
        """Write no line of its own."""

    def address_string(self) -> str:
        return "local"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, daemon: Daemon, log: Any) -> None:
        self.daemon, self.log = daemon, log
        super().__init__(str(path), Handler)


def ended() -> dict[str, Any]:
    """Return the answer to a request whose operation has ended already."""
    operation = {"id": str(uuid.uuid4()), "status_code": 200, "status": "Success"}
    return {"type": "async", "status_code": 100, "operation": f"/1.0/operations/{operation['id']}",
            "metadata": operation}


def kind_of(path: list[str]) -> str:
    """Return a path without its names."""
    return "images" if path[:1] == ["images"] else "/".join("NAME" if at == 1 else part for at, part in enumerate(path))


def main() -> None:
    directory, hosts = Path(sys.argv[1]), int(sys.argv[2])
    description, store = json.loads((directory / "description").read_text()), Store()
    log = (directory / "requests").open("a", buffering=1)
    for number in range(1, hosts + 1):
        own = description | {"environment": description["environment"] | {"server_name": f"host-{number}"}}
        server = Server(directory / f"{number}.socket", Daemon(own, store), log)
        threading.Thread(target=server.serve_forever, args=(3600,), daemon=True).start()
    (directory / "ready").touch()
    threading.Event().wait()


if __name__ == "__main__":
    main()
