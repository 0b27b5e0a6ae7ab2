# SPDX-License-Identifier: Apache-2.0
"""Call the REST API of LXD and Incus through pylxd, which no other module imports, and map its errors.

Each thread has its own client, because a requests session must not be shared. Formats: LXD's rest-api document;
Incus serves the same. Every request and every wait for an operation has a timeout.
"""

import contextlib
import dataclasses
import functools
import logging
import operator
import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib import parse

import pylxd
import requests
from pylxd.client import get_session_for_url
from pylxd.exceptions import ClientConnectionFailed, LXDAPIException

from containerhost import errors
from containerhost.engines.lxd.config import CGROUP2, host_pages
from containerhost.engines.timeouts import is_timeout
from containerhost.linux import hugepages
from containerhost.linux.sysfs import Host

LOG = logging.getLogger(__name__)

LOCAL = "http+unix://"  # followed by the quoted path of the socket
MESSAGE = 200  # characters that are shown of an answer that is not LXD's
UNIFIED = "/sys/fs/cgroup/cgroup.controllers"  # is there where control groups are of version 2 alone

# Where the daemons' packages put their sockets; the first that is there is taken when no endpoint is given.
USUAL_SOCKETS = (
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/lib/incus/unix.socket",
)

# LXD reports these as plain 400 or 500, or as the text of a failed operation: only the words tell them apart.
TEXTS: tuple[tuple[re.Pattern[str], type[errors.EngineError]], ...] = (
    (re.compile(r"no space left|quota exceeded|out of space|insufficient free space|not enough (free )?space", re.I),
     errors.StorageFull),
    (re.compile(r"(image|alias|instance|container|storage pool|project|profile|network|operation)( \S+)? not found\s*$",
                re.I), errors.EngineNotFound),
    (re.compile(r"image not provided for instance creation", re.I), errors.EngineNotFound),  # Incus 6.0: no such alias
    (re.compile(r"is busy running|non-reusable operation", re.I), errors.EngineBusy),
    (re.compile(r"etag doesn't match", re.I), errors.EngineChanged),
    (re.compile(r"already exists|UNIQUE constraint failed|is running\s*$", re.I), errors.EngineConflict),
    (re.compile(r"context deadline exceeded|timed? ?out", re.I), errors.EngineTimeout),
    (re.compile(r"\b(daemon|LXD|incus) is (shutting down|starting)", re.I), errors.EngineUnavailable),
)

STATUSES: Mapping[int, type[errors.EngineError]] = {
    404: errors.EngineNotFound,
    409: errors.EngineConflict,
    412: errors.EngineChanged,
    503: errors.EngineUnavailable,
    504: errors.EngineTimeout,
    507: errors.StorageFull,
}


class VersionedInstance(NamedTuple):
    """Hold an instance as one request returned it.

    :ivar instance: LXD's document
    :ivar etag: to write it back with, unless it was changed meanwhile
    """

    instance: dict[str, Any]
    etag: str

    def label(self, key: str) -> str | None:
        """Return one of the driver's own labels."""
        found = self.instance["config"].get(f"user.{key}")
        return None if found is None else str(found)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the address, the credentials and the timeouts of the daemon.

    :ivar endpoint: path of its socket or ``https://host:port``; None searches the default places ($LXD_DIR first)
    :ivar cert: file of the client certificate, for https
    :ivar key: file of its key
    :ivar server_cert: file of the one server certificate to accept; None trusts the system's authorities
    :ivar project: None is ``default``
    :ivar request_timeout: seconds without an answer, or without progress of a transfer
    :ivar operation_timeout: seconds a background operation (create, start, delete, import) may take
    """

    endpoint: str | None = None
    cert: str | None = None
    key: str | None = None
    server_cert: str | None = None
    project: str | None = None
    request_timeout: int = 30
    operation_timeout: int = 300

    def url(self) -> str:
        if self.endpoint and not self.endpoint.startswith("/"):
            return self.endpoint.rstrip("/")
        return LOCAL + parse.quote(self.endpoint or usual_socket(), safe="")

    def directory(self, container: str) -> str:
        """Return the daemon's name for the directories of a container."""
        return container if self.project in (None, "", "default") else f"{self.project}_{container}"

    def shown(self) -> str:
        """Return the endpoint for messages."""
        return parse.unquote(self.url().removeprefix(LOCAL))


def usual_socket() -> str:
    own = [os.path.join(os.environ[name], "unix.socket") for name in ("LXD_DIR", "INCUS_DIR") if name in os.environ]
    candidates = [*own, *USUAL_SOCKETS]
    return next((path for path in candidates if os.path.exists(path)), candidates[0])


def error_for(asked: str, status: int, text: str) -> errors.EngineError:
    """Return the error for a failed request: by its status, otherwise by its message.

    :param status: HTTP status, or 400 for an operation that failed
    """
    known = STATUSES.get(status)
    if known is None:
        known = next((kind for words, kind in TEXTS if words.search(text)), errors.EngineError)
    return known(f"{asked}: LXD says: {text.strip() or f'HTTP status {status}'}")


def refusal(asked: str, response: requests.Response) -> errors.EngineError:
    """Return the error for an unsuccessful answer; Incus reports the end of an operation with HTTP status 200."""
    try:
        answer = response.json()
        status = int(answer["error_code"]) if response.status_code == 200 else response.status_code
        return error_for(asked, status, str(answer["error"]))
    except (ValueError, KeyError, TypeError):
        return error_for(asked, response.status_code, response.text[:MESSAGE])


def document(response: requests.Response, asked: str) -> dict[str, Any]:
    """Return the JSON object, with ``type`` and ``metadata``, of an answer of LXD."""
    try:
        answer = response.json()
        return {"type": answer["type"], "metadata": answer["metadata"]}
    except (ValueError, KeyError, TypeError) as error:
        raise not_lxd(asked, response.text, error) from error


def not_lxd(asked: str, text: str, error: Exception) -> errors.EngineError:
    return errors.EngineError(f"{asked}: the answer is not LXD's ({error!r}): {text[:MESSAGE]!r}")


@contextlib.contextmanager
def translated(asked: str, endpoint: str) -> Iterator[None]:
    """Map failures of a request to an EngineError that names the request and the daemon."""
    try:
        yield
    except LXDAPIException as error:
        raise refusal(asked, error.response) from error
    except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError, ClientConnectionFailed) as error:
        if is_timeout(error):
            raise errors.EngineTimeout(f"{asked}: no answer from {endpoint} in time") from error
        raise errors.EngineUnavailable(
            f"{asked}: cannot talk to {endpoint} ({error}); is the daemon running, and may this user reach it?"
        ) from error
    except requests.Timeout as error:
        raise errors.EngineTimeout(f"{asked}: no answer from {endpoint} in time") from error
    except (requests.RequestException, OSError, ValueError) as error:
        # What is wrong with certificate files comes as it is.
        raise errors.EngineError(f"{asked}: request to {endpoint} failed: {error}") from error


def connect(settings: Settings) -> pylxd.Client:
    """Return a connected client of the daemon.

    It works around shortcomings of pylxd 2.4:

    - its session would let REQUESTS_CA_BUNDLE, which clouds set for their own services, replace the pinned certificate
    - it keeps a connection for each URL: 25 open sockets of the daemon in every thread
    - it sends its project with each request, also with one for all projects, which LXD refuses
    """
    url = settings.url()
    session = get_session_for_url(url, verify=settings.server_cert or True,
                                  cert=(settings.cert, settings.key) if settings.cert else None)
    session.trust_env = False
    session.params = {"project": settings.project} if settings.project else {}
    if url.startswith(LOCAL):
        session.headers["Connection"] = "close"
    try:
        return pylxd.Client(url, session=session, timeout=settings.request_timeout)
    except requests.RequestException:
        raise
    except ValueError as error:
        raise ValueError(f"{settings.server_cert}: {error}") from error


class LxdClient:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._local = threading.local()

    # The choke point.

    def _client(self) -> pylxd.Client:
        """Return the calling thread's client; the first call connects."""
        found = getattr(self._local, "client", None)
        if found is None:
            found = self._local.client = connect(self.settings)
        return found

    def request(self, method: str, *path: str, asked: str, **arguments: Any) -> requests.Response:
        """Send a request.

        :param path: segments below ``/1.0``, which pylxd 2.4 does not quote
        :param asked: purpose of the request, for errors
        :param arguments: of requests' methods; ``timeout`` in seconds, ``request_timeout`` without it
        :raises EngineError: the class that :data:`STATUSES` and :data:`TEXTS` have for the failure
        """
        try:
            with translated(asked, self.settings.shown()):
                segments = (parse.quote(segment, safe="") for segment in path)
                node = functools.reduce(operator.getitem, segments, self._client().api)
                # pylxd 2.4 raises TypeError and KeyError for what is no answer of LXD's.
                return getattr(node, method)(**arguments)
        except errors.EngineUnavailable:
            # The daemon that comes back may be another version: every thread connects anew.
            self._local = threading.local()
            raise
        except (KeyError, TypeError) as error:
            raise not_lxd(asked, "", error) from error

    def get(self, *path: str, asked: str, **arguments: Any) -> Any:
        return document(self.request("get", *path, asked=asked, **arguments), asked)["metadata"]

    def _write(self, method: str, *path: str, asked: str, timeout: int | None = None, **arguments: Any) -> Any:
        return self.finish(self.request(method, *path, asked=asked, **arguments), asked, timeout)

    def finish(self, response: requests.Response, asked: str, timeout: int | None = None) -> Mapping[str, Any]:
        """Return the result of a write: from the answer itself, or from the operation it started.

        :param timeout: seconds the operation may take; None is ``operation_timeout``
        """
        answer = document(response, asked)
        if answer["type"] != "async":
            return answer["metadata"] or {}
        return self.wait(answer["metadata"], asked, timeout)

    def wait(self, operation: Mapping[str, Any], asked: str, timeout: int | None = None) -> Mapping[str, Any]:
        """Wait for an operation's end and return its metadata.

        :raises EngineTimeout: it did not end in time; it is cancelled where LXD can
        :raises EngineUnavailable: the daemon stopped, and the operation with it
        :raises OperationForgotten: LXD forgets an operation some seconds after its end, and when it restarts
        """
        limit = self.settings.operation_timeout if timeout is None else timeout
        try:
            response = self.request("get", "operations", operation["id"], "wait", asked=asked,
                                    params={"timeout": str(limit)}, timeout=limit + self.settings.request_timeout)
        except errors.EngineNotFound as error:
            if isinstance(error.__cause__, LXDAPIException) and error.__cause__.response.status_code == 200:
                raise  # Incus: the operation ended because of something that was not found
            raise errors.OperationForgotten(f"{asked}: its result is unknown, because LXD no longer knows the "
                                            "operation: it restarted, or answers very slowly") from error
        except errors.EngineTimeout as error:
            self._cancel(operation)
            raise errors.EngineTimeout(f"{asked}: not done within {limit} s") from error
        done = document(response, asked)["metadata"]
        if done["status_code"] < 200:
            self._cancel(operation)
            raise errors.EngineTimeout(f"{asked}: not done within {limit} s (LXD: {done['status']})")
        if done["status_code"] != 200:
            raise error_for(asked, 400, done.get("err") or done["status"])
        return done.get("metadata") or {}

    def _cancel(self, operation: Mapping[str, Any]) -> None:
        if not operation.get("may_cancel"):
            return
        try:
            self.request("delete", "operations", operation["id"], asked="cancel the operation")
        except errors.EngineError as error:
            LOG.warning("Operation %s (%s) continues: %s", operation["id"], operation.get("description"), error)

    # The server.

    @property
    def extensions(self) -> frozenset[str]:
        """Return the daemon's API extensions, and those that stand for features of the host, as probed."""
        with translated("read the server's API extensions", self.settings.shown()):
            found = frozenset(self._client().host_info["api_extensions"])
        return (found | ({CGROUP2} if os.path.exists(UNIFIED) else set())
                | {host_pages(name) for name in hugepages.limitable(Host())})

    @property
    def daemon(self) -> int | None:
        """Return the daemon's process as it was when the calling thread connected; no request after that."""
        with translated("read the server's description", self.settings.shown()):
            return self._client().host_info["environment"].get("server_pid")

    def server(self) -> Mapping[str, Any]:
        return self.get(asked="read the server's description")

    def pool(self, name: str) -> Mapping[str, Any]:
        return self.get("storage-pools", name, asked=f"read storage pool {name}")

    def pool_space(self, name: str) -> Mapping[str, Any]:
        """Return a pool's ``total`` and ``used``, in bytes."""
        return self.get("storage-pools", name, "resources", asked=f"read the space of storage pool {name}")["space"]

    def volume_use(self, pool: str, name: str) -> int:
        """Return the bytes that a container's volume uses.

        :raises EngineError: also if the pool does not report it
        """
        state = self.get("storage-pools", pool, "volumes", "container", name, "state",
                         asked=f"read the use of container {name}'s volume")
        return int((state.get("usage") or {}).get("used", 0))

    def operations(self) -> list[Mapping[str, Any]]:
        """Return all operations LXD remembers, whatever their status."""
        by_status = self.get("operations", asked="list operations", params={"recursion": "1"})
        return [operation for group in by_status.values() for operation in group or ()]

    def is_over(self, operation: Mapping[str, Any]) -> bool:
        """Return whether an operation has ended, or was forgotten by LXD."""
        try:
            return self.get("operations", operation["id"], asked="look at an operation")["status_code"] >= 200
        except errors.EngineNotFound:
            return True

    # Instances.

    def instances(self, *, all_projects: bool = False) -> list[Mapping[str, Any]]:
        params: dict[str, str | None] = {"recursion": "1"}
        if all_projects:  # beside which LXD refuses the project of every other request
            params |= {"all-projects": "true", "project": None}
        return self.get("instances", asked="list instances", params=params)

    def instances_with_states(self) -> list[Mapping[str, Any]]:
        """Return the instances of :meth:`instances`, each with its ``state`` and ``snapshots``; takes 6 ms each."""
        return self.get("instances", asked="list instances and their states", params={"recursion": "2"})

    def instance(self, name: str) -> VersionedInstance:
        asked = f"read container {name}"
        response = self.request("get", "instances", name, asked=asked)
        return VersionedInstance(document(response, asked)["metadata"], response.headers.get("ETag", ""))

    def create_instance(self, body: Mapping[str, Any], timeout: int | None = None) -> None:
        self._write("post", "instances", asked=f"create container {body['name']}", timeout=timeout, json=body)

    def begin_creation(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Request a container without waiting for it.

        :returns: the operation, for :meth:`wait`
        """
        asked = f"create container {body['name']}"
        return document(self.request("post", "instances", asked=asked, json=body), asked)["metadata"]

    def replace_instance(self, name: str, body: Mapping[str, Any], etag: str) -> None:
        """Replace an instance's configuration.

        :raises EngineChanged: the instance changed since ``etag`` was read
        """
        self._write("put", "instances", name, asked=f"change container {name}", json=body, headers={"If-Match": etag})

    def patch_instance(self, name: str, body: Mapping[str, Any], etag: str | None = None) -> None:
        """Set the given keys and devices and keep all others; cannot remove any."""
        headers = {"If-Match": etag} if etag else {}
        self._write("patch", "instances", name, asked=f"change container {name}", json=body, headers=headers)

    def rename_instance(self, name: str, new: str) -> None:
        self._write("post", "instances", name, asked=f"rename container {name} to {new}", json={"name": new})

    def delete_instance(self, name: str) -> None:
        self._write("delete", "instances", name, asked=f"delete container {name}")

    def set_state(self, name: str, action: str, *, force: bool = False, timeout: int | None = None) -> None:
        """Change the state of an instance.

        :param action: start, stop, restart, freeze or unfreeze
        :param timeout: seconds LXD lets the guest take; None is ``operation_timeout``
        """
        asked = f"{action} container {name}"
        limit = self.settings.operation_timeout if timeout is None else timeout
        body = {"action": action, "force": force, "timeout": limit}
        response = self.request("put", "instances", name, "state", asked=asked, json=body)
        # LXD's own timeout expires first and gives the reason.
        self.finish(response, asked, limit + self.settings.request_timeout)

    def state(self, name: str) -> Mapping[str, Any]:
        return self.get("instances", name, "state", asked=f"read the state of container {name}")

    def console_log(self, name: str) -> bytes:
        asked = f"read the console log of container {name}"
        return self.request("get", "instances", name, "console", asked=asked, is_api=False).content

    def log(self, name: str, file: str) -> bytes:
        asked = f"read log {file} of container {name}"
        return self.request("get", "instances", name, "logs", file, asked=asked, is_api=False).content

    # Images.

    def images(self) -> list[Mapping[str, Any]]:
        return self.get("images", asked="list images", params={"recursion": "1"})

    def image(self, fingerprint: str) -> Mapping[str, Any]:
        return self.get("images", fingerprint, asked=f"read image {fingerprint}")

    def image_alias(self, alias: str) -> Mapping[str, Any]:
        return self.get("images", "aliases", alias, asked=f"read image alias {alias}")

    def create_image_alias(self, alias: str, fingerprint: str) -> None:
        body = {"name": alias, "target": fingerprint, "description": ""}
        self.request("post", "images", "aliases", asked=f"create image alias {alias}", json=body)

    def delete_image_alias(self, alias: str) -> None:
        self.request("delete", "images", "aliases", alias, asked=f"delete image alias {alias}")

    def upload_image(self, content: Any, headers: Mapping[str, str]) -> str:
        """Send an image and return its fingerprint.

        :param content: file-like and of known length; read in pieces
        """
        made = self._write("post", "images", asked="import an image", data=content, headers=dict(headers))
        return made["fingerprint"]

    def patch_image(self, fingerprint: str, body: Mapping[str, Any]) -> None:
        self._write("patch", "images", fingerprint, asked=f"change image {fingerprint}", json=body)

    def delete_image(self, fingerprint: str) -> None:
        self._write("delete", "images", fingerprint, asked=f"delete image {fingerprint}")
