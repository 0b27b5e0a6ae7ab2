# SPDX-License-Identifier: Apache-2.0
"""Serve the map of the host: its topology, allocations and faults."""

import json
import logging
import threading
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from containerhost.allocation.store import AllocationStore
from containerhost.errors import AllocationsUnreadable
from containerhost.linux.sysfs import Host
from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostreader import read_map

LOG = logging.getLogger(__name__)

PATH = "/topology"


class TopologyPage:
    """Serve the host's map as a WSGI application; concurrent requests wait for each other."""

    def __init__(self, host: Host, store: AllocationStore) -> None:
        self._host = host
        self._store = store
        self._lock = threading.Lock()

    def __call__(self, _environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            with self._lock:
                found = read_map(self._host, self._store.records())
        except AllocationsUnreadable as error:
            LOG.error("The map of the host cannot be served: %s", error)
            return _answer(start_response, "503 Service Unavailable", "text/plain; charset=utf-8", f"{error}\n")
        return _answer(start_response, "200 OK", "application/json", json.dumps(document.dump(found)))


def _answer(start_response: StartResponse, status: str, content_type: str, text: str) -> Iterable[bytes]:
    content = text.encode()
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(content))),
                            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")])
    return [content]
