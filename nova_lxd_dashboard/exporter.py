# SPDX-License-Identifier: Apache-2.0
"""Request a host's map from its exporter (``containerhost exporter``).

A host may be compromised by a tenant: its answer has a limit of seconds and length, redirects are not followed, and
the content is rebuilt. Environment variables for proxies and ``.netrc`` are not read.
"""

import contextlib
import http.client
import io
import ipaddress
import json
import re
import socket
import ssl
import time
from typing import Self
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostmap import HostMap
from containerhost.operator.reports.report import printable
from nova_lxd_dashboard.accelerators import Service

SETTING = "NOVA_LXD_EXPORTER_URL"
"""The setting with the URL of the exporters, where ``{host}`` is a host's name and ``{ip}`` its address in nova."""

EXAMPLE = "http://{ip}:9869"

PATH = "/topology"

TIMEOUT = 5
"""Seconds for a whole answer. The resolver of names has limits of its own."""

LARGEST = 1 << 20
"""Bytes of an answer with its headers. The map of a host with 1000 virtual functions has a tenth."""

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")

TOLD = 500
"""Letters of a reason that are shown."""


class ExporterFailed(Exception):
    """Signal that an exporter cannot be queried, does not answer, or returns something other than a map."""

    def __init__(self, reason: str) -> None:
        """Store a reason, part of which the host may have written."""
        super().__init__(printable(reason)[:TOLD])


def configured() -> bool:
    return bool(_pattern())


def host_map(host: str, service: Service) -> HostMap:
    """Return the map of a host.

    :param service: as reported by nova
    :raises ExporterFailed:
    """
    where = url(_pattern(), host, service.ip)
    try:
        return document.load(json.loads(_content(where)))
    except (ValueError, RecursionError) as error:
        raise ExporterFailed(f"{where} does not answer with a map of a host: {error}") from error


def _pattern() -> str:
    return str(getattr(settings, SETTING, None) or "")


def url(pattern: str, host: str, ip: str) -> str:
    """Return the URL of a host's map. Pure.

    :raises ExporterFailed: the pattern is invalid, or the name or the address that it needs
    """
    if "{host}" not in pattern and "{ip}" not in pattern:
        raise ExporterFailed(f"{SETTING} is {pattern!r}, without {{host}} and {{ip}}; it should be like {EXAMPLE}")
    if "{host}" in pattern and not NAME.fullmatch(host):
        raise ExporterFailed(f"the host's name {host!r} cannot be part of a URL: use {{ip}} in {SETTING} instead")
    found = pattern.rstrip("/").replace("{host}", host).replace("{ip}", _address(ip) if "{ip}" in pattern else "")
    try:
        parts = urlsplit(found)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("it must have http or https, a host and a port")
    except ValueError as error:
        raise ExporterFailed(f"{SETTING} is {pattern!r}, which gives {found!r}: {error}; it should be like "
                             f"{EXAMPLE}") from error
    return f"{found}{PATH}"


def _address(ip: str) -> str:
    try:
        address = ipaddress.ip_address(ip)
    except ValueError as error:
        raise ExporterFailed(f"nova has no address of the host: {error}") from error
    return f"[{address}]" if address.version == 6 else str(address)


def _content(where: str) -> bytes:
    """Return the JSON at a URL.

    :raises ExporterFailed:
    """
    try:
        with _asked(urlsplit(where), time.monotonic() + TIMEOUT) as answer:
            content, kind = answer.read(), answer.headers.get_content_type()
    except TimeoutError as error:
        raise ExporterFailed(f"{where} has not answered within {TIMEOUT} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ExporterFailed(f"{where} does not answer: {error or type(error).__name__}") from error
    if answer.status != http.HTTPStatus.OK:
        told = content.decode(errors="replace") if kind == "text/plain" else "it says no more"
        raise ExporterFailed(f"{where} answers {answer.status} {answer.reason}: {told.strip()}")
    if kind != "application/json":
        raise ExporterFailed(f"{where} answers {kind}, not a map of a host: upgrade nova-lxd-ext there")
    return content


class _Received(io.BytesIO):
    """Provide received bytes to :class:`http.client.HTTPResponse`, which reads them from a socket's file."""

    def makefile(self, _mode: str) -> Self:
        return self


def _asked(where: SplitResult, deadline: float) -> http.client.HTTPResponse:
    """Return the complete answer of a URL. Redirects are answers, too.

    :param deadline: of time.monotonic
    :raises OSError:
    :raises http.client.HTTPException:
    """
    host = str(where.hostname)
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(_connected(host, where.port or (443 if where.scheme == "https" else 80),
                                                   deadline))
        if where.scheme == "https":
            connected = stack.enter_context(_tls().wrap_socket(connected, server_hostname=host))
        connection = http.client.HTTPConnection(host, where.port)
        connection.sock = connected
        connection.request("GET", where.path, headers={"Accept": "application/json", "Connection": "close"})
        answer = http.client.HTTPResponse(_Received(_received(connected, deadline)))  # type: ignore[arg-type]
    answer.begin()
    return answer


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Return a connection whose timeout is the time left until the deadline."""
    failed: OSError = TimeoutError("there was no time to connect")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(_left(deadline))
            found.connect(address)
        except OSError as error:
            found.close()
            failed = error
        else:
            return found
    raise failed


def _tls() -> ssl.SSLContext:
    """Return the TLS context of Horizon's settings. A handshake has one timeout: the socket's."""
    authorities = settings.OPENSTACK_SSL_CACERT
    context = ssl.create_default_context(cafile=authorities if isinstance(authorities, str) else None)
    if settings.OPENSTACK_SSL_NO_VERIFY:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _received(connected: socket.socket, deadline: float) -> bytes:
    """Return all bytes until the other end closes.

    :raises ValueError: it is too long
    """
    content = bytearray()
    while len(content) <= LARGEST:
        connected.settimeout(_left(deadline))
        part = connected.recv(1 << 16)
        if not part:
            return bytes(content)
        content += part
    raise ValueError(f"the answer is longer than {LARGEST} bytes")


def _left(deadline: float) -> float:
    """Return the seconds until a deadline.

    :raises TimeoutError: it has passed
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
