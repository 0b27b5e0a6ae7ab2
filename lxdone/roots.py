"""Root disks: a VM's disk file, an LXD tarball, in LXD's image store for as long as a container of it lives."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from containerhost.engines import ContainerState
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.images import Images
from containerhost.errors import EngineNotFound
from containerhost.filelock import FileLock
from lxdone.translate import IMAGE_LABEL
from onedriver.errors import BadInput, DriverError, NotSupported

MAGICS = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh")  # gzip, xz, zstd, bzip2
TAR_MAGIC = (257, b"ustar")
PREFIX = "lxdone-"
LOCK = ".images"


class Roots:
    """:param locks: a folder that every process of this driver on the host shares
    """

    def __init__(self, client: LxdClient, locks: Path, timeout: int) -> None:
        self._client = client
        self._images = Images(client)
        self._lock = FileLock(locks / LOCK, timeout)

    def ensure(self, disk: Path) -> str:
        """Fingerprint of the image that is the disk file's content, which LXD has afterwards.

        :raises BadInput, NotSupported: the file is missing or no tarball
        """
        require_tarball(disk)
        fingerprint = digest(disk)  # what LXD calls an image of one file
        with self._lock.held():
            if not self._has(fingerprint):
                self._images.import_unified(disk, PREFIX + fingerprint[:32], {})
        return fingerprint

    def _has(self, fingerprint: str) -> bool:
        try:
            self._client.image(fingerprint)
        except EngineNotFound:
            return False
        return True

    def release(self, fingerprint: str | None, containers: Iterable[ContainerState]) -> None:
        """Remove the image unless one of the host's containers was made of it."""
        if fingerprint and not any(state.labels.get(IMAGE_LABEL) == fingerprint for state in containers):
            with self._lock.held():
                self._images.delete(fingerprint)


def require_tarball(disk: Path) -> None:
    try:
        with disk.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise BadInput(f"the root disk {disk} cannot be read: {error.strerror}") from error
    place, magic = TAR_MAGIC
    if not head.startswith(MAGICS) and head[place:place + len(magic)] != magic:
        raise NotSupported(f"the root disk {disk} is no tarball; it must be an LXD image: a tarball with metadata.yaml "
                           "and rootfs/, plain or packed with gzip, xz, zstd or bzip2")


def digest(disk: Path) -> str:
    try:
        with disk.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DriverError(f"the root disk {disk} cannot be read: {error.strerror}") from error
