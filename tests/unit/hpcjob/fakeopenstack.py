# SPDX-License-Identifier: Apache-2.0
"""An OpenStack of three APIs over HTTP on loopback, so that the real openstacksdk and keystoneauth run."""

import base64
import http.server
import json
import re
import threading
import urllib.parse
import uuid
from typing import Any

import fixtures
from openstack import connection

NETWORK, IMAGE, FLAVOR = "net-1", "img-1", "fl-1"


class FakeOpenStack(fixtures.Fixture):
    """Servers run as soon as they are looked at twice, two on a host, those that avoid a host on the tenth. Tests set
    what goes wrong.

    :ivar room: servers for which there is room; the next one is refused
    :ivar scheduled: whether servers get a host
    :ivar port_kept: whether a port is still that of its deleted server
    """

    def _setUp(self) -> None:
        self.servers: dict[str, dict[str, Any]] = {}
        self.ports: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.room = 1_000
        self.booting = self.scheduled = True
        self.undeletable = self.port_kept = False
        self.most_ports = 1_000
        self.fail: dict[tuple[str, str], int] = {}
        #: Called after each request with method and path, outside the lock.
        self.after: Any = lambda method, path: None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._lock = threading.RLock()
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.addCleanup(thread.join, 10)
        self.addCleanup(self._server.server_close)
        self.addCleanup(self._server.shutdown)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def connection(self) -> connection.Connection:
        return connection.Connection(
            auth_type="none", compute_endpoint_override=f"{self.url}/compute/v2.1", api_timeout=10,
            network_endpoint_override=f"{self.url}/network/v2.0", image_endpoint_override=f"{self.url}/image/v2")

    def left(self) -> dict[str, int]:
        return {"servers": len(self.servers), "ports": len(self.ports), "groups": len(self.groups)}

    def user_data(self, rank: int, made: int = 0) -> dict[str, str]:
        """The files of a server's cloud-config, by path; of the first that was made with this rank."""
        data = [body["server"]["user_data"] for method, path, body in self.requests
                if (method, path) == ("POST", "/compute/v2.1/servers") and
                body["server"]["metadata"]["hpcjob-rank"] == str(rank)][made]
        text = base64.b64decode(data).decode()
        content = json.loads(text.removeprefix("#cloud-config\n"))
        return {file["path"]: base64.b64decode(file["content"]).decode() for file in content["write_files"]}

    # Answers

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        with self._lock:
            self.requests.append((method, path, body))
            service, _, rest = path.strip("/").partition("/")
            _, _, rest = rest.partition("/")
            kind, _, name = rest.partition("/")
            if self.fail.get((method, kind)):
                return self.fail[method, kind], {"error": {"message": "the fake refuses"}}
            if not kind:
                return 200, self._version(service)
            return getattr(self, f"_{kind.replace('-', '_')}")(method, name, query, body)

    def _version(self, service: str) -> dict[str, Any]:
        if service == "compute":
            return {"version": {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1",
                                "links": [{"rel": "self", "href": f"{self.url}/compute/v2.1/"}]}}
        number = {"network": "v2.0", "image": "v2"}[service]
        return {"versions": [{"id": number, "status": "CURRENT",
                              "links": [{"rel": "self", "href": f"{self.url}/{service}/{number}/"}]}]}

    def _named(self, kind: str, known: str, name: str, query: dict[str, str]) -> tuple[int, Any]:
        entry = {"id": known, "name": known.upper(), "status": "active", "vcpus": 2}
        if name and name != "detail":
            return (200, {kind: entry} if kind != "image" else entry) if name == known else (404, {})
        wanted = query.get("name")
        return 200, {f"{kind}s": [entry] if wanted in (None, entry["name"]) else []}

    def _networks(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return self._named("network", NETWORK, name, query)

    def _images(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return self._named("image", IMAGE, name, query)

    def _flavors(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return self._named("flavor", FLAVOR, name, query)

    def _ports(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            if len(self.ports) >= self.most_ports:
                return 409, {"NeutronError": {"type": "OverQuota",
                                              "message": "Quota exceeded for resources: ['port']."}}
            port = body["port"] | {"id": str(uuid.uuid4()),
                                   "fixed_ips": [{"subnet_id": "s", "ip_address":
                                                  f"10.0.{len(self.ports) // 200}.{len(self.ports) % 200 + 10}"}]}
            self.ports[port["id"]] = port
            return 201, {"port": port}
        if method == "DELETE":
            return (204, None) if self.ports.pop(name, None) else (404, {})
        if name:
            return (200, {"port": self.ports[name]}) if name in self.ports else (404, {})
        return 200, {"ports": [port for port in self.ports.values()
                               if query.get("description") in (None, port["description"])]}

    def _os_server_groups(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            group = {"rules": {}} | body["server_group"] | {"id": str(uuid.uuid4()), "members": []}
            self.groups[group["id"]] = group
            return 200, {"server_group": group}
        if method == "DELETE":
            return (204, None) if self.groups.pop(name, None) else (404, {})
        return 200, {"server_groups": list(self.groups.values())}

    def _servers(self, method: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            return self._make(body)
        if method == "DELETE":
            if name not in self.servers:
                return 404, {}
            self.servers[name]["OS-EXT-STS:task_state"] = "deleting"
            return 204, None
        if name and name != "detail":
            return (200, {"server": self._seen(name)}) if name in self.servers else (404, {})
        found = [self._seen(server) for server in list(self.servers)
                 if re.search(query.get("name", ""), self.servers[server]["name"])]
        return 200, {"servers": [server for server in found if server]}

    def _make(self, body: Any) -> tuple[int, Any]:
        asked = body["server"]
        port = self.ports[asked["networks"][0]["port"]]
        if port.get("device_id"):
            return 409, {"conflictingRequest": {"code": 409, "message": f"Port {port['id']} is still in use."}}
        server = {"id": str(uuid.uuid4()), "name": asked["name"], "metadata": asked["metadata"], "status": "BUILD",
                  "hostId": "", "OS-EXT-STS:task_state": "scheduling", "looks": 0, "port": port,
                  "avoids": body["OS-SCH-HNT:scheduler_hints"].get("task_avoid")}
        port["device_id"] = server["id"]
        if len(self.servers) >= self.room:
            server |= {"status": "ERROR",
                       "fault": {"code": 500, "message": "No valid host was found. no hosts have room"}}
        self.servers[server["id"]] = server
        return 202, {"server": {"id": server["id"], "links": []}}

    def _seen(self, name: str) -> dict[str, Any] | None:
        server = self.servers[name]
        if server["OS-EXT-STS:task_state"] == "deleting":
            server["looks"] += 1
            if server["looks"] > 2 and not self.undeletable:
                del self.servers[name]
                server["port"]["device_id"] = name if self.port_kept else ""
                return None
        elif server["status"] == "BUILD" and self.scheduled:
            host = 10 if server["avoids"] else int(server["metadata"]["hpcjob-rank"]) // 2
            server["hostId"] = f"{host:012x}".ljust(56, "0")
            if self.booting:
                server |= {"status": "ACTIVE", "OS-EXT-STS:task_state": None}
        return {key: value for key, value in server.items() if key not in ("looks", "port", "avoids")}


def _handler(cloud: FakeOpenStack) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: a second one would wait 40 ms for the first one's acknowledgement

        def _do(self) -> None:
            split = urllib.parse.urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = cloud.answer(self.command, split.path, dict(urllib.parse.parse_qsl(split.query)), body)
            cloud.after(self.command, split.path)
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _do

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    return Handler
