"""Root disks: the content of a VM's disk file in LXD's image store for as long as a container of it lives.

An LXD tarball goes there as it is. A file system becomes one first, under an alias that is the digest of the disk, so
that the VMs of one image share it.
"""

import hashlib
import io
import platform
import tarfile
from collections.abc import Iterable
from pathlib import Path

from containerhost.engines import ContainerState
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.images import Images
from containerhost.errors import EngineNotFound
from containerhost.filelock import FileLock
from lxdone.disk import diskformat, filesystems, qcow2
from lxdone.disk.diskformat import Format
from lxdone.translate import IMAGE_LABEL
from onedriver.errors import DriverError, NotSupported

PREFIX = "lxdone-"
LOCK = ".images"
METADATA = f"architecture: {platform.machine()}\ncreation_date: 1\n"
REFUSED = {
    Format.QCOW2: "is a qcow2 image within another",
    Format.ISO: "is an ISO image, which has no root file system",
    Format.UNKNOWN: "is nothing this driver knows: an LXD image (a tarball with metadata.yaml and rootfs/, plain or "
                    "packed with gzip, xz, zstd or bzip2), a file system (ext2, ext3, ext4, xfs, squashfs), or a disk "
                    "with partitions",
}


class Roots:
    """:param locks: a folder that every process of this driver on the host shares
    :param datastores: OpenNebula's
    :param timeout: seconds that each of the long steps may take
    """

    def __init__(self, client: LxdClient, locks: Path, datastores: Path, timeout: int) -> None:
        self._client = client
        self._datastores = datastores
        self._images = Images(client)
        self._lock = FileLock(locks / LOCK, timeout)
        self._timeout = timeout

    def ensure(self, disk: Path, folder: Path) -> str:
        """Fingerprint of the image with the disk file's content, which LXD has afterwards.

        :param folder: this VM's own, for what is needed meanwhile
        :raises BadInput, NotSupported: the file is missing or nothing to make a root of
        """
        if diskformat.of(filesystems.head(disk)) is not Format.QCOW2:
            return self._ensure_raw(disk, folder)
        raw = folder / "root.raw"
        try:
            qcow2.to_raw(disk, self._datastores, raw, self._timeout)
            return self._ensure_raw(raw, folder)
        finally:
            raw.unlink(missing_ok=True)

    def _ensure_raw(self, disk: Path, folder: Path) -> str:
        found = diskformat.of(filesystems.head(disk))
        if found in REFUSED:
            raise NotSupported(f"the root disk {disk} {REFUSED[found]}")
        content = digest(disk)
        with self._lock.held():
            if found is Format.TARBALL:
                return self._tarball(disk, content)
            return self._file_system(disk, found, content, folder)

    def _tarball(self, disk: Path, content: str) -> str:
        """LXD calls an image of one file by that file's digest."""
        if not self._has(content):
            self._images.import_unified(disk, PREFIX + content[:32], {})
        return content

    def _file_system(self, disk: Path, found: Format, content: str, folder: Path) -> str:
        alias = PREFIX + content[:32]
        image = self._images.find(alias)
        if image:
            return image.fingerprint
        if found is Format.SQUASHFS:
            return self._images.import_split(metadata(), disk, alias, {})
        file_system = filesystems.find(disk)
        return self._images.import_packed(
            lambda: filesystems.archived(disk, file_system, METADATA, folder, self._timeout), alias, {})

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


def metadata() -> bytes:
    """The tarball that LXD wants beside a root file system."""
    entry = tarfile.TarInfo("metadata.yaml")
    entry.size = len(METADATA)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(METADATA.encode()))
    return raw.getvalue()


def digest(disk: Path) -> str:
    try:
        with disk.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DriverError(f"the root disk {disk} cannot be read: {error.strerror}") from error
