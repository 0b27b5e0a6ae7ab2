# SPDX-License-Identifier: Apache-2.0
"""Manage images of a node's engine, for the transfer driver: ``onedock image …``, as root.

The image of a VM's disk has a tag for that disk in Docker (``onedock/one-12:disk.0``) from before the disk exists
until after its removal: so it is not removed as unused, and is removed with its last tag.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.images import Images
from containerhost.errors import EngineNotFound
from containerhost.linux.lock import FileLock
from onedock.guest import require_left
from onedock.imageref import IMAGE
from onedock.root_images import named, repository
from onedock.rootowner import require_newest
from onedriver.actions import NUMBER
from onedriver.errors import BadInput, DriverError
from onedriver.node.imagelocks import naming
from onedriver.node.names import name

DISK = re.compile(r"disk\.[0-9]{1,4}")
SAVED = "saved"
PULLED = "pulled"  # directory with a file for each image that is being fetched
REQUEST_LIMIT = 64 << 10  # bytes
REFERENCE = re.compile(r"docker://(?P<name>[A-Za-z0-9./:_-]{1,300}?)(?::[A-Za-z0-9_.-]{1,128})?@(?P<digest>sha256:[0-9a-f]{64})")


class NodeImages:
    """Load, pull, name and save images of the node's Docker for the transfer driver.

    :param lock: the lock of all that name and unname images
    :param state: the driver's directory
    """

    def __init__(self, client: DockerClient, lock: FileLock, state: Path) -> None:
        self._client = client
        self._state = state
        self._images = Images(client)
        self._lock = lock

    def act(self, words: Sequence[str], source: BinaryIO, out: BinaryIO) -> bool:
        """Run one request of the transfer driver.

        :returns: False if there is no such image or container here
        :raises BadInput: it is not a valid request
        """
        match words:
            case ["hold" | "load" | "pull" as do, vm, disk, image] if IMAGE.fullmatch(image):
                return bool(getattr(self, do)(of_disk(vm, disk), image, source))
            case ["release", vm, disk]:
                return self.release(of_disk(vm, disk))
            case ["save", vm, image] if NUMBER.fullmatch(vm) and IMAGE.fullmatch(image):
                return self.save(int(vm), image, out)
        raise BadInput("usage: onedock image hold|load|pull VM DISK IMAGE | release VM DISK | save VM IMAGE")

    def hold(self, place: tuple[str, str], image: str, source: BinaryIO | None = None) -> bool:
        return named(self._images, self._lock, image, *place)

    def load(self, place: tuple[str, str], image: str, source: BinaryIO) -> bool:
        """Load an archive from standard input."""
        # Never by the name /dev/stdin: root would open anew, for reading, what its caller cannot read.
        self._images.load(source, "on standard input", image)
        return self.hold(place, image)

    def pull(self, place: tuple[str, str], image: str, source: BinaryIO) -> bool:
        """Pull an image; a reference and credentials come on standard input, as JSON."""
        try:
            asked = json.loads(source.read(REQUEST_LIMIT))
            found = REFERENCE.fullmatch(asked["reference"])
            credentials = (str(asked["user"]), str(asked["password"])) if asked["user"] else None
        except (ValueError, KeyError, TypeError):
            raise BadInput("standard input names no image to pull") from None  # its text may be a password
        if found is None:
            raise BadInput(f"{asked['reference']!r:.200} is not an image of a registry with a digest")
        pinned = f"{found['name']}@{found['digest']}"
        mark = self._state / PULLED / found["digest"].removeprefix("sha256:")
        ours = mark.exists() or not self._images.has(pinned)  # else the administrator has fetched it
        if ours:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()  # a pull that is killed leaves it
        self._client.pull_image(found["name"], found["digest"], credentials)
        held = self.hold(place, image)
        if ours:  # its name in the registry would keep it when the last disk is gone
            self._images.remove(pinned)
            mark.unlink(missing_ok=True)
        if not held:
            raise DriverError(f"{pinned} is not the image {image} of the datastore: register it again")
        return True

    def release(self, place: tuple[str, str]) -> bool:
        with naming(self._lock):
            self._images.remove(":".join(place))
        return True

    def save(self, vm: int, before: str, out: BinaryIO) -> bool:
        """Save the current content of the VM's container as an archive of an image.

        :param before: the image that its root disk names
        :returns: False if the VM has left this host, or never was here
        :raises DriverError: only Docker reports so, or the container is older than the disk
        """
        require_newest(self._state, vm, before)
        try:
            image = self._images.commit(name(vm), repository(vm), SAVED)
        except EngineNotFound:
            require_left(self._state, vm)
            return False
        try:
            self._client.save_image(image, out)
            out.flush()
        finally:
            self._images.remove(f"{repository(vm)}:{SAVED}")
        return True


def of_disk(vm: str, disk: str) -> tuple[str, str]:
    """Return the repository and tag of a disk's image."""
    if not NUMBER.fullmatch(vm) or not DISK.fullmatch(disk):
        raise BadInput(f"{vm[:40]!r} and {disk[:40]!r} are not a VM and a disk")
    return repository(int(vm)), disk
