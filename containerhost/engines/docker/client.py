# SPDX-License-Identifier: Apache-2.0
"""Call Docker's Engine API, one method per call. Every request and every wait has a timeout."""

import contextlib
import dataclasses
import json
import re
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from containerhost import errors
from containerhost.engines.docker import sdk
from containerhost.engines.docker.attached import Attached
from containerhost.engines.docker.error_map import error_for

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

LATEST = "latest"  # a tag
MAYBE_ID = re.compile("[0-9a-f]{1,11}")  # docker ps shows twelve digits of an id


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the address and the timeouts of the daemon.

    :ivar operation_timeout: seconds that making, starting or removing a container may take
    """

    endpoint: str = "unix:///run/docker.sock"
    request_timeout: int = 30
    operation_timeout: int = 120


class DockerClient:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._local = threading.local()

    # All requests pass these two functions.

    def _ask(self, operation: str, method: str, path: str, body: Mapping[str, Any] | None = None,
             query: Mapping[str, object] | None = None, timeout: float | None = None) -> Any:
        """Send a request.

        :param timeout: seconds without an answer; None is ``request_timeout``
        :returns: the answer; None when it has no content
        """
        with self._connected(operation, timeout) as api:
            return api.ask(method, path, body, query)

    def _act(self, operation: str, method: str, path: str, body: Mapping[str, Any] | None = None,
             query: Mapping[str, object] | None = None) -> Any:
        return self._ask(operation, method, path, body, query, self.settings.operation_timeout)

    @contextlib.contextmanager
    def _connected(self, operation: str, timeout: float | None = None) -> Iterator[sdk.Connection]:
        """Connect if the thread has no connection, and translate errors in the block.

        :param timeout: seconds without an answer; None is ``request_timeout``
        """
        try:
            with sdk.translated(operation, self.settings.endpoint):
                if getattr(self._local, "api", None) is None:
                    self._local.api = sdk.Connection(self.settings.endpoint, "auto", self.settings.request_timeout)
                self._local.api.timeout = timeout or self.settings.request_timeout
                yield self._local.api
        except errors.EngineUnavailable:
            # A restarted daemon may have another version.
            self._local.api = None
            raise

    def _path(self, name: str) -> str:
        return f"/containers/{quoted(self._exact(name))}"

    def _exact(self, name: str) -> str:
        """Return a container's unambiguous name: its id where Docker would take the name for a prefix of another id.

        :param name: name or id; an id must have at least the length that ``docker ps`` shows
        :raises EngineNotFound: no container has the name, which is a prefix of another one's id
        """
        if MAYBE_ID.fullmatch(name):
            found = self._ask(f"read container {name}", "GET", f"/containers/{name}/json")
            if found["Name"] != f"/{name}":
                raise errors.EngineNotFound(f"read container {name}: no container has this name")
            return str(found["Id"])
        return name

    # The server.

    def info(self) -> Mapping[str, Any]:
        return self._ask("read the daemon's description", "GET", "/info")

    # Containers.

    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Return summaries of all containers, running or not."""
        return self._ask("list containers", "GET", "/containers/json", query={"all": 1})

    def container(self, name: str, *, size: bool = False) -> Mapping[str, Any]:
        """Return Docker's description of a container.

        :param size: also ``SizeRw``, the bytes of the files that it wrote to its root; Docker reads each of them
        """
        if not size:
            return self._ask(f"read container {name}", "GET", f"{self._path(name)}/json")
        return self._act(f"read the size of container {name}", "GET", f"{self._path(name)}/json",
                         query={"size": 1})

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container."""
        return self._act(f"create container {name}", "POST", "/containers/create", body, {"name": name})["Id"]

    def start(self, name: str) -> None:
        self._act(f"start container {name}", "POST", f"{self._path(name)}/start")

    def signal(self, name: str, signal: str) -> None:
        self._ask(f"send {signal} to container {name}", "POST", f"{self._path(name)}/kill",
                  query={"signal": signal})

    def await_end(self, name: str, timeout: float) -> int:
        """Wait until the container's program has ended.

        :raises EngineTimeout: it still runs after ``timeout`` seconds
        """
        return int(self._ask(f"wait for the end of container {name}", "POST", f"{self._path(name)}/wait",
                             query={"condition": "not-running"}, timeout=timeout)["StatusCode"])

    def pause(self, name: str) -> None:
        self._act(f"freeze container {name}", "POST", f"{self._path(name)}/pause")

    def unpause(self, name: str) -> None:
        self._act(f"unfreeze container {name}", "POST", f"{self._path(name)}/unpause")

    def rename(self, name: str, new: str) -> None:
        self._ask(f"rename container {name} to {new}", "POST", f"{self._path(name)}/rename",
                  query={"name": new})

    def remove(self, name: str) -> None:
        """Remove a container with its anonymous volumes; a running one is killed."""
        self._act(f"delete container {name}", "DELETE", self._path(name), query={"v": 1, "force": 1})

    def update(self, name: str, body: Mapping[str, Any]) -> None:
        self._act(f"change the limits of container {name}", "POST", f"{self._path(name)}/update", body)

    def commit(self, name: str, repository: str, tag: str, config: Mapping[str, Any]) -> str:
        """Create an image of the container's current root. It is not frozen: the caller does that if it runs.

        :param config: configuration of its program, in place of the container's
        """
        return self._act(f"make an image of container {name}", "POST", "/commit", config,
                         {"container": self._exact(name), "repo": repository, "tag": tag, "pause": 0})["Id"]

    def logs(self, name: str, lines: int) -> bytes:
        """Return the last lines of the container's output."""
        container = self._exact(name)
        with self._connected(f"read what container {name} printed") as api:
            return api.logs(container, stdout=True, stderr=True, tail=lines)

    # Commands in containers.

    def exec_create(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Create a command that runs as the container's root with all three streams, without starting it."""
        body = {"Cmd": list(command), "User": "0:0", "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
                "Env": [f"{key}={value}" for key, value in environment.items()]}
        return str(self._ask(f"run {command[0]} in container {name}", "POST", f"{self._path(name)}/exec",
                             body)["Id"])

    def exec_start(self, process: str) -> Attached:
        with self._connected("begin the command") as api:
            return Attached(api.exec_start(process, socket=True))

    def exec_inspect(self, process: str) -> Mapping[str, Any]:
        return self._ask("read how the command is", "GET", f"/exec/{quoted(process)}/json")

    # Images.

    def images(self, repository: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return all images, or those with a name in the repository."""
        query = {"filters": json.dumps({"reference": [repository]})} if repository else {}
        return self._ask(f"list the images of {repository}" if repository else "list images", "GET", "/images/json",
                         query=query)

    def image(self, name: str) -> Mapping[str, Any]:
        return self._ask(f"read image {name}", "GET", f"/images/{quoted(name)}/json")

    def import_root(self, rootfs: bytes, repository: str) -> str:
        """Import a root file system as an image with the program /sbin/init, and return its name."""
        operation, name = f"import {repository}", f"{repository}:{LATEST}"
        with self._connected(operation, self.settings.operation_timeout) as api:
            told = api.import_image_from_data(rootfs, repository=repository, tag=LATEST, changes=['CMD ["/sbin/init"]'])
        if "error" in json.loads(told.splitlines()[-1]):
            raise error_for(operation, 500, str(told))
        return name

    def load_image(self, archive: Iterable[bytes], name: str) -> None:
        """Load an image from an archive.

        :param archive: its pieces; an exception while it is read ends the request
        """
        with self._connected(f"load {name}", self.settings.operation_timeout) as api:
            for told in api.load_image(archive):
                if told.get("error") or told.get("message"):
                    raise error_for(f"load {name}", 500, str(told.get("error") or told["message"]))

    def save_image(self, name: str, target: "SupportsWrite[bytes]") -> None:
        """Write an image as an archive to ``target``.

        :raises OSError: ``target`` cannot be written to; Docker did not fail
        """
        for piece in self._saved(name):
            target.write(piece)

    def _saved(self, name: str) -> Iterator[bytes]:
        with self._connected(f"save image {name}", self.settings.operation_timeout) as api:
            yield from api.get_image(name)

    def export(self, name: str, target: "SupportsWrite[bytes]") -> None:
        """Write the root of a container as a tar archive to ``target``.

        :raises OSError: ``target`` cannot be written to; Docker did not fail
        """
        container = self._exact(name)
        with self._connected(f"export container {name}", self.settings.operation_timeout) as api:
            pieces = api.export(container)
        for piece in pieces:
            target.write(piece)

    def pull_image(self, name: str, digest: str, credentials: tuple[str, str] | None) -> None:
        """Pull an image from a registry."""
        auth = {"username": credentials[0], "password": credentials[1]} if credentials else {}
        with self._connected(f"fetch {name}@{digest}", self.settings.operation_timeout) as api:
            for told in api.pull(name, tag=digest, auth_config=auth, stream=True, decode=True):
                if told.get("error"):
                    raise error_for(f"fetch {name}@{digest}", 500, str(told["error"]))

    def tag_image(self, name: str, repository: str, tag: str) -> None:
        self._ask(f"name image {name} {repository}:{tag}", "POST", f"/images/{quoted(name)}/tag",
                  query={"repo": repository, "tag": tag})

    def remove_image(self, name: str) -> None:
        """Remove a name of an image, and the image with its last name."""
        self._act(f"remove image {name}", "DELETE", f"/images/{quoted(name)}")


def quoted(name: str) -> str:
    """Quote a part of a path; an image name may have several parts."""
    return urllib.parse.quote(name, safe="/:")
