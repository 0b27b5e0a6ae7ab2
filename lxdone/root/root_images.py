# SPDX-License-Identifier: Apache-2.0
"""Keep the content of a VM's disk file in LXD's image store while a container of it exists.

Its root file system is always rebuilt first: LXD reads nothing that a tenant packed. The image's alias is the digest
of the disk, so that the VMs of one image share it.
"""

import contextlib
import hashlib
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from containerhost.engines.contract import ContainerState
from containerhost.errors import EngineNotFound
from containerhost.images.errors import BadImage, TooLarge
from lxdone.disk import diskformat, filesystems, qcow2
from lxdone.disk.diskformat import Format
from lxdone.disk.qcow2 import Origin
from lxdone.translate import IMAGE_LABEL
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node.imagelocks import Busy, ImageLocks

if TYPE_CHECKING:
    from containerhost.engines.capabilities import Image, ImageStore

PREFIX = "lxdone-rebuilt-"  # images "lxdone-…" of earlier releases were not rebuilt
LOCKS = ".rootimages"  # importing or removing an image locks it exclusively, creating a container from it shared
REFUSED = {
    Format.QCOW2: "is a qcow2 image within another",
    Format.ISO: "is an ISO image, which has no root file system",
    Format.UNKNOWN: "is nothing this driver knows: an LXD image (a tarball with metadata.yaml and rootfs/, plain or "
                    "packed with gzip, xz, zstd or bzip2), a file system (ext2, ext3, ext4, xfs, squashfs), or a disk "
                    "with partitions",
}


class RootImages:
    """Import VMs' root disks into LXD's image store, and remove images without containers.

    :param timeout: seconds that each of the long steps may take
    """

    def __init__(self, images: "ImageStore", locks: Path, timeout: int) -> None:
        self._images = images
        self._locks = ImageLocks(locks / LOCKS, timeout)
        self._timeout = timeout

    @contextlib.contextmanager
    def held(self, disk: Path, origin: Origin, directory: Path, limit: int) -> Iterator[str]:
        """Yield the fingerprint of the image with the disk's content, which LXD keeps within the block.

        :param directory: this VM's own, for temporary files
        :param limit: maximum unpacked bytes of the content
        :raises BadInput, NotSupported: the file is missing or not usable as a root
        :raises Busy: another process imports or removes the image for too long
        :raises EngineNotFound: another process removed it before the block began
        """
        alias = self._ensure(disk, origin, directory, limit)
        with self._locks.held(alias, shared=True):
            image = self._images.find(alias)
            if image is None:
                raise EngineNotFound(f"the image {alias} of the root disk {disk} was removed after its import")
            yield image.fingerprint

    def _ensure(self, disk: Path, origin: Origin, directory: Path, limit: int) -> str:
        """Import the image unless it exists, and return its alias."""
        if diskformat.of(filesystems.head(disk)) is not Format.QCOW2:
            return self._ensure_raw(disk, directory, limit)
        raw = directory / "root.raw"
        try:
            qcow2.to_raw(disk, origin, raw, self._timeout)
            return self._ensure_raw(raw, directory, limit)
        finally:
            raw.unlink(missing_ok=True)

    def _ensure_raw(self, disk: Path, directory: Path, limit: int) -> str:
        found = diskformat.of(filesystems.head(disk))
        if found in REFUSED:
            raise NotSupported(f"the root disk {disk} {REFUSED[found]}")
        alias = PREFIX + digest(disk)[:32]
        if not self._images.find(alias):
            with self._locks.held(alias):
                if not self._images.find(alias):
                    self._import(disk, found, alias, directory, limit)
        return alias

    def _import(self, disk: Path, found: Format, alias: str, directory: Path, limit: int) -> None:
        from containerhost.images import metadata, rebuild  # noqa: PLC0415  (most containers are made of images that are there)

        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            target = cast(BinaryIO, file)
            with self._content(disk, found, directory) as content:
                try:
                    rebuilt = rebuild.rebuild(content, target, limit, self._timeout)
                except TooLarge as error:
                    raise BadInput(f"the root disk {disk} cannot be used: {error}; SIZE of the disk and unpacked_limit "
                                   "of /etc/lxdone.toml decide how many") from error
                except BadImage as error:
                    raise BadInput(f"the root disk {disk} cannot be used: {error}") from error
            architecture = rebuilt.architecture or platform.machine()
            self._images.import_split(metadata.tarball(architecture), target, alias, {})

    @contextlib.contextmanager
    def _content(self, disk: Path, found: Format, directory: Path) -> Iterator[BinaryIO]:
        """Open the disk's archive: its own, or that of its file system."""
        if found in (Format.TARBALL, Format.SQUASHFS):
            with disk.open("rb") as file:
                yield file
        else:
            with filesystems.archived(disk, filesystems.find(disk), directory, self._timeout) as archive:
                yield archive

    def release(self, fingerprint: str | None, containers: Callable[[], Iterable[ContainerState]]) -> None:
        """Remove this image, and those of earlier calls, unless one of the host's containers uses it.

        An image that is being imported or used stays for a later call.
        """
        used = images_of(containers())
        for image in self._images.all():
            names = aliases(image)
            if image.fingerprint in used or (not names and image.fingerprint != fingerprint):
                continue
            with contextlib.suppress(Busy), contextlib.ExitStack() as stack:
                for alias in names:
                    stack.enter_context(self._locks.held(alias, wait=False))
                if image.fingerprint not in images_of(containers()):  # else one was created before the lock
                    self._images.delete(image.fingerprint)


def images_of(containers: Iterable[ContainerState]) -> frozenset[str | None]:
    """Return the fingerprints of the containers' images."""
    return frozenset(state.labels.get(IMAGE_LABEL) for state in containers)


def aliases(image: "Image") -> tuple[str, ...]:
    """Return the aliases of an image by this driver, including one that a killed import did not set."""
    return tuple(sorted(name for name in {image.filename, *image.aliases} if name.startswith(PREFIX)))


def digest(disk: Path) -> str:
    try:
        with disk.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DriverError(f"the root disk {disk} cannot be read: {error.strerror}") from error
