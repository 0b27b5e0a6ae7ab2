# SPDX-License-Identifier: Apache-2.0
"""Fetch images of a registry, over its HTTP API (the OCI distribution specification, "Pull").

Every answer has a limit, every content is checked against its digest, and credentials go only where they belong: to the
registry they are for, and to the address that it names for tokens, over TLS unless the registry is without it.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

import requests
import urllib3.exceptions
from requests.utils import parse_dict_header

from onedock.datastore import content, digests
from onedock.datastore.content import Content, Layer
from onedock.datastore.reference import HUB, Reference
from onedriver.errors import BadInput, DriverError

TIMEOUT = (10, 60)  # seconds to connect, and without a byte
MANIFEST_LIMIT = 4 << 20  # bytes; the specification's
TOKEN_LIMIT = 1 << 16  # bytes
HUB_API = "registry-1.docker.io"
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

Credentials = tuple[str, str]  # user and password


class RegistryError(DriverError):
    """A registry does not answer, or not as one."""


class Denied(BadInput):
    """The registry wants other credentials."""


class Registry:
    """:param host: as references write it
    :param plain: whether it is spoken to without TLS
    """

    def __init__(self, host: str, credentials: Credentials | None = None, plain: bool = False) -> None:
        self._host = host
        self._credentials = credentials
        self._plain = plain
        self._token: str | None = None
        self._session = requests.Session()
        self._session.max_redirects = 5
        self._session.hooks["response"].append(without_body)
        self._session.auth = self._authorize  # also keeps requests from looking for a ~/.netrc

    def content(self, wanted: Reference, architecture: str) -> Content:
        """Return an image of the registry.

        :raises BadInput: there is no such image, it is for other machines, or not for these credentials
        """
        what = str(wanted)
        data = self._manifest(wanted, wanted.version)
        pinned = wanted.pinned(digests.of(data))
        manifest = content.manifest(data, lambda digest: self._manifest(wanted, digest), architecture, what)
        config, layers = content.layers_of(manifest, what)
        return Content(
            config=self._small(wanted, f"blobs/{config['digest']}", config["digest"], content.CONFIG_LIMIT),
            layers=tuple(Layer(self._opener(wanted, one["digest"]), one["digest"], one["size"]) for one in layers),
            reference=str(pinned), size=sum(one["size"] for one in layers))

    def _manifest(self, wanted: Reference, version: str) -> bytes:
        return self._small(wanted, f"manifests/{version}", version if ":" in version else None, MANIFEST_LIMIT)

    def _small(self, wanted: Reference, path: str, digest: str | None, limit: int) -> bytes:
        with self._get(wanted, path) as response, failures(self._host):
            data = response.raw.read(limit + 1, decode_content=False)
        if len(data) > limit:
            raise RegistryError(f"{wanted}: the answer of {self._host} is larger than {limit >> 20} MiB")
        digests.require(f"a part of {wanted}", digest, digests.of(data))
        return data

    def _opener(self, wanted: Reference, digest: str) -> Any:
        @contextlib.contextmanager
        def opened() -> Iterator[BinaryIO]:
            with self._get(wanted, f"blobs/{digest}") as response, failures(self._host):
                yield cast(BinaryIO, response.raw)
        return opened

    @contextlib.contextmanager
    def _get(self, wanted: Reference, path: str) -> Iterator[requests.Response]:
        with failures(self._host):
            response = self._ask(wanted, path)
            if response.status_code == 401:
                challenge = response.headers.get("WWW-Authenticate", "")
                response.close()
                self._answer(challenge, wanted)
                response = self._ask(wanted, path)
        with response:
            if response.status_code != 200:
                raise refused(wanted, self._host, response.status_code, self._credentials is not None)
            yield response

    def _ask(self, wanted: Reference, path: str) -> requests.Response:
        host = HUB_API if self._host == HUB else self._host
        response = self._session.get(
            f"{'http' if self._plain else 'https'}://{host}/v2/{wanted.name}/{path}", stream=True, timeout=TIMEOUT,
            headers={"Accept": ", ".join((*INDEXES, *MANIFESTS)), "Accept-Encoding": "identity"})
        if urlsplit(response.url).scheme != "https" and not self._plain:
            response.close()
            raise RegistryError(f"{self._host} sends {wanted} on to an address without TLS")
        return response

    # Authentication: the distribution project's token specification.

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = self._token
        return request

    def _answer(self, challenge: str, wanted: Reference) -> None:
        kind, _, rest = challenge.partition(" ")
        values = parse_dict_header(rest)
        if kind.lower() == "basic" and self._credentials:
            self._token = requests.auth._basic_auth_str(*self._credentials)
        elif kind.lower() == "bearer" and values.get("realm"):
            self._token = f"Bearer {self._fetched_token(values, wanted)}"
        else:
            raise Denied(f"{wanted}: {self._host} wants credentials, and this datastore has none for it "
                         "(ONEDOCK_CREDENTIALS_FILE)")

    def _fetched_token(self, values: Mapping[str, Any], wanted: Reference) -> str:
        realm = str(values["realm"])
        if urlsplit(realm).scheme != "https" and not self._plain:
            raise RegistryError(f"{self._host} wants tokens from {realm[:100]}, which is without TLS")
        with got(realm, auth=self._credentials or no_netrc, params={
                "service": str(values.get("service", "")), "scope": f"repository:{wanted.name}:pull"}) as response:
            if response.status_code != 200:
                raise refused(wanted, self._host, response.status_code, self._credentials is not None)
            found = content.parsed(response.raw.read(TOKEN_LIMIT, decode_content=False), f"the token of {self._host}")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise RegistryError(f"{self._host}: the answer of {urlsplit(realm).hostname} has no token")
        return token


def got(url: str, **options: Any) -> requests.Response:
    """Ask a server for something, of which nothing is read yet.

    :param options: of :func:`requests.get`
    """
    return requests.get(url, stream=True, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"},
                        hooks={"response": without_body}, **options)


def without_body(response: requests.Response, **_: Any) -> None:
    """Drop the body of an answer that sends on to another address: requests would read all of it into memory."""
    if response.is_redirect:
        response.close()
        response.raw = io.BytesIO()


def no_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def refused(wanted: Reference, host: str, status: int, known: bool) -> DriverError:
    match status:
        case 404:
            return BadInput(f"there is no image {wanted}: {host} knows no such name, tag or digest")
        case 401 | 403:
            what = "the credentials that this datastore has for it" if known else "requests without credentials, and " \
                "this datastore has none for it (ONEDOCK_CREDENTIALS_FILE); or there is no such image"
            return Denied(f"{wanted}: {host} refuses {what}")
        case 429:
            return RegistryError(f"{wanted}: {host} answers no more requests for now (429); try again later, or give "
                                 "this datastore credentials")
        case _:
            return RegistryError(f"{wanted}: {host} answers with HTTP status {status}")


@contextlib.contextmanager
def failures(host: str) -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RegistryError(f"{host} cannot be reached ({type(error).__name__}: {str(error)[:300]}); is its name "
                            "right, and does it speak TLS (ONEDOCK_PLAIN_HOSTS)?") from error
