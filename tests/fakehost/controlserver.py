# SPDX-License-Identifier: Apache-2.0
"""The emulated host's side of its control socket (:mod:`tests.fakehost.control`)."""

import errno
import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakehost.control import FakeHostControl

LOG = logging.getLogger(__name__)

_NOT_CALLS = ("from_environment", "vf_state")
CALLS = tuple(name for name in vars(FakeHostControl) if not name.startswith("_") and name not in _NOT_CALLS)


def serve(path: str, calls: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests in threads of their own until the process ends."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request = json.loads(self.rfile.readline())
            self.wfile.write(json.dumps(_answer(calls, request)).encode() + b"\n")

    server = socketserver.ThreadingUnixStreamServer(path, Handler)
    server.daemon_threads = True
    os.chmod(path, 0o600)
    threading.Thread(target=server.serve_forever, name="control", daemon=True).start()


def _answer(calls: Mapping[str, Callable[..., Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"result": calls[request["call"]](**request["arguments"])}
    except OSError as error:
        return {"error": error.strerror or str(error), "errno": error.errno or errno.EIO}
    except Exception as error:
        LOG.exception("the emulated host failed to answer %r", request)
        return {"error": repr(error), "errno": errno.EIO}
