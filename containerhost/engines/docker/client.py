"""Docker's Engine API: one method per call, and one place where its failures get this project's names.

Built on the docker SDK, one connection per thread (a requests session must not be shared). Every request and every
wait has a limit.
"""

import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import docker
import docker.errors
import requests
import urllib3.exceptions

from containerhost import errors
from containerhost.engines.timeouts import is_timeout

# Docker reports these as plain 400 or 500: only the words tell them apart.
TEXTS: tuple[tuple[re.Pattern[str], type[errors.EngineError]], ...] = (
    (re.compile(r"no space left|disk quota exceeded", re.I), errors.StorageFull),
    (re.compile(r"removal of container \S+ is already in progress", re.I), errors.EngineBusy),
    (re.compile(r"context deadline exceeded|timed? ?out", re.I), errors.EngineTimeout),
)

STATUSES: Mapping[int, type[errors.EngineError]] = {
    404: errors.EngineNotFound,
    409: errors.EngineConflict,
    503: errors.EngineUnavailable,
    504: errors.EngineTimeout,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to reach the daemon.

    :ivar endpoint: its socket, ``unix:///run/docker.sock``
    :ivar request_timeout: seconds without an answer
    :ivar operation_timeout: seconds that making, starting or removing a container may take
    """

    endpoint: str = "unix:///run/docker.sock"
    request_timeout: int = 30
    operation_timeout: int = 120


def refusal(asked: str, status: int, text: str) -> errors.EngineError:
    """The error for an answer that is not a success: by its words where they tell more, else by its status."""
    known = next((kind for words, kind in TEXTS if words.search(text)), None)
    kind = known or STATUSES.get(status, errors.EngineError)
    return kind(f"{asked}: Docker says: {text.strip() or f'HTTP status {status}'}")


@contextlib.contextmanager
def translated(asked: str, endpoint: str) -> Iterator[None]:
    """Every failure of a request leaves as an EngineError that says what was asked and where."""
    try:
        yield
    except docker.errors.APIError as error:
        raise refusal(asked, error.response.status_code if error.response is not None else 0,
                      str(error.explanation or error)) from error
    except (requests.RequestException, docker.errors.DockerException, urllib3.exceptions.HTTPError,
            OSError) as error:
        # The SDK hides what went wrong with its first request in an error of its own.
        if is_timeout(error):
            raise errors.EngineTimeout(f"{asked}: no answer from {endpoint} in time") from error
        raise errors.EngineUnavailable(
            f"{asked}: cannot talk to {endpoint} ({error}); is the daemon running, and may this user reach it?"
        ) from error
    except ValueError as error:
        raise errors.EngineError(f"{asked}: the answer of {endpoint} is not Docker's: {error}") from error


class DockerClient:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._local = threading.local()

    # The choke point.

    @contextlib.contextmanager
    def _asking(self, asked: str, limit: float | None = None) -> Iterator[docker.APIClient]:
        """:param limit: seconds without an answer; None is ``request_timeout``
        """
        try:
            with translated(asked, self.settings.endpoint):
                api = self._connection()
                api.timeout = limit or self.settings.request_timeout
                yield api
        except errors.EngineUnavailable:
            # The daemon that comes back may be another version: look at it anew.
            self._local.api = None
            raise

    def _connection(self) -> docker.APIClient:
        if getattr(self._local, "api", None) is None:
            self._local.api = docker.APIClient(self.settings.endpoint, version="auto",
                                               timeout=self.settings.request_timeout)
        return self._local.api

    # The server.

    def info(self) -> Mapping[str, Any]:
        with self._asking("read the daemon's description") as api:
            return api.info()

    # Containers.

    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Summaries of all containers, running or not."""
        with self._asking("list containers") as api:
            return api.containers(all=True)

    def container(self, name: str) -> Mapping[str, Any]:
        with self._asking(f"read container {name}") as api:
            return api.inspect_container(name)

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """:returns: the container's id"""
        with self._asking(f"create container {name}", self.settings.operation_timeout) as api:
            return api.create_container_from_config(dict(body), name)["Id"]

    def start(self, name: str) -> None:
        with self._asking(f"start container {name}", self.settings.operation_timeout) as api:
            api.start(name)

    def signal(self, name: str, signal: str) -> None:
        with self._asking(f"send {signal} to container {name}") as api:
            api.kill(name, signal)

    def await_end(self, name: str, timeout: float) -> int:
        """:returns: the exit status of its program
        :raises EngineTimeout: it still runs after ``timeout`` seconds
        """
        with self._asking(f"wait for the end of container {name}", timeout) as api:
            return int(api.wait(name, timeout=timeout, condition="not-running")["StatusCode"])

    def pause(self, name: str) -> None:
        with self._asking(f"freeze container {name}", self.settings.operation_timeout) as api:
            api.pause(name)

    def unpause(self, name: str) -> None:
        with self._asking(f"unfreeze container {name}", self.settings.operation_timeout) as api:
            api.unpause(name)

    def rename(self, name: str, new: str) -> None:
        with self._asking(f"rename container {name} to {new}") as api:
            api.rename(name, new)

    def remove(self, name: str) -> None:
        """With its anonymous volumes; what runs is killed."""
        with self._asking(f"delete container {name}", self.settings.operation_timeout) as api:
            api.remove_container(name, v=True, force=True)

    def stats(self, name: str) -> Mapping[str, Any]:
        """What it uses now, at once: Docker would else look twice, a second apart."""
        with self._asking(f"read what container {name} uses") as api:
            return api.stats(name, stream=False, one_shot=True)

    def update(self, name: str, body: Mapping[str, Any]) -> None:
        """Change limits; the SDK's own call knows only some of them."""
        with self._asking(f"change the limits of container {name}", self.settings.operation_timeout) as api:
            api._result(api._post_json(api._url("/containers/{0}/update", name), data=dict(body)), json=True)

    def commit(self, name: str, repository: str, tag: str, config: Mapping[str, Any]) -> str:
        """Make an image of what is in its root now; it stands still meanwhile.

        :param config: what the image says about its program, in place of what the container was made with
        :returns: the image's id
        """
        with self._asking(f"make an image of container {name}", self.settings.operation_timeout) as api:
            return api.commit(name, repository=repository, tag=tag, conf=dict(config))["Id"]

    def logs(self, name: str, lines: int) -> bytes:
        """The last lines of what it printed."""
        with self._asking(f"read what container {name} printed") as api:
            return api.logs(name, stdout=True, stderr=True, tail=lines)

    # Images.

    def images(self, repository: str | None = None) -> Sequence[Mapping[str, Any]]:
        """All, or those with a name in the repository."""
        with self._asking(f"list the images of {repository}" if repository else "list images") as api:
            return api.images(repository)

    def image(self, name: str) -> Mapping[str, Any]:
        with self._asking(f"read image {name}") as api:
            return api.inspect_image(name)

    def load_image(self, archive: BinaryIO, name: str) -> None:
        """:param name: of the archive, for people
        """
        with self._asking(f"load {name}", self.settings.operation_timeout) as api:
            for told in api.load_image(archive):
                if told.get("error") or told.get("message"):
                    raise refusal(f"load {name}", 500, str(told.get("error") or told["message"]))

    def save_image(self, name: str, target: BinaryIO) -> None:
        """:raises OSError: ``target`` takes no more: that is none of Docker's failures"""
        for piece in self._saved(name):
            target.write(piece)

    def _saved(self, name: str) -> Iterator[bytes]:
        with self._asking(f"save image {name}", self.settings.operation_timeout) as api:
            yield from api.get_image(name)

    def pull_image(self, name: str, digest: str, credentials: tuple[str, str] | None) -> None:
        """Fetch an image of a registry.

        :param name: with the registry's host, without a tag
        :param credentials: user and password for the registry
        """
        auth = {"username": credentials[0], "password": credentials[1]} if credentials else {}
        with self._asking(f"fetch {name}@{digest}", self.settings.operation_timeout) as api:
            for told in api.pull(name, tag=digest, auth_config=auth, stream=True, decode=True):
                if told.get("error"):
                    raise refusal(f"fetch {name}@{digest}", 500, str(told["error"]))

    def tag_image(self, name: str, repository: str, tag: str) -> None:
        with self._asking(f"name image {name} {repository}:{tag}") as api:
            api.tag(name, repository, tag)

    def remove_image(self, name: str) -> None:
        """The name, and the image when that was its last."""
        with self._asking(f"remove image {name}", self.settings.operation_timeout) as api:
            api.remove_image(name)
