# SPDX-License-Identifier: Apache-2.0
"""Manage images of Docker by their ids only, because a name may refer to another image later."""

import contextlib
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from containerhost.engines.docker import copyfreeze, layerwriter, writtenlayer
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.freezer import Freezer
from containerhost.engines.docker.layerwriter import UNBOUNDED, Bounds, Entries, Target
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.engines.docker.writtenlayer import Appended
from containerhost.errors import EngineConflict, EngineError, EngineNotFound
from containerhost.images.errors import BadImage
from containerhost.linux.sysfs import Host

LOAD_TIMEOUT: Final = 3600  # s
HOLES_LIMIT: Final = 1 << 30  # bytes by which an image of a container may exceed the quota of its root

LAYERS_LIMIT: Final = 125  # Docker's own, of an image
#: File systems below Docker that change a file's time when a mapped page is written for the first time after a sync.
TIMED: Final = ("extfs", "xfs", "btrfs")

#: Tag of an image until it is known that the container stood still for all of it: Docker makes it also if the process
#: that asked for it, and so the freeze, has ended.
UNFINISHED: Final = "unfinished"

# Taken from the container's original image, not from its own configuration.
PROGRAM = ("Cmd", "Entrypoint", "User", "WorkingDir", "Healthcheck")


class Divided(NamedTuple):
    """Describe a container's root.

    :ivar image: id of the container's image
    :ivar upper: directory with what the container wrote
    :ivar written: bytes of that
    """

    image: str
    upper: Path
    written: int


class Images:
    def __init__(self, client: DockerClient) -> None:
        self._client = client
        self._freezer = Freezer(client, DockerPrivileged(), Host())

    def has(self, image: str) -> bool:
        try:
            self._client.image(image)
        except EngineNotFound:
            return False
        return True

    def architecture(self, image: str) -> str:
        """Return the architecture in Go's notation (``amd64``); empty if the image does not name it."""
        return str(self._client.image(image).get("Architecture") or "")

    def size(self, image: str) -> int:
        """Return the bytes of its layers, as in its archive."""
        return int(self._client.image(image).get("Size") or 0)

    def layers(self, image: str) -> tuple[str, ...]:
        """Return the digests of its layers, lowest first."""
        return tuple((self._client.image(image).get("RootFS") or {}).get("Layers") or ())

    def load(self, archive: BinaryIO, name: str, image: str, present: Sequence[str] = ()) -> None:
        """Load one image from an archive.

        The archive is rewritten: its other content, above all image names, has no effect.

        :param archive: a file or pipe
        :param present: digests of the layers of an image that Docker has, and the archive may lack
        :raises EngineError: it is damaged or does not hold the image
        """
        from containerhost.images import rebuild  # noqa: PLC0415  (of all actions only this one needs it, and YAML)

        try:
            with rebuild.layers(archive, image, LOAD_TIMEOUT, present) as pieces:
                self._client.load_image(pieces, name)
        except BadImage as error:
            raise EngineError(f"the archive {name} cannot be loaded: {error}") from error
        if not self.has(image):
            raise EngineError(f"load {name}: the engine accepted it, but has no image {image} afterwards; see its log")

    def save(self, image: str, archive: Path, bounds: Bounds = UNBOUNDED) -> None:
        """Save an image as an archive.

        :param archive: written sequentially; the caller ensures that an incomplete archive is not used
        :raises EngineError: it cannot be written, or Docker ends it too early
        """
        try:
            with archive.open("w+b") as file:
                self._client.save_image(image, Target(file, bounds))
                writtenlayer.require_complete(file)
        except (OSError, tarfile.TarError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise EngineError(f"{reason}: the archive {archive} cannot be written") from error

    def directory(self) -> Path:
        """Return Docker's own directory, with the layers of images."""
        return Path(self._client.info()["DockerRootDir"])

    def divided(self, container: str) -> Divided | None:
        """Return what a container's root consists of; None if Docker does not show it as a layer has it."""
        found = self._client.container(container)
        upper = writtenlayer.upper_directory(self._client.info(), found)
        if upper is None:
            return None
        return Divided(found["Image"], upper, int(self._client.container(container, size=True).get("SizeRw") or 0))

    def append(self, image: str, upper: Path, archive: Path, bounds: Bounds = UNBOUNDED) -> str:
        """Append what a stopped container wrote to an archive of the container's image.

        :param image: made of the container by :meth:`commit`
        :returns: the id of the image that the archive has then
        :raises EngineError: it cannot be read or written; the archive is incomplete
        """
        try:
            return writtenlayer.append(archive, upper, self._client.image(image), bounds=bounds).image
        except (OSError, tarfile.TarError, LookupError, ValueError, TypeError) as error:
            raise EngineError(f"what the container wrote cannot be appended to the archive of its image: {error}"
                              ) from error

    def layers_of(self, container: str) -> tuple[str, ...]:
        """Return the digests of the layers of a container's image."""
        return self.layers(self._client.container(container)["Image"])

    def root_size(self, container: str) -> int:
        """Return the bytes of all files of a container's root. Docker reads each of them."""
        return int(self._client.container(container, size=True).get("SizeRootFs") or 0)

    def flatten(self, container: str, archive: Path, bounds: Bounds) -> str:
        """Write a stopped container's root as an archive of an image of one layer, and return the image's id.

        :param bounds: what the archive may grow by
        :raises EngineError: it cannot be read or written; the archive is incomplete
        """
        found = self._client.container(container)
        described = self._client.image(found["Image"])
        try:
            return writtenlayer.flatten(
                archive, described, lambda target: self._client.export(container, target),
                within_quota(found, bounds, int(described.get("Size") or 0)))
        except (OSError, tarfile.TarError, LookupError, ValueError, TypeError) as error:
            raise EngineError(f"the root of container {container} cannot be written as one layer: {error}") from error

    def times_changes(self) -> bool:
        """Return whether Docker's files are on a file system that changes a file's time at each write to a page."""
        return any(["Backing Filesystem", each] in (self._client.info().get("DriverStatus") or ()) for each in TIMED)

    def append_changes(self, container: str, upper: Path, archive: Path, before: Entries, bounds: Bounds, *,
                       runs: bool) -> Appended:
        """Append what a container wrote since the former layers to an archive of its image, with the image's program.

        :param before: what the former layers have
        :param bounds: what the archive may grow by
        :param runs: whether the container may run; it is frozen for a moment
        :raises EngineError: it cannot be read or written; the archive is incomplete
        """
        found = self._client.container(container)
        began = layerwriter.begin(upper, copyfreeze.still(found["Id"])) if runs else None
        try:
            return writtenlayer.append(archive, upper, None, before, began, within_quota(found, bounds))
        except (OSError, tarfile.TarError, LookupError, ValueError, TypeError) as error:
            raise EngineError(f"what the container wrote cannot be copied: {error}") from error

    def commit(self, container: str, repository: str, tag: str) -> str:
        """Create an image of the container's current root, with the program of the container's image.

        :raises EngineError: the root has a quota, and the image would be larger: the container wrote sparse files
        """
        self._freezer.thaw_unrecorded(container)
        found = self._client.container(container)
        made_of = self._client.image(found["Image"])["Config"] or {}
        config = {key: made_of[key] for key in PROGRAM if made_of.get(key)}
        quota = quota_of(found)
        if UNFINISHED in self.names(repository):
            self.remove(f"{repository}:{UNFINISHED}")
        # Docker leaves a container frozen that was frozen before the commit.
        runs = found["State"]["Status"] == "running"
        with copyfreeze.still(found["Id"]) if runs else contextlib.nullcontext():
            if quota is not None:
                self._require_small(container, quota)
            image = self._client.commit(container, repository, UNFINISHED, config)
        self.tag(image, repository, tag)
        self.remove(f"{repository}:{UNFINISHED}")
        return image

    def _require_small(self, container: str, quota: int) -> None:
        """Refuse an image that would exceed the size limit of its root.

        :raises EngineError: the image would be larger than the limit
        """
        written = int(self._client.container(container, size=True).get("SizeRw") or 0)
        if written > quota + HOLES_LIMIT:
            raise EngineError(f"container {container} has sparse files: on its root disk of {quota >> 20} MiB are "
                              f"files of {written >> 20} MiB, whose holes Docker would write to the host's disk as "
                              "zeros. Remove them, or pack them (tar --sparse), and try again")

    def names(self, repository: str) -> Mapping[str, str]:
        """Return the image id of each tag."""
        return {name.removeprefix(f"{repository}:"): image["Id"] for image in self._client.images(repository)
                for name in image.get("RepoTags") or () if name.startswith(f"{repository}:")}

    def tag(self, image: str, repository: str, tag: str) -> None:
        self._client.tag_image(image, repository, tag)

    def remove(self, name: str) -> None:
        """Remove an image. Idempotent; an image with containers or other names stays."""
        try:
            self._client.remove_image(name)
        except EngineNotFound:
            return
        except EngineConflict:
            # An id in use by a container, or with several names. Untagging a name always succeeds.
            if not name.startswith("sha256:"):
                raise


def quota_of(container: Mapping[str, Any]) -> int | None:
    """Return the bytes that a container may write to its root; None if there is no limit."""
    quota = (container["HostConfig"].get("StorageOpt") or {}).get("size")
    return None if quota is None else int(quota)


def within_quota(container: Mapping[str, Any], bounds: Bounds, below: int = 0) -> Bounds:
    """Return the bounds of an archive of what a container with a quota wrote, as of an image of it.

    :param below: bytes of the container's image, if the archive has these too
    """
    quota = quota_of(container)
    return bounds if quota is None else bounds._replace(size=min(bounds.size, below + quota + HOLES_LIMIT))
