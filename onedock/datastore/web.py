# SPDX-License-Identifier: Apache-2.0
"""Request documents at a tenant's address from registries and web servers.

The user's environment (``~/.netrc``) is not used, each redirect is checked before it is followed, and connections to
this machine or to link-local addresses (cloud metadata services) are refused, unless the administrator lists the
host. The address of the actual connection is checked, whatever a name resolved to before.
"""

import io
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
import urllib3
import urllib3.connection
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies

from onedriver.errors import BadInput

TIMEOUT = (10, 60)  # seconds to connect, and without a byte
REDIRECTS_LIMIT = 5
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # what requests reads from the environment

Authorize = Callable[[requests.PreparedRequest], requests.PreparedRequest] | tuple[str, str] | None


class Web:
    """Request documents over HTTP, refusing unlisted connections to the front-end and its link-local addresses.

    :param listed: hosts of the administrator, as in addresses: with the port unless it is the usual one
    """

    def __init__(self, listed: Collection[str] = ()) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.hooks["response"].append(_without_body)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Adapter(frozenset(listed)))

    def get(self, url: str, require: Callable[[SplitResult], None], auth: Authorize = None,
            params: Mapping[str, str] | None = None, accept: str = "*/*") -> requests.Response:
        """Request a document without reading its body.

        :param require: refuses an address by an error; called for each redirect
        :param auth: for this address; not sent to others
        :raises BadInput: it is a local or link-local address, or a redirect is invalid
        """
        first = urlsplit(url)
        for _ in range(REDIRECTS_LIMIT + 1):
            at = urlsplit(url)
            response = self._session.get(
                url, stream=True, timeout=TIMEOUT, allow_redirects=False, params=params,
                auth=auth if (at.scheme, at.netloc) == (first.scheme, first.netloc) else None,
                headers={"Accept": accept, "Accept-Encoding": "identity"}, proxies=get_environ_proxies(url),
                verify=next((os.environ[name] for name in CA_BUNDLES if os.environ.get(name)), True))
            if not response.is_redirect:
                return response
            url, params = urljoin(response.url, response.headers["Location"]), None
            if urlsplit(url).scheme not in ("http", "https"):
                raise BadInput(f"{first.netloc} redirects to {url[:100]}, which is neither http:// nor https://")
            require(urlsplit(url))
        raise BadInput(f"{first.netloc} redirects more than {REDIRECTS_LIMIT} times")


def _without_body(response: requests.Response, **_: Any) -> None:
    """Drop the body of a redirect, which requests would read into memory even without following it."""
    if response.is_redirect:
        response.close()
        response.raw = io.BytesIO()


def require_foreign(address: str, host: str) -> None:
    """Raise BadInput on an address of this machine, or a link-local one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast:
        raise BadInput(f"{host} is {found}, an address of the front-end itself or a link-local one; list {host} in "
                       "ONEDOCK_HOSTS to permit images from there")


class _Adapter(HTTPAdapter):
    def __init__(self, listed: frozenset[str]) -> None:
        self._listed = listed
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        """Create connections that check their peer's address. A proxy has other ones, and resolves names itself."""
        super().init_poolmanager(*arguments, **named)
        listed = self._listed

        class Http(urllib3.connection.HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return _checked(super()._new_conn(), self, listed)

        class Https(urllib3.connection.HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return _checked(super()._new_conn(), self, listed)

        class HttpPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Http

        class HttpsPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Https

        self.poolmanager.pool_classes_by_scheme = {"http": HttpPool, "https": HttpsPool}


def _checked(connected: socket.socket, connection: urllib3.connection.HTTPConnection, listed: frozenset[str]
             ) -> socket.socket:
    name = f"[{connection.host}]" if ":" in connection.host else connection.host
    host = name if connection.port == connection.default_port else f"{name}:{connection.port}"
    if host not in listed:
        try:
            require_foreign(str(connected.getpeername()[0]), host)
        except BadInput:
            connected.close()
            raise
    return connected
