"""Images of Docker: by their ids alone, because a name may mean another image tomorrow."""

import os
from collections.abc import Mapping
from pathlib import Path

from containerhost.engines.docker.client import DockerClient
from containerhost.errors import EngineConflict, EngineError, EngineNotFound

# Of what a container was made with, what its image says instead.
PROGRAM = ("Cmd", "Entrypoint", "User", "WorkingDir", "Healthcheck")


class Images:
    def __init__(self, client: DockerClient) -> None:
        self._client = client

    def has(self, image: str) -> bool:
        try:
            self._client.image(image)
        except EngineNotFound:
            return False
        return True

    def architecture(self, image: str) -> str:
        """As Go calls it (``amd64``); empty when it does not say."""
        return str(self._client.image(image).get("Architecture") or "")

    def load(self, archive: Path, image: str) -> None:
        """:raises EngineError: the archive cannot be read, is damaged, or holds another image, which goes again
        """
        before = {found["Id"] for found in self._client.images()}
        try:
            with archive.open("rb") as file:
                self._client.load_image(file, str(archive))
        except OSError as error:
            raise EngineError(f"the archive {archive} cannot be read: {error.strerror}") from error
        if not self.has(image):
            for other in {found["Id"] for found in self._client.images()} - before:
                self.remove(other)
            raise EngineError(f"the archive {archive} does not hold the image {image}")

    def save(self, image: str, archive: Path) -> None:
        """As a whole or not at all."""
        unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                self._client.save_image(image, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, archive)
        except OSError as error:
            raise EngineError(f"the archive {archive} cannot be written: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    def commit(self, container: str, repository: str, tag: str) -> str:
        """An image of what is in the container's root now, whose program is that of the container's own image.

        :returns: its id
        """
        made_of = self._client.image(self._client.container(container)["Image"])["Config"] or {}
        return self._client.commit(container, repository, tag,
                                   {key: made_of[key] for key in PROGRAM if made_of.get(key)})

    def names(self, repository: str) -> Mapping[str, str]:
        """Tag -> id."""
        return {name.removeprefix(f"{repository}:"): image["Id"] for image in self._client.images(repository)
                for name in image.get("RepoTags") or () if name.startswith(f"{repository}:")}

    def tag(self, image: str, repository: str, tag: str) -> None:
        self._client.tag_image(image, repository, tag)

    def remove(self, name: str) -> None:
        """Done already when it is gone; an image that a container was made of, or that has other names, stays."""
        try:
            self._client.remove_image(name)
        except EngineNotFound:
            return
        except EngineConflict:
            # An id that a container uses, or that has several names. A name alone can always be taken away.
            if not name.startswith("sha256:"):
                raise
