# SPDX-License-Identifier: Apache-2.0
"""Connect to the daemon by HTTP: over its socket, or with the one certificate that it may have.

pylxd has the same and much more, which every short command of a driver would spend most of its time with.
"""

import hashlib
import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import requests.adapters
import urllib3
import urllib3.connection

LOCAL = "http+unix://"
PIECE = 1 << 20  # bytes that are sent at a time
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


class Connection(urllib3.connection.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", blocksize=PIECE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Pool(urllib3.HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def _new_conn(self) -> Connection:
        return Connection(self._path)


class LocalAdapter(requests.adapters.HTTPAdapter):
    """:param path: of the daemon's socket
    """

    def __init__(self, path: str) -> None:
        self._pool = Pool(path)
        super().__init__()

    def get_connection_with_tls_context(self, request: Any, verify: Any, proxies: Any = None, cert: Any = None) -> Pool:
        return self._pool

    def request_url(self, request: Any, proxies: Any) -> str:
        return request.path_url

    def close(self) -> None:
        self._pool.close()
        super().close()


class PinnedAdapter(requests.adapters.HTTPAdapter):
    """:param certificate: file of the only one that is accepted, whoever signed it
    :raises ValueError, OSError: there is none in it
    """

    def __init__(self, certificate: str) -> None:
        found = CERTIFICATE.search(Path(certificate).read_text(encoding="ascii"))
        if not found:
            raise ValueError(f"there is no certificate in {certificate}")
        self._fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()
        super().__init__()

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        conn.assert_fingerprint = self._fingerprint
        super().cert_verify(conn, url, False, cert)


def session(url: str, path: str, server_cert: str | None, cert: tuple[str, str | None] | None,
            params: Mapping[str, str]) -> requests.Session:
    """Return an HTTP session for the daemon.

    :param path: of the socket, where ``url`` is one
    :param server_cert: file of the one certificate to accept; None trusts the system's authorities
    :param cert: files of the client's certificate and key
    :param params: of every request
    """
    found = requests.Session()
    # Else REQUESTS_CA_BUNDLE, which clouds set for their own services, would replace the pinned certificate.
    found.trust_env = False
    found.params = dict(params)
    if url.startswith(LOCAL):
        found.mount(LOCAL, LocalAdapter(path))
        return found
    found.cert = cert  # type: ignore[assignment]  # a file may have both, and the key is None then
    if server_cert:
        found.verify = server_cert
        found.mount(url, PinnedAdapter(server_cert))
    return found
