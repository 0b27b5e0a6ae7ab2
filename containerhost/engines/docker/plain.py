"""Requests of Docker's Engine API that are answered at once: a connection for each, by HTTP/1.0 (RFC 1945), whose
answers end with it. The standard library's client brings mail and TLS along, which a short action would wait for.

Paths, queries and answers: Docker's Engine API, https://docs.docker.com/reference/api/engine/.
"""

import json
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.docker.refusals import garbled, refusal, silent, unreachable

SCHEME = "unix://"
NO_SUCCESS, NOT_MODIFIED = 300, 304
CHUNK = 1 << 16  # bytes


def ask(asked: str, endpoint: str, method: str, path: str, limit: float, body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None) -> Any:
    """:param asked: for the errors
    :param path: with the API's version
    :returns: the answer from its JSON; None when it has no content
    :raises EngineError: any failure
    """
    target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
    status, _, content = exchange(asked, endpoint, method, target, limit, body)
    if status >= NO_SUCCESS and status != NOT_MODIFIED:
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
    found = headers.get("api-version", "")
    if not found.replace(".", "").isdecimal():
        raise errors.EngineError(f"{asked}: {endpoint} does not tell the version of Docker's API; is it Docker's?")
    return found


def exchange(asked: str, endpoint: str, method: str, target: str, limit: float,
             body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, str], bytes]:
    """:returns: status, headers by their names in small letters, and content"""
    content = b"" if body is None else json.dumps(body).encode()
    head = (f"{method} {target} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n")
    try:
        answer = talk(endpoint, head.encode() + content, limit)
    except TimeoutError as error:
        raise silent(asked, endpoint) from error
    except OSError as error:
        raise unreachable(asked, endpoint, error) from error
    try:
        status, headers, found = parsed(answer)
    except (ValueError, IndexError) as error:
        raise garbled(asked, endpoint, error) from error
    if len(found) < int(headers.get("content-length", 0)):
        raise unreachable(asked, endpoint, "it ended in the middle of its answer")
    return status, headers, found


def talk(endpoint: str, request: bytes, limit: float) -> bytes:
    """:raises OSError: nobody answers, or not in time"""
    if not endpoint.startswith(SCHEME):
        raise OSError(f"it is no socket of this host: {SCHEME}/run/docker.sock is one")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit)
        connection.connect(endpoint.removeprefix(SCHEME))
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(CHUNK), b""))
    if not answer:
        raise ConnectionResetError("it ended without an answer")
    return answer


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """:raises ValueError, IndexError: it is none of HTTP"""
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in rest)
    if not first.startswith("HTTP/"):
        raise ValueError(f"it begins with {first[:40]!r}")
    return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}, content
