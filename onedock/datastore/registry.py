# SPDX-License-Identifier: Apache-2.0
"""Fetch images of a registry, over its HTTP API (the OCI distribution specification, "Pull").

Every answer has a limit, every content is verified by its digest, and credentials are sent only to their registry,
and to the address that it names for tokens, over TLS unless the registry is accessed without it.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, cast
from urllib.parse import SplitResult, urlsplit

import requests
import urllib3.exceptions

from onedock.datastore import challenges, content, digests
from onedock.datastore.content import Content, Layer
from onedock.datastore.reference import HUB, Reference
from onedock.datastore.web import Web
from onedriver.errors import BadInput, DriverError

MANIFEST_LIMIT = 4 << 20  # bytes; the specification's
TOKEN_LIMIT = 1 << 16  # bytes
HUB_API = "registry-1.docker.io"
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

Credentials = tuple[str, str]  # user and password


class RegistryError(DriverError):
    """Signal that a registry does not answer, or not with a valid answer."""


class Denied(BadInput):
    """Signal that the registry requires other credentials."""


class Registry:
    """Fetch images of one registry, with the authentication that it requires.

    :param host: as in references
    :param plain: whether it is accessed without TLS
    :param listed: hosts permitted by the administrator, which may be on this machine; includes plain ones
    """

    def __init__(self, host: str, credentials: Credentials | None = None, plain: bool = False,
                 listed: Collection[str] = ()) -> None:
        self._host = host
        self._credentials = credentials
        self._plain = plain
        self._token: str | None = None
        self._web = Web({*listed, host} if plain else listed)

    def content(self, wanted: Reference, architecture: str) -> Content:
        """Return an image; raise BadInput if there is none for this architecture and these credentials."""
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
                offered = challenges.parse(response.headers.get("WWW-Authenticate", ""))
                response.close()
                response = self._asked_again(offered, wanted, path)
        with response:
            if response.status_code != 200:
                raise refused(wanted, self._host, response.status_code, self._credentials is not None)
            yield response

    def _ask(self, wanted: Reference, path: str) -> requests.Response:
        host = HUB_API if self._host == HUB else self._host
        return self._web.get(
            f"{'http' if self._plain else 'https'}://{host}/v2/{wanted.name}/{path}",
            lambda at: self._require_tls(at, f"{self._host} sends {wanted} on to an address"), self._authorize,
            accept=", ".join((*INDEXES, *MANIFESTS)))

    def _require_tls(self, at: SplitResult, what: str) -> None:
        if at.scheme != "https" and not self._plain:
            raise RegistryError(f"{what} without TLS: {at.netloc[:100]}")

    # Authentication: the distribution project's token specification.

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = self._token
        return request

    def _asked_again(self, offered: list[challenges.Challenge], wanted: Reference, path: str) -> requests.Response:
        """Return the answer to the strongest authentication that the registry accepts, or raise Denied."""
        error: Exception = Denied(f"{wanted}: {self._host} wants credentials, and this datastore has none for it "
                                  "(ONEDOCK_CREDENTIALS_FILE)")
        for scheme, values in sorted(offered, key=lambda challenge: challenge.scheme != "bearer"):
            try:
                if scheme == "bearer" and values.get("realm"):
                    self._token = f"Bearer {self._fetched_token(values, wanted)}"
                elif scheme == "basic" and self._credentials:
                    self._token = requests.auth._basic_auth_str(*self._credentials)
                else:
                    continue
            except (Denied, RegistryError) as refusal:
                error = refusal
                continue
            response = self._ask(wanted, path)
            if response.status_code != 401:
                return response
            response.close()
            error = refused(wanted, self._host, 401, self._credentials is not None)
        raise error

    def _fetched_token(self, values: Mapping[str, str], wanted: Reference) -> str:
        realm = values["realm"]
        self._require_tls(urlsplit(realm), f"{self._host} wants tokens from an address")
        with self._web.get(
                realm, lambda at: self._require_tls(at, f"{self._host} has its tokens at an address"),
                self._credentials, params={"service": values.get("service", ""),
                                           "scope": f"repository:{wanted.name}:pull"}) as response:
            if response.status_code != 200:
                raise refused(wanted, self._host, response.status_code, self._credentials is not None)
            found = content.parsed(response.raw.read(TOKEN_LIMIT, decode_content=False), f"the token of {self._host}")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise RegistryError(f"{self._host}: the answer of {urlsplit(realm).hostname} has no token")
        return token


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
