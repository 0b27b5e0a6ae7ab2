"""Requests of Docker's Engine API that are answered at once, by the standard library alone: a connection for each.

Paths, queries and answers: Docker's Engine API, https://docs.docker.com/reference/api/engine/.
"""

import http.client
import json
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.docker.refusals import garbled, refusal, silent, unreachable

SCHEME = "unix://"


class Connection(http.client.HTTPConnection):
    """:param endpoint: the daemon's socket, ``unix:///run/docker.sock``
    :param limit: seconds without an answer
    """

    def __init__(self, endpoint: str, limit: float) -> None:
        super().__init__("docker", timeout=limit)
        self._endpoint = endpoint

    def connect(self) -> None:
        if not self._endpoint.startswith(SCHEME):
            raise OSError(f"it is no socket of this host: {SCHEME}/run/docker.sock is one")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._endpoint.removeprefix(SCHEME))


def ask(asked: str, endpoint: str, method: str, path: str, limit: float, body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None) -> Any:
    """:param asked: for the errors
    :param path: with the API's version
    :returns: the answer from its JSON; None when it has no content
    :raises EngineError: any failure
    """
    target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
    status, _, content = exchange(asked, endpoint, method, target, limit, body)
    if status >= http.client.MULTIPLE_CHOICES and status != http.client.NOT_MODIFIED:
        raise refusal(asked, status, words(content))
    try:
        return json.loads(content) if content else None
    except ValueError as error:
        raise garbled(asked, endpoint, error) from error


def words(content: bytes) -> str:
    """Of a refusal."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")


def version(asked: str, endpoint: str, limit: float) -> str:
    """The API's newest version that the daemon has; its own choice for requests without one is not for good."""
    _, headers, _ = exchange(asked, endpoint, "GET", "/_ping", limit)
    found = headers.get("Api-Version", "")
    if not found.replace(".", "").isdecimal():
        raise errors.EngineError(f"{asked}: {endpoint} does not tell the version of Docker's API; is it Docker's?")
    return found


def exchange(asked: str, endpoint: str, method: str, target: str, limit: float,
             body: Mapping[str, Any] | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
    """:returns: status, headers and content"""
    connection = Connection(endpoint, limit)
    try:
        connection.request(method, target, None if body is None else json.dumps(body).encode(),
                           {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    except TimeoutError as error:
        raise silent(asked, endpoint) from error
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(asked, endpoint, error) from error
    finally:
        connection.close()
